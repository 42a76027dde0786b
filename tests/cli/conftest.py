"""What the commands run on: lavapipe where it is installed, else the driver that the caller names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.daemon import Daemon, lavapipe_environment

from vkqueue.bench import child

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def vkqueue(tmp_path: Path) -> Run:
    """Run the command line in an empty folder, with more environment variables."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**lavapipe_environment(), **child.environment(), "COLUMNS": "100", **variables}
        environment.setdefault("XDG_CACHE_HOME", str(tmp_path))
        command = child.command("vkqueue", *words)
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=50)

    return run


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A running daemon, as somebody else has started it."""
    running = Daemon(tmp_path, validation=False)
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture(autouse=True)
def _gpu_tests_need_a_driver(request: pytest.FixtureRequest) -> None:
    """Without one they are skipped, but for CI, where they fail."""
    if request.node.get_closest_marker("gpu") and "CI" not in os.environ:
        if not os.environ.get("VK_DRIVER_FILES") and not list(Path("/usr/share/vulkan").glob("icd.d/*.json")):
            pytest.skip("no Vulkan driver on this machine")
