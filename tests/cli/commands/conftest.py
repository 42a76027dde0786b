"""The command line as a user has it, in this process: exit status, standard output, standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from client.fake_daemon import FakeDaemon, socket_path

from vkqueue import cli


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting and no running daemon of whoever runs the tests."""
    for variable in [name for name in os.environ if name.startswith(("VKQUEUE_", "XDG_", "COLUMNS"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("vkqueue.client.address.SYSTEM_SOCKET", str(tmp_path / "no-system-daemon"))


@pytest.fixture
def vkqueue(clean: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a command line."""

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["vkqueue", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A daemon that computes in NumPy; `fake.path` is its socket."""
    daemon = FakeDaemon()
    daemon.path = socket_path(tmp_path)  # type: ignore[attr-defined]
    daemon.start(socket_path(tmp_path))
    yield daemon
    daemon.stop()
