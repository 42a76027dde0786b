"""The systemd units, by systemd's own checker where it is installed."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vkqueue.config import from_toml
from vkqueue.daemon import lifecycle

ROOT = Path(__file__).parent.parent.parent
UNITS = ROOT / "systemd"


def read(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(("manager", "folder"), [("--system", ""), ("--user", "user")])
def test_systemd_understands_the_units(tmp_path: Path, manager: str, folder: str) -> None:
    """With the command swapped for one that is there."""
    for unit in (UNITS / folder).glob("vkqueue.*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/vkqueue", "/bin/true"))
    result = subprocess.run(
        ["systemd-analyze", manager, "verify", str(tmp_path / "vkqueue.service"), str(tmp_path / "vkqueue.socket")],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        timeout=60,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_units_agree_with_the_daemon() -> None:
    service, config = read("vkqueue.service")["Service"], from_toml(str(ROOT / "config" / "system.toml"))
    assert read("vkqueue.socket")["Socket"]["ListenStream"] == config.daemon.socket
    assert int(read("vkqueue.socket")["Socket"]["SocketMode"], 8) == config.daemon.mode
    assert read("vkqueue.socket")["Socket"]["SocketGroup"] == config.daemon.group
    stop_s = int(service["TimeoutStopSec"].removesuffix("s"))
    assert stop_s > config.daemon.drain_timeout_s + lifecycle.STOP_S + lifecycle.FLUSH_S
    assert service["RestartPreventExitStatus"] == f"{lifecycle.EXIT_CONFIG} {lifecycle.EXIT_ALREADY_RUNNING}"
    assert int(service["LimitNOFILE"]) > config.daemon.max_clients + lifecycle.RESERVED_FDS
    assert "PrivateDevices" not in service
    assert "MemoryDenyWriteExecute" not in service


def test_the_users_socket_is_where_clients_look() -> None:
    from vkqueue.address import default_socket

    stream = read("user/vkqueue.socket")["Socket"]["ListenStream"]
    assert stream.replace("%t", "/run/user/7") == default_socket({"XDG_RUNTIME_DIR": "/run/user/7"}, 7)
