"""A daemon under the validation layers for all examples, and how they are run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.daemon import Daemon

import vkqueue

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Running, as the examples find it; fails the session if the layers say anything off the allow list."""
    running = Daemon(tmp_path_factory.mktemp("examples"))
    yield running
    status = running.stop()
    assert not running.complaints(), "\n".join(running.complaints())[:4000]
    assert status == 0, running.log.read_text()[-4000:]


@pytest.fixture
def gpu(daemon: Daemon) -> Iterator[vkqueue.Client]:
    with vkqueue.connect(daemon.path, timeout=30) as client:
        yield client


@pytest.fixture
def run(daemon: Daemon, tmp_path: Path) -> Run:
    """Run a command as a user does, in an empty folder; an example by its name in examples/."""

    def run(command: str | Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
        file = EXAMPLES / command
        line = [sys.executable, "-W", "error", file] if file.suffix == ".py" else [command]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [*map(str, line), *map(str, words)],
            env={**os.environ, "VKQUEUE_SOCKET": str(daemon.path), "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert done.stderr == ""
        return done

    return run


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import an example by its name in examples/."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{Path(name).stem}", EXAMPLES / name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def _gpu_tests_need_a_driver(request: pytest.FixtureRequest) -> None:
    """Without one they are skipped, but for CI, where they fail."""
    if request.node.get_closest_marker("gpu") and "CI" not in os.environ:
        if not os.environ.get("VK_DRIVER_FILES") and not list(Path("/usr/share/vulkan").glob("icd.d/*.json")):
            pytest.skip("no Vulkan driver on this machine")
