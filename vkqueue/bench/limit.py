"""The C limit: built with the system's compiler when there is one, run on the device that the daemon uses."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from vkqueue.errors import UnsupportedError


class Limit:
    """`dispatch_limit.c`, compiled into `folder`.

    Raises:
        UnsupportedError: no C compiler, or no Vulkan headers or loader to build with; says what to install.
    """

    def __init__(self, folder: Path, spirv: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise UnsupportedError("the C limit needs a C compiler (Debian: apt install gcc libvulkan-dev)")
        source = folder / "dispatch_limit.c"
        source.write_text(resources.files("vkqueue.bench").joinpath("dispatch_limit.c").read_text())
        self._program = folder / "dispatch_limit"
        self._spirv = spirv
        built = subprocess.run(
            [compiler, "-O2", str(source), "-o", str(self._program), "-lvulkan"], capture_output=True, text=True
        )
        if built.returncode:
            raise UnsupportedError(
                f"the C limit did not build (Debian: apt install libvulkan-dev):\n{built.stderr[-2000:]}"
            )

    def run(self, uuid: str, *, jobs: int, batches: int, barrier: bool, in_flight: int, elements: int = 64) -> float:
        """Microseconds per job.

        Raises:
            UnsupportedError: it failed on this device.
        """
        arguments = [jobs, batches, int(barrier), elements, in_flight, uuid]
        done = subprocess.run(
            [str(self._program), str(self._spirv), *map(str, arguments)], capture_output=True, text=True
        )
        if done.returncode:
            raise UnsupportedError(f"the C limit failed: {done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout)
        return float(result["us_per_job"])
