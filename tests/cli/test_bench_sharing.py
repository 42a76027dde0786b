"""What the bench measures of shared memory, never how fast."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.daemon import Daemon, lavapipe_environment

from vkqueue.bench.limit import CopyLimit
from vkqueue.bench.sharing import compare
from vkqueue.bench.window import DEPTHS
from vkqueue.errors import UnsupportedError

pytestmark = pytest.mark.gpu

SIZE = 1 << 20


OURS = {f"{way}{depth}_gb_per_s" for way in ("up", "down") for depth in DEPTHS}


def uuid_of(daemon: Daemon) -> str:
    with daemon.client() as client:
        return str(client.welcome["devices"][0]["uuid"])


def test_figures_beside_c(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lavapipe_environment().items():
        monkeypatch.setenv(name, value)
    try:
        limit = CopyLimit(tmp_path)
    except UnsupportedError as error:  # a machine without a compiler; CI has one
        assert shutil.which("cc") is None or not Path("/usr/include/vulkan").exists()
        pytest.skip(error.message)
    report = compare(str(daemon.path), limit, uuid_of(daemon), repeats=2, size=SIZE)
    assert report["bytes"] == SIZE
    assert set(report["medians"]) == {*OURS, "c_up_gb_per_s", "c_down_gb_per_s"}
    assert set(report["ratios"]) == {name.removesuffix("_gb_per_s") for name in OURS}
    assert all(value > 0 for value in (*report["medians"].values(), *report["ratios"].values()))


def test_figures_without_c(daemon: Daemon) -> None:
    report = compare(str(daemon.path), None, uuid_of(daemon), repeats=1, size=SIZE)
    assert set(report["medians"]) == OURS
    assert report["ratios"] == {}


def test_c_says_why_it_cannot(tmp_path: Path) -> None:
    try:
        limit = CopyLimit(tmp_path)
    except UnsupportedError as error:
        pytest.skip(error.message)
    with pytest.raises(UnsupportedError, match="the C limit failed: no device 00000000000000000000000000000000"):
        limit.run("0" * 32, size=SIZE, copies=1)
