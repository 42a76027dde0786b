"""A fake daemon for each test, and a runner for either client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client.either import Runner
from client.fake_daemon import FakeDaemon, socket_path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a fake daemon with the given settings; returns it and its path."""
    daemons: list[FakeDaemon] = []

    def begin(**settings: Any) -> Any:
        daemon = FakeDaemon(**settings)
        folder = tmp_path / str(len(daemons))
        folder.mkdir()
        daemon.start(socket_path(folder))
        daemons.append(daemon)
        return daemon, socket_path(folder)

    yield begin
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def daemon(start: Callable[..., Any]) -> Any:
    """(fake daemon, its path)."""
    return start()


@pytest.fixture(params=["sync", "aio"])
def run(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)
