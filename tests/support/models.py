"""The model of docs/models.md, from the page itself."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkqueue.models import safetensors
from vkqueue.models.source import Weight

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
GAIN = np.array([1, 10, 100, 1000], np.float32)


def files() -> dict[str, str]:
    """The files that the page shows, by name."""
    return dict(re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def write_mean(folder: Path, gain: Any = GAIN, version: int | None = None, changes: str = "") -> Path:
    """The model's folder in `folder`, its weights in the folder of a version if one is named.

    Args:
        changes: put before the configuration.
    """
    if not (shutil.which("glslc") or shutil.which("glslangValidator")):
        pytest.skip("no compiler is installed")
    model = folder / "mean"
    model.mkdir(exist_ok=True)
    (model / "mean.comp").write_text(files()["mean.comp"])
    (model / "config.toml").write_text(changes + files()["config.toml"])
    place = model if version is None else model / str(version)
    place.mkdir(exist_ok=True)
    weight = Weight("F32", gain.shape, gain.astype(np.float32).tobytes())
    safetensors.write(place / "weights.safetensors", {"gain": weight})
    return model


def mean(x: Any, gain: Any = GAIN) -> Any:
    """What it computes, in NumPy."""
    return x.mean(1, dtype=np.float64) * gain
