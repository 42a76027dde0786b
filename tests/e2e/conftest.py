"""Daemons for the end-to-end tests: one for each way of binding descriptors, shared by the tests of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.daemon import Daemon


@pytest.fixture(scope="session", params=["push", "sets"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon under the validation layers; fails the session if they say anything off the allow list."""
    config = f'descriptors = "{request.param}"\n'
    running = Daemon(tmp_path_factory.mktemp(f"daemon-{request.param}"), config=config)
    yield running
    status = running.stop()
    assert not running.complaints(), "\n".join(running.complaints())[:4000]
    assert status == 0, running.log.read_text()[-4000:]


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
        running.stop()
        assert not running.complaints(), "\n".join(running.complaints())[:4000]


@pytest.fixture(autouse=True, scope="session")
def _needs_a_device() -> None:
    if "CI" not in os.environ and not os.environ.get("VK_DRIVER_FILES") and not Path("/usr/share/vulkan").exists():
        pytest.skip("no Vulkan driver on this machine")
