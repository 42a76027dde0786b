"""`vkqueue bench model`: what it reports, never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.daemon import Daemon
from support.models import write_mean

from .conftest import Run

TINY = ["--clients", "1,6", "--seconds", "0.2"]
FIGURES = {
    "clients", "requests_per_s", "samples_per_s", "p50_us", "p95_us", "p99_us", "samples_per_batch", "batch_sizes",
    "closed", "errors",
}  # fmt: skip


@pytest.mark.gpu
def test_a_folder_with_its_batcher_and_without(vkqueue: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, plot = write_mean(tmp_path), tmp_path / "plot.png"
    done = vkqueue(
        "bench",
        "model",
        str(model),
        *TINY,
        "--samples",
        "2",
        "--dimension",
        "seq=3:20",
        "--processes",
        "2",
        "--plot",
        str(plot),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["measured"]) == {"batched", "unbatched"}
    for points in report["measured"].values():
        assert [point["clients"] for point in points] == [1, 6]
        for point in points:
            assert set(point) == FIGURES
            assert 0 < point["p50_us"] <= point["p95_us"] <= point["p99_us"]
            assert point["samples_per_s"] == 2 * point["requests_per_s"] > 0
            assert point["errors"] == 0
            assert sum(point["batch_sizes"].values()) == sum(point["closed"].values()) > 0
    unbatched, batched = report["measured"]["unbatched"][1], report["measured"]["batched"][1]
    assert set(unbatched["batch_sizes"]) == {"2"}, "each request alone"
    assert max(map(int, batched["batch_sizes"])) > 2
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.gpu
def test_a_model_of_a_running_daemon_as_it_is(vkqueue: Run, daemon: Daemon, tmp_path: Path) -> None:
    import vkqueue as package

    with package.connect(daemon.path) as gpu:
        gpu.load_model(write_mean(tmp_path))
        done = vkqueue("bench", "model", "mean", *TINY, "--repeats", "2", "--socket", str(daemon.path))
        assert done.returncode == 0, done.stderr
        assert "as configured" in done.stdout
        assert "Batches with 6 clients, as configured: " in done.stdout
        assert [model.name for model in gpu.models()] == ["mean"]


@pytest.mark.gpu
def test_a_version_that_is_not_ready_is_not_measured(vkqueue: Run, tmp_path: Path) -> None:
    import vkqueue as package

    models = tmp_path / "models"
    models.mkdir()
    model = write_mean(models, version=1, changes="version_policy = { all = {} }\n")
    (model / "2").mkdir()
    (model / "2" / "weights.safetensors").write_bytes(b"none")
    running = Daemon(tmp_path, config=f'[models]\nrepository = "{models}"\n', validation=False)
    done = vkqueue(
        "bench", "model", "mean", "--clients", "2", "--seconds", "0.2", "--json", "--socket", str(running.path)
    )
    with package.connect(running.path) as gpu:
        assert {one.version: one.state for one in gpu.models()} == {1: "READY", 2: "UNAVAILABLE"}
        assert gpu.model("mean").statistics()["version"] == 1
    assert running.stop() == 0, running.log.read_text()
    assert done.returncode == 0, done.stderr
    [point] = json.loads(done.stdout)["measured"]["as configured"]
    assert point["samples_per_batch"] >= 1
    assert sum(point["batch_sizes"].values()) == sum(point["closed"].values()) > 0


@pytest.mark.gpu
def test_nothing_is_left_in_a_running_daemon(vkqueue: Run, daemon: Daemon, tmp_path: Path) -> None:
    import vkqueue as package

    done = vkqueue("bench", "model", str(write_mean(tmp_path)), *TINY, "--samples", "9", "--socket", str(daemon.path))
    assert done.returncode == 1
    assert "takes 8 at most (max_batch_size)" in done.stderr
    with package.connect(daemon.path) as gpu:
        assert not [model for model in gpu.models() if model.name.startswith("bench-")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["./no-such-folder"], "no-such-folder"),
        (["mean"], "say which daemon by --socket, or give a folder, such as ./mean"),
        (["./m", "--dimension", "seq"], "expected NAME=LOW:HIGH such as seq=16:64, got 'seq'"),
        (["./m", "--dimension", "seq=9:3"], "expected NAME=LOW:HIGH"),
        (["./m", "--values", "x=a:b"], "expected NAME=LOW:HIGH such as input_ids=0:30000"),
        (["./m", "--clients", "0"], "expected numbers from 1 to 1000"),
    ],
)
def test_what_is_wrong_is_said(vkqueue: Run, words: list[str], message: str) -> None:
    done = vkqueue("bench", "model", *words)
    assert done.returncode in (1, 2)
    assert message in done.stderr
