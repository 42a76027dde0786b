"""How this program starts Python processes of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])


def command(module: str, *arguments: str) -> list[str]:
    """Run a module of this very package. -P: the working directory is the user's, and no place to import from."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Where the child finds the package, also from a checkout that is not installed."""
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}
