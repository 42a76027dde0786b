"""Child processes of the checks: whatever happens to one is a text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# As long as the probe of a driver may take.
TIMEOUT_S = 20.0
_ROOT = str(Path(__file__).resolve().parents[3])


def ask(kind: str, library: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What `loader_child` says; {error} also when it does not live to say it."""
    path = os.pathsep.join(filter(None, (_ROOT, environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-P", "-m", "vkqueue.cli.checks.loader_child", kind, library]
    done = run(command, {**environ, "PYTHONPATH": path})
    if isinstance(done, str):
        return {"error": done}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"the process that opened it {fate(done.returncode)}"}
    return answer


def run(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str] | str:
    """A finished process, or why there is none."""
    try:
        return subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"did not end within {TIMEOUT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)


def fate(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"crashed ({signal.Signals(-status).name})"
    except ValueError:
        return f"crashed (signal {-status})"
