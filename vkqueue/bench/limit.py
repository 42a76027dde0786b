"""The C limit: built with the system's compiler when there is one, run on the device that the daemon uses."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from vkqueue.errors import UnsupportedError


def build(folder: Path, name: str) -> Path:
    """`name`.c of this package, compiled into `folder`.

    Raises:
        UnsupportedError: no C compiler, or no Vulkan headers or loader to build with; says what to install.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UnsupportedError("the C limit needs a C compiler (Debian: apt install gcc libvulkan-dev)")
    source, program = folder / f"{name}.c", folder / name
    source.write_text(resources.files("vkqueue.bench").joinpath(source.name).read_text())
    built = subprocess.run(
        [compiler, "-O2", str(source), "-o", str(program), "-lvulkan"], capture_output=True, text=True
    )
    if built.returncode:
        raise UnsupportedError(
            f"the C limit did not build (Debian: apt install libvulkan-dev):\n{built.stderr[-2000:]}"
        )
    return program


def _run(program: Path, *arguments: object) -> dict[str, Any]:
    """What it prints.

    Raises:
        UnsupportedError: it failed on this device.
    """
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedError(f"the C limit failed: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class Limit:
    """`dispatch_limit.c`, compiled into `folder`.

    Raises:
        UnsupportedError: as `build`.
    """

    def __init__(self, folder: Path, spirv: Path) -> None:
        self._program = build(folder, "dispatch_limit")
        self._spirv = spirv

    def run(self, uuid: str, *, jobs: int, batches: int, barrier: bool, in_flight: int, elements: int = 64) -> float:
        """Microseconds per job.

        Raises:
            UnsupportedError: it failed on this device.
        """
        result = _run(self._program, self._spirv, jobs, batches, int(barrier), elements, in_flight, uuid)
        return float(result["us_per_job"])


class CopyLimit:
    """`copy_limit.c`, compiled into `folder`.

    Raises:
        UnsupportedError: as `build`.
    """

    def __init__(self, folder: Path) -> None:
        self._program = build(folder, "copy_limit")

    def run(self, uuid: str, *, size: int, copies: int) -> tuple[float, float]:
        """GB/s of copies from shared memory to the device's own, and back.

        Raises:
            UnsupportedError: it failed on this device, which may not be able to import memory.
        """
        result = _run(self._program, size, copies, uuid)
        return float(result["up_gb_per_s"]), float(result["down_gb_per_s"])
