"""`vkqueue model` on a real daemon, from a folder to statistics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.daemon import Daemon
from support.models import mean, write_mean

from .conftest import Run

pytestmark = pytest.mark.gpu


def test_from_a_folder_to_statistics(vkqueue: Run, daemon: Daemon, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = vkqueue("model", *words, "--socket", str(daemon.path))
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "elsewhere").mkdir()
    write_mean(tmp_path)
    signature = "x: float32 (batch, seq, 4) → y: float32 (batch, 4)"
    assert "no models" in run("list")
    assert run("load", "./mean") == f"mean 1 is ready: {signature}\n"
    assert "READY" in run("list")
    x = np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    np.save(tmp_path / "x.npy", x)
    shown = run("infer", "mean", "x.npy", "--out", "y=y.npy", "--timing")
    assert "y.npy" in shown
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), mean(x), rtol=1e-5)
    answer = json.loads(run("infer", "mean", "ones:3x4", "--json"))
    assert answer["results"][0]["head"] == [1, 10, 100, 1000]
    config = run("config", "mean")
    assert config.startswith(f"# version 1: {signature}\n")
    (tmp_path / "mean" / "config.toml").write_text(config)  # it is one
    run("load", "./mean")
    stats = json.loads(run("stats", "mean", "--json"))["model_stats"][0]
    assert (stats["name"], stats["version"]) == ("mean", 1)
    run("infer", "mean", "ones:3x4")
    assert "closed because" in run("stats", "mean")
    write_mean(tmp_path, version=3)
    assert run("load", "./mean") == f"mean 3 is ready: {signature}\n"
    write_mean(tmp_path / "elsewhere", version=2)
    assert run("load", "./elsewhere/mean") == f"mean 2 is ready: {signature}\n"
    run("unload", "mean")
    done = vkqueue("model", "infer", "mean", "ones:3x4", "--socket", str(daemon.path))
    assert done.returncode == 1 and done.stderr.startswith("vkqueue: not_found:")
