"""Programs of other projects that are used where they are installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence

# Arbitrary; they take milliseconds, but a module may be hostile.
_TIMEOUT_S = 20.0


def spirv_dis(spirv: bytes) -> str | None:
    """spirv-dis' listing; None where it is not installed, or does not take the module."""
    done = _run("spirv-dis", ["--no-color"], spirv)
    return None if done is None or done.returncode else done.stdout


def _run(program: str, options: Sequence[str], spirv: bytes) -> subprocess.CompletedProcess[str] | None:
    path = shutil.which(program)
    if path is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".spv") as file:
        file.write(spirv)
        file.flush()
        try:
            return subprocess.run(
                [path, *options, file.name],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess([path], 1, "", f"{program} took longer than {_TIMEOUT_S:g} s")
