"""The small commands, and what holds for all of them: JSON, exit status, errors as a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from vkqueue import cli
from vkqueue.cli import stats
from vkqueue.cli.local import ProbeResult
from vkqueue.config import SECTIONS

ROOT = Path(__file__).parents[3]
AXPY = ROOT / "vkqueue/cli/kernels/axpy.spv"

DEVICE = {
    "index": 0, "uuid": "00" * 16, "name": "card [red]1[/red]", "type": "discrete", "driver": "d 1",
    "api_version": "1.3.0", "memory_bytes": 3 << 30, "error": None,
    "limits": {"maxComputeWorkGroupSize": [8, 8, 8], "maxComputeWorkGroupInvocations": 64},
    "features": {"shaderInt64": True, "shaderFloat64": False},
}  # fmt: skip


class TestErrors:
    @pytest.mark.parametrize("words", [["ping"], ["stats"], ["devices"], ["run", AXPY, "--grid", "1"]])
    def test_no_daemon(self, vkqueue: Callable[..., Any], words: list[object]) -> None:
        ended = vkqueue(*words, "--socket", "/nonexistent/s")
        assert ended.code == 1
        assert ended.out == ""
        assert ended.err.startswith("vkqueue: connection_lost: no vkqueue daemon answers; tried /nonexistent/s (")
        assert "vkqueue serve" in ended.err and ended.err.count("\n") == 1

    def test_programs_get_it_as_json_too(self, vkqueue: Callable[..., Any]) -> None:
        ended = vkqueue("ping", "--socket", "/nonexistent/s", "--json")
        assert ended.code == 1
        assert ended.json["ok"] is False
        assert ended.json["error"]["code"] == "connection_lost"
        assert ended.err.startswith("vkqueue: connection_lost")

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (FileNotFoundError(2, "No such file or directory", "a.npy"), "a.npy: No such file or directory"),
            (OSError("AF_UNIX path too long"), "AF_UNIX path too long"),
            (TimeoutError("no answer within 3 s"), "timeout: no answer within 3 s"),
            (MemoryError("Unable to allocate 90 TiB"), "out of memory: Unable to allocate 90 TiB"),
        ],
    )
    def test_what_is_no_fault_of_ours_has_no_traceback(
        self, vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
    ) -> None:
        def fail(*args: object, **options: object) -> None:
            raise error

        monkeypatch.setattr("vkqueue.client.sync.connect", fail)
        ended = vkqueue("ping")
        assert (ended.code, ended.err) == (1, f"vkqueue: {line}\n")


@pytest.mark.parametrize("words", [["ping"], ["devices"], ["run", AXPY, "--grid", "1"]])
def test_a_daemon_can_be_started(
    vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: list[object]
) -> None:
    asked: list[bool] = []

    def connect(*args: object, spawn: bool, **options: object) -> None:
        asked.append(spawn)
        raise TimeoutError("none")

    monkeypatch.setattr("vkqueue.client.sync.connect", connect)
    vkqueue(*words)
    vkqueue(*words, "--spawn")
    assert asked == [False, True]


class TestPing:
    def test_round_trips(self, vkqueue: Callable[..., Any], fake: Any) -> None:
        ended = vkqueue("ping", "--socket", fake.path, "--count", 3)
        assert ended.code == 0
        assert "fake/1 answers (device 0: NumPy)" in ended.out and "3 round trips" in ended.out
        assert [method for method, _ in fake.log] == ["hello", "ping", "ping", "ping"]

    def test_as_json(self, vkqueue: Callable[..., Any], fake: Any) -> None:
        report = vkqueue("ping", "--socket", fake.path, "--json").json
        assert report["ok"] and report["server"] == "fake/1" and report["count"] == 10
        assert 0 < report["min_us"] <= report["median_us"] <= report["max_us"]


class TestDevices:
    def test_the_daemons(self, vkqueue: Callable[..., Any], fake: Any) -> None:
        ended = vkqueue("devices", "--socket", fake.path)
        assert ended.code == 0
        assert "NumPy" in ended.out and "1.0 GiB" in ended.out
        report = vkqueue("devices", "--socket", fake.path, "--json").json
        assert report["server"] == "fake/1"
        assert report["devices"][0]["limits"]["minUniformBufferOffsetAlignment"] == 64

    def test_this_machines(self, vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        broken = {**DEVICE, "index": 1, "name": "card 2", "error": "nothing left"}
        found = ProbeResult("ok", "x.json crashed", (DEVICE, broken), (("x.json", "crashed"),))
        monkeypatch.setattr("vkqueue.cli.local.probe_devices", lambda environ: found)
        ended = vkqueue("devices", "--local", "-v")
        assert ended.code == 0
        assert "card [red]1[/red]" in ended.out  # no markup
        assert "cannot be used: nothing left" in ended.out
        assert "8 x 8 x 8" in ended.out and "features: shaderInt64\n" in ended.out
        assert ended.err == "vkqueue: x.json crashed\n"
        report = vkqueue("devices", "--local", "--json").json
        assert report["excluded"] == [{"manifest": "x.json", "fault": "crashed"}]

    def test_none_works(self, vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        found = ProbeResult("no_driver", "install a driver")
        monkeypatch.setattr("vkqueue.cli.local.probe_devices", lambda environ: found)
        ended = vkqueue("devices", "--local")
        assert (ended.code, ended.out, ended.err) == (1, "", "vkqueue: install a driver\n")
        assert vkqueue("devices", "--local", "--json").json["ok"] is False

    def test_local_asks_no_daemon(self, vkqueue: Callable[..., Any]) -> None:
        assert vkqueue("devices", "--local", "--spawn").code == 2


class TestStats:
    BEFORE = {"jobs_completed": 100, "batches": 10, "submits": 10, "jobs_failed": 0}

    def test_once(self, vkqueue: Callable[..., Any], fake: Any) -> None:
        ended = vkqueue("stats", "--socket", fake.path)
        assert ended.code == 0 and "clients" in ended.out
        assert vkqueue("stats", "--socket", fake.path, "--json").json["clients"] == 1

    def test_again_and_again(self, vkqueue: Callable[..., Any], fake: Any) -> None:
        ended = vkqueue("stats", "--socket", fake.path, "--watch", 0.05, "--count", 2)
        assert ended.code == 0 and ended.out.count("per second") == 2
        lines = vkqueue("stats", "--socket", fake.path, "--watch", 0.05, "--count", 2, "--json").out.splitlines()
        assert [json.loads(line)["buffers"] for line in lines] == [0, 0]
        assert vkqueue("stats", "--socket", fake.path, "--count", 2).code == 2

    def test_rates(self) -> None:
        after = {"jobs_completed": 300, "batches": 30, "submits": 5, "jobs_failed": 0}
        grown = stats.rates(self.BEFORE, after, 0.5)
        assert grown == {"jobs_completed": 400, "batches": 40, "submits": 0, "jobs_failed": 0}

    def test_a_device_that_came_meanwhile(self) -> None:
        device = {"index": 0, "jobs_completed": 8, "batches": 2, "closed": {"idle": 2, "full": 0}}
        made = stats.per_device({"devices": [device]}, {"devices": []}, 2.0)
        assert [str(next(iter(column.cells))) for column in made.columns][-3:] == ["4", "4.0", "idle 2"]


class TestConfig:
    def test_a_good_file(self, vkqueue: Callable[..., Any]) -> None:
        for file in ("config/vkqueue.toml", "config/system.toml"):
            ended = vkqueue("config", "check", ROOT / file)
            assert (ended.code, ended.err) == (0, "")

    def test_a_wrong_file(self, vkqueue: Callable[..., Any], tmp_path: Path) -> None:
        (tmp_path / "c.toml").write_text("[daemon]\nmax_client = 3\n[batching]\nmax_batch_jobs = 0\n")
        ended = vkqueue("config", "check", tmp_path / "c.toml", "--json")
        assert ended.code == 2
        assert [text.split(":")[0] for text in ended.json["problems"]] == [
            "daemon.max_client", "batching.max_batch_jobs",
        ]  # fmt: skip
        assert f"{tmp_path / 'c.toml'}: wrong settings" in ended.err
        assert vkqueue("config", "show", tmp_path / "c.toml").code == 2

    def test_the_environment_counts(self, vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VKQUEUE_DAEMON_MAX_CLIENTS", "many")
        assert "VKQUEUE_DAEMON_MAX_CLIENTS=many" in vkqueue("config", "check").err

    def test_what_is_shown_is_a_file(
        self, vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("VKQUEUE_DAEMON_MAX_CLIENTS", "7")
        (tmp_path / "c.toml").write_text('[device]\nselect = [0, "a\\"b"]\n')
        ended = vkqueue("config", "show", tmp_path / "c.toml")
        shown = tomllib.loads(ended.out)
        assert {section: set(keys) for section, keys in shown.items()} == {
            section: set(keys) for section, keys in SECTIONS.items()
        }
        assert shown["device"]["select"] == [0, 'a"b'] and shown["daemon"]["max_clients"] == 7
        assert shown["daemon"]["mode"] == 0o600 and "mode = 0o600\n" in ended.out
        assert f'select = [0, "a\\"b"]  # {tmp_path}/c.toml\n' in ended.out
        assert "max_clients = 7  # environment\n" in ended.out
        (tmp_path / "again.toml").write_text(ended.out)
        assert vkqueue("config", "check", tmp_path / "again.toml").code == 0

    def test_what_differs(self, vkqueue: Callable[..., Any], tmp_path: Path) -> None:
        (tmp_path / "c.toml").write_text("[limits]\nmax_buffers = 9\n")
        report = vkqueue("config", "show", tmp_path / "c.toml", "--changed", "--json").json
        assert report["settings"]["limits"] == {"max_buffers": 9}
        assert report["origins"] == {"limits.max_buffers": f"{tmp_path}/c.toml"}
        # Paths that depend on the user differ from what is built in.
        assert set(report["settings"]) == {"daemon", "device", "limits"}


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_scripts(self, vkqueue: Callable[..., Any], shell: str) -> None:
        ended = vkqueue("completion", shell)
        assert ended.code == 0 and "_VKQUEUE_COMPLETE" in ended.out

    def test_another_shell(self, vkqueue: Callable[..., Any]) -> None:
        assert vkqueue("completion", "csh").code == 2

    def complete(self, words: list[str], incomplete: str) -> list[str]:
        complete = ShellComplete(cli.group, {}, "vkqueue", "_VKQUEUE_COMPLETE")
        return [item.value for item in complete.get_completions(words, incomplete)]

    def test_commands_options_and_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.complete([], "de") == ["demo", "devices"]
        assert "--verbose" in self.complete(["devices"], "--ver")
        monkeypatch.setenv("COMP_WORDS", f"vkqueue inspect {AXPY} --kernel")
        assert self.complete(["inspect", str(AXPY), "--kernel"], "") == ["main"]
        assert self.complete(["inspect", str(AXPY), "--kernel"], "x") == []

    def test_a_press_of_the_key_imports_no_command(self) -> None:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        code = (
            "import sys; from click.shell_completion import ShellComplete; from vkqueue.cli import group; "
            "ShellComplete(group, {}, 'vkqueue', 'X').get_completions([], ''); print(*sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        loaded = set(done.stdout.split())
        assert not {"numpy", "rich", "vkqueue.cli.run"} & loaded
