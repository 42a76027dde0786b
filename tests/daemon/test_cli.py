"""The command line's frame: help without a driver or loader, settings from options."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from vkqueue import cli
from vkqueue.cli import COMMANDS, group
from vkqueue.config import Config
from vkqueue.daemon import lifecycle

ROOT = Path(__file__).parent.parent.parent

NO_LOADER = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vulkan", "anyio", "asyncio"):
            raise ImportError(f"{name} is not to be had in this test")

sys.meta_path.insert(0, Nothing())
sys.argv = ["vkqueue", *sys.argv[1:]]
from vkqueue.cli import main
main()
"""


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["--version"]])
def test_help_needs_no_vulkan(words: list[str]) -> None:
    """Rule 33; nor does it load an event loop, so it is quick."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", NO_LOADER, *words], env=environ, capture_output=True, timeout=30, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(("Usage: vkqueue", "vkqueue, version"))


def test_every_command_is_there() -> None:
    """The list of commands is written by hand, so that help need not import them."""
    for name in COMMANDS:
        assert isinstance(importlib.import_module(f"vkqueue.cli.{name}").command, click.Command)
    listed = CliRunner().invoke(group, ["--help"]).output
    assert all(f"{name} " in listed and line.split()[0] in listed for name, line in COMMANDS.items())


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(group, ["sevre"])
    assert result.exit_code == 2
    assert "No such command 'sevre'" in result.output


def test_python_dash_m_is_the_command() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", "vkqueue", "--version"]
    assert subprocess.run(run, env=environ, capture_output=True, timeout=30).stdout.startswith(b"vkqueue, version ")


class Served:
    """`vkqueue serve` with the daemon left out: what settings it would have run with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config: Config | None = None
        monkeypatch.setattr(lifecycle, "run", self._run)
        for variable in [name for name in os.environ if name.startswith("VKQUEUE_")]:
            monkeypatch.delenv(variable)

    def _run(self, load: object, environ: object, factory: object) -> int:
        assert callable(load)
        self.config = load()
        return 0

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(group, ["serve", *words])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch)


def test_options_go_over_the_environment_and_the_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[daemon]\nsocket = '/file'\nmax_clients = 1\nidle_exit_s = 1\n")
    monkeypatch.setenv("VKQUEUE_DAEMON_SOCKET", "/environment")
    monkeypatch.setenv("VKQUEUE_DAEMON_MAX_CLIENTS", "2")
    result = served(
        "--config", str(path), "--socket", "/option", "--device", "0", "--device", "H200", "--idle-exit", "2.5",
        "--log-level", "debug", "--set", "limits.max_buffers=7",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert served.config is not None
    daemon = served.config.daemon
    assert (daemon.socket, daemon.max_clients, daemon.idle_exit_s, daemon.log_level) == ("/option", 2, 2.5, "debug")
    assert served.config.device.select == (0, "H200")
    assert served.config.limits.max_buffers == 7


def test_without_options_the_defaults_hold(served: Served) -> None:
    assert served().exit_code == 0
    assert served.config is not None
    assert served.config.batching == Config().batching
    assert served.config.device.select == ("auto",)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--set", "max_buffers=7"], "expected SECTION.KEY=VALUE"),
        (["--set", "limits.max_bufers=7"], "did you mean max_buffers?"),
        (["--set", "limits.max_buffers=many"], "limits.max_buffers=many"),
        (["--log-level", "loud"], "command line: wrong settings:\n  daemon.log_level: expected one of debug,"),
        (["--config", "/no/such/file.toml"], "/no/such/file.toml: wrong settings:\n  [Errno 2] No such file"),
    ],
)
def test_wrong_options_are_explained(served: Served, words: list[str], text: str) -> None:
    result = served(*words)
    assert result.exit_code == lifecycle.EXIT_CONFIG
    assert text in result.output


def test_an_error_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from vkqueue.errors import UnsupportedError

    def fail(prog_name: str) -> None:
        raise UnsupportedError("no device works")

    monkeypatch.setattr(cli, "group", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "vkqueue: unsupported: no device works\n"
