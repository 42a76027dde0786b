"""What an installed spirv-val says of a module. Advice, unless `isolation.spirv_val` is "strict": releases as old as
Debian 12's reject modules of Slang, Zig, IREE and naga that are right and that drivers run.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.confine import workspace

_TIMEOUT_S = 10.0  # arbitrary; a large module takes a tenth of a second
_MAX_TEXT = 2000


def spirv_val(spirv: bytes, api_version: str) -> tuple[bool, str] | None:
    """(whether spirv-val is content, what it says); None where it is not installed.

    Args:
        api_version: of the device that it is to be valid for, such as "1.3.230".
    """
    program = shutil.which("spirv-val")
    if program is None:
        return None
    environment = f"vulkan{'.'.join(api_version.split('.')[:2])}"
    with workspace() as folder:
        file = folder / "module.spv"
        file.write_bytes(spirv)
        done = _run([program, "--target-env", environment, str(file)])
        if done.returncode and "target environment" in done.stdout:  # one that is newer than the program
            done = _run([program, str(file)])
        return done.returncode == 0, done.stdout.replace(str(file), "module").strip()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"spirv-val took longer than {_TIMEOUT_S:g} s")


def validate(payload: bytes, shaders: Sequence[tuple[int, int]], api_version: str) -> None:
    """Hold every shader (first byte and size in `payload`) to what spirv-val says.

    Raises:
        InvalidError: spirv-val rejects one; the message has its text.
        UnsupportedError: it is not installed.
    """
    for start, size in shaders:
        said = spirv_val(payload[start : start + size], api_version)
        if said is None:
            raise UnsupportedError(
                "isolation.spirv_val is strict, but the daemon finds no spirv-val (package spirv-tools)"
            )
        content, text = said
        if not content:
            raise InvalidError(f"spirv-val rejects the module (isolation.spirv_val is strict): {text[:_MAX_TEXT]}")
