"""Daemons for the end-to-end tests: one for each way of binding descriptors, shared by the tests of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.daemon import Daemon
from support.rawclient import RawClient


@pytest.fixture(scope="session")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Daemon]]:
    """The shared daemons under the validation layers, by how they bind descriptors; started on first use. The session
    fails if the layers say anything off the allow list, or one does not end as it should."""
    running: dict[str, Daemon] = {}

    def by_descriptors(how: str) -> Daemon:
        if how not in running:
            running[how] = Daemon(tmp_path_factory.mktemp(f"daemon-{how}"), config=f'descriptors = "{how}"\n')
        return running[how]

    yield by_descriptors
    ended = [(daemon, daemon.stop()) for daemon in running.values()]
    for daemon, status in ended:
        assert not daemon.complaints(), "\n".join(daemon.complaints())[:4000]
        assert status == 0, daemon.log.read_text()[-4000:]


@pytest.fixture(params=["push", "sets"])
def daemon(request: pytest.FixtureRequest, daemons: Callable[[str], Daemon]) -> Daemon:
    """A daemon for each way of binding descriptors."""
    return daemons(request.param)


@pytest.fixture
def any_daemon(daemons: Callable[[str], Daemon]) -> Daemon:
    """One daemon, for what has nothing to do with descriptors."""
    return daemons("push")


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    """A connection to each of the daemons."""
    with daemon.client() as client:
        yield client


@pytest.fixture
def any_client(any_daemon: Daemon) -> Iterator[RawClient]:
    """A connection to one daemon."""
    with any_daemon.client() as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons of a test's own; each is stopped, and held to a clean end, afterwards."""
    started: list[Daemon] = []

    def start(**options: object) -> Daemon:
        folder = tmp_path / f"daemon{len(started)}"
        folder.mkdir()
        started.append(Daemon(folder, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for running in started:
        alive = running.process.poll() is None
        status = running.stop()
        assert not running.complaints(), "\n".join(running.complaints())[:4000]
        assert status == 0 or not alive, running.log.read_text()[-4000:]


@pytest.fixture(autouse=True, scope="session")
def _needs_a_device() -> None:
    if "CI" not in os.environ and not os.environ.get("VK_DRIVER_FILES") and not Path("/usr/share/vulkan").exists():
        pytest.skip("no Vulkan driver on this machine")
