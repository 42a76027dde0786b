"""Models by the public API on a real daemon: the page's model, its batches, device arrays, loading and replacing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon
from support.models import GAIN, files, mean, write_mean

import vkqueue
import vkqueue.aio
from vkqueue import errors
from vkqueue.models import safetensors
from vkqueue.models.source import Weight

pytestmark = pytest.mark.gpu

F32 = np.float32


def samples(seed: int) -> Any:
    """A request: one to eight samples of 1 to 64 rows."""
    random = np.random.default_rng(seed)
    return random.integers(-50, 50, (random.integers(1, 9), random.integers(1, 65), 4)).astype(F32)


@pytest.fixture
def path(any_daemon: Daemon, tmp_path: Path) -> Path:
    """The socket of a daemon that has the model."""
    with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
        gpu.load_model(write_mean(tmp_path))
    return any_daemon.path


def test_the_page_does_what_it_says(any_daemon: Daemon, tmp_path: Path) -> None:
    write_mean(tmp_path)
    (tmp_path / "mean" / "weights.safetensors").unlink()  # the page writes it itself
    script = files()["use.py"]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "VKQUEUE_SOCKET": str(any_daemon.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", script, re.MULTILINE)


def test_many_threads_get_their_own_results(path: Path) -> None:
    with vkqueue.connect(path, timeout=30) as gpu, ThreadPoolExecutor(8) as pool:
        model = gpu.model("mean")
        before = model.statistics()

        def ask(seed: int) -> None:
            x = samples(seed)
            np.testing.assert_allclose(model.infer(x=x), mean(x), rtol=1e-5)

        list(pool.map(ask, range(100)))
        after = model.statistics()
    count = sum(len(samples(seed)) for seed in range(100))
    assert after["inference_count"] - before["inference_count"] == count
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 100
    assert after["execution_count"] - before["execution_count"] <= 100
    assert {batch["batch_size"] for batch in after["batch_stats"]} <= set(range(1, 9))


async def test_requests_of_a_burst_share_batches(path: Path) -> None:
    async with vkqueue.aio.connect(path) as gpu, vkqueue.aio.connect(path) as other:
        models = [await client.model("mean") for client in (gpu, other)]
        before = await models[0].statistics()
        x = samples(1)[:1, :1].repeat(3, 1)
        tasks = [models[i % 2].infer(x=x + i, timing=True) for i in range(64)]
        answers = await asyncio.gather(*tasks)
        for i, (y, timing) in enumerate(answers):
            np.testing.assert_allclose(y, mean(x + i), rtol=1e-5)
            assert 1 <= timing.batch <= 8 and 0 <= timing.queued_us <= timing.total_us
        after = await models[0].statistics()
    batches = after["execution_count"] - before["execution_count"]
    assert batches < 64
    assert sum(after["closed"].values()) - sum(before["closed"].values()) == batches


def test_device_arrays(path: Path) -> None:
    with vkqueue.connect(path, timeout=30) as gpu:
        model = gpu.model("mean")
        x = samples(3)
        here, there = gpu.array(x), gpu.zeros((10, 4), "float32")
        assert model.infer(x=here, outputs={"y": there[1 : 1 + len(x)]}) is None
        expected = np.zeros((10, 4))
        expected[1 : 1 + len(x)] = mean(x)
        np.testing.assert_allclose(there.numpy(), expected, rtol=1e-5)
        futures = [model.submit(x=here[:1]) for _ in range(5)]
        for future in futures:
            np.testing.assert_allclose(future.result(), mean(x[:1]), rtol=1e-5)


def test_a_loaded_model_is_replaced_and_unloaded(path: Path, tmp_path: Path) -> None:
    """Requests that are under way meanwhile get the old one's results or the new one's, and all get some."""
    x = samples(4)
    with vkqueue.connect(path, timeout=30) as gpu, vkqueue.connect(path, timeout=30) as other:
        model = other.model("mean")
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(gpu.load_model, write_mean(tmp_path, 2 * GAIN))
            answers = [model.infer(x=x)]
            while not loading.done():
                answers.append(model.infer(x=x))
            loading.result()
        for y in answers:
            assert np.allclose(y, mean(x), rtol=1e-5) or np.allclose(y, 2 * mean(x), rtol=1e-5)
        np.testing.assert_allclose(model.infer(x=x), 2 * mean(x), rtol=1e-5)
        assert vkqueue.ModelInfo("mean", 1, "READY", device=0) in gpu.models()
        gpu.unload_model("mean")
        assert "mean" not in {one.name for one in gpu.models() if one.state == "READY"}
        with pytest.raises(errors.NotFoundError, match="mean"):
            model.infer(x=x)
        with pytest.raises(errors.NotFoundError, match="mean"):
            gpu.unload_model("mean")


def test_from_modules_and_arrays(any_daemon: Daemon, tmp_path: Path) -> None:
    """A model outlives what it was made of, and the connection that made it."""
    config = {
        "max_batch_size": 4,
        "dimensions": {"seq": {"min": 1, "max": 9}},
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": ["seq", 4]},
            {"name": "lengths", "kind": "LENGTHS", "of": "seq"},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
        "kernel": [{"name": "k"}],
        "node": [
            {
                "kernel": "k", "args": ["x", "lengths", "weights.g", "y"], "scalars": ["batch", "seq"],
                "grid": ["ceil(batch * 4, 64)"],
            }
        ],
    }  # fmt: skip
    folder = write_mean(tmp_path)
    x = samples(5)[:1, :7]
    x = np.ascontiguousarray(np.broadcast_to(x, (3, *x.shape[1:])))
    for weight in (GAIN, None):
        with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
            module = gpu.load(folder / "mean.comp")
            g = gpu.array(np.concatenate([GAIN, 3 * GAIN]))[4:] if weight is None else weight
            gpu.load_model("made", config, kernels={"k": module}, weights={"g": g}, version=5)
        with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
            model = gpu.model("made", 5)
            np.testing.assert_allclose(model.infer(x=x), mean(x) * (3 if weight is None else 1), rtol=1e-5)
            assert model.config["version"] == 5 and model.config["instance_group"] == {"count": 2}
            with pytest.raises(errors.NotFoundError):
                gpu.model("made", 4)
    with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
        gpu.unload_model("made")


QUEUE = """
[dynamic_batching]
preferred_batch_size = [8]
max_queue_delay_microseconds = 3_600_000_000
[dynamic_batching.default_queue_policy]
max_queue_size = 2
allow_timeout_override = true
"""


def test_what_becomes_of_requests_that_wait(any_daemon: Daemon, tmp_path: Path) -> None:
    """Of a model that waits an hour for a batch of eight."""
    folder = write_mean(tmp_path)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(re.sub(r"\n\[dynamic_batching\]\n.*\n", QUEUE, config))
    x = samples(7)[:1, :4]
    with vkqueue.connect(any_daemon.path, timeout=30) as gpu, vkqueue.connect(any_daemon.path, timeout=30) as other:
        model = gpu.load_model(folder)
        before = model.statistics()
        with pytest.raises(errors.JobExpiredError, match="mean"):
            model.infer(x=x, timeout=0.01)
        waiting = model.submit(x=x)
        assert waiting.cancel()
        with pytest.raises(errors.JobCancelledError):
            waiting.result()
        full = [model.submit(x=x + i) for i in range(2)]
        gpu.ping()
        with pytest.raises(errors.OverloadedError, match="max_queue_size"):
            other.model("mean").infer(x=x)
        for future in full:
            assert future.cancel()

        async def impatient() -> None:
            async with vkqueue.aio.connect(any_daemon.path) as patient:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for((await patient.model("mean")).infer(x=x), 0.05)
                assert (await patient.model_statistics("mean"))[0]["queued"] == 0

        asyncio.run(impatient())
        eight = np.ascontiguousarray(np.broadcast_to(x, (8, *x.shape[1:])))
        y, timing = model.infer(x=eight, timing=True)
        np.testing.assert_allclose(y, mean(eight), rtol=1e-5)
        assert timing.batch == 8
        after = model.statistics()
        gpu.unload_model("mean")
    counted = ("expired", "cancelled", "rejected", "inference_count", "execution_count")
    assert [after[key] - before[key] for key in counted] == [1, 4, 1, 8, 1]


def test_an_ensemble(any_daemon: Daemon, tmp_path: Path) -> None:
    """mean(x) as rows of one, and their mean again: the gain twice."""
    write_mean(tmp_path)
    again = write_mean(tmp_path, 2 * GAIN).rename(tmp_path / "again")
    config = tomllib.loads((again / "config.toml").read_text()) | {"name": "again", "dimensions": {}}
    config["input"] = [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    config["temporary"] = [{"name": "ones", "size": "batch * 4"}]
    (node,) = config["node"]
    node["args"][1], node["scalars"]["seq"] = "ones", 1
    config["node"] = [{"fill": "ones", "value": 1}, node]
    steps = [
        {"model_name": "again", "input_map": {"x": "half"}, "output_map": {"y": "out"}},
        {"model_name": "mean", "input_map": {"x": "in"}, "output_map": {"y": "half"}},
    ]
    whole = {
        "max_batch_size": 16,
        "dynamic_batching": {},
        "input": [{"name": "in", "data_type": "TYPE_FP32", "dims": ["rows", 4]}],
        "output": [{"name": "out", "data_type": "TYPE_FP32", "dims": [4]}],
        "ensemble_scheduling": {"step": steps},
    }
    with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
        gpu.load_model(write_mean(tmp_path))
        gpu.load_model("again", config, kernels={"mean": again / "mean.comp"}, weights={"gain": 2 * GAIN})
        model = gpu.load_model("both", whole)
        for seed in range(5):
            x = samples(seed)
            np.testing.assert_allclose(model.infer({"in": x}), 2 * GAIN * mean(x), rtol=1e-5)
        with pytest.raises(errors.InvalidError, match="64"):
            model.infer({"in": np.zeros((1, 65, 4), F32)})
        gpu.unload_model("both")
        gpu.unload_model("again")


def test_weights_that_no_message_carries(start: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start(config="[limits]\nmax_message_bytes = 1048576\nmax_module_bytes = 1048576\n")
    folder = write_mean(tmp_path)
    large = np.random.default_rng(8).integers(0, 255, 3 << 20, np.uint8).tobytes()
    weights = {"other": Weight("U8", (len(large),), large), "gain": Weight("F32", (4,), GAIN.tobytes())}
    safetensors.write(folder / "weights.safetensors", weights)
    x = samples(8)
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        np.testing.assert_allclose(gpu.load_model(folder).infer(x=x), mean(x), rtol=1e-5)


def test_a_repository(start: Callable[..., Daemon], tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    write_mean(models, GAIN, 1)
    write_mean(models, 2 * GAIN, 2, "version_policy = { all = {} }\n")
    (models / "broken").mkdir()
    (models / "broken" / "config.toml").write_text("max_batch_size = -1\n")
    daemon = start(config=f'[models]\nrepository = "{models}"\n')
    x = samples(6)
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        found = {(one.name, one.version): one for one in wait_until_loaded(gpu)}
        assert found["mean", 1].state == found["mean", 2].state == "READY"
        (broken,) = (one for one in found.values() if one.name == "broken")
        assert broken.state == "UNAVAILABLE" and "max_batch_size" in broken.reason
        for version, factor in ((1, 1), (2, 2), (None, 2)):
            np.testing.assert_allclose(gpu.model("mean", version).infer(x=x), factor * mean(x), rtol=1e-5)
        write_mean(models, 7 * GAIN, 3, "version_policy = { all = {} }\n")
        with pytest.raises(errors.NotFoundError):
            gpu.model("mean", 3)
        model = gpu.load_model("mean", version=3)
        np.testing.assert_allclose(model.infer(x=x), 7 * mean(x), rtol=1e-5)
        with pytest.raises(errors.NotFoundError):
            gpu.load_model("absent")


def test_what_was_loaded_is_called_though_a_later_version_is_ready(any_daemon: Daemon, tmp_path: Path) -> None:
    x, lower = samples(7), tmp_path / "lower"
    lower.mkdir()
    with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
        third = gpu.load_model(write_mean(tmp_path, 3 * GAIN, 3))
        first = gpu.load_model(write_mean(lower, GAIN, 1))
        assert (third.version, first.version, gpu.model("mean").version) == (3, 1, None)
        np.testing.assert_allclose(first.infer(x=x), mean(x), rtol=1e-5)
        np.testing.assert_allclose(third.infer(x=x), 3 * mean(x), rtol=1e-5)
        np.testing.assert_allclose(gpu.model("mean").infer(x=x), 3 * mean(x), rtol=1e-5)
        assert first.config["version"] == 1

    async def again() -> None:
        async with vkqueue.aio.connect(any_daemon.path) as gpu:
            loaded = await gpu.load_model(lower / "mean")
            assert loaded.version == loaded.config["version"] == 1
            np.testing.assert_allclose(await loaded.infer(x=x), mean(x), rtol=1e-5)

    asyncio.run(again())


def wait_until_loaded(gpu: vkqueue.Client) -> list[vkqueue.ModelInfo]:
    """All models, once none is being loaded."""
    for _ in range(600):
        models = gpu.models()
        if models and all(one.state != "LOADING" for one in models):
            return models
        gpu.ping()
        time.sleep(0.05)
    raise AssertionError(gpu.models())


def test_errors_of_the_daemon_name_the_place(any_daemon: Daemon, tmp_path: Path) -> None:
    with vkqueue.connect(any_daemon.path, timeout=30) as gpu:
        folder = write_mean(tmp_path)
        text = (folder / "config.toml").read_text()
        for old, new, message in (
            ('"weights.gain"', '"weights.gian"', "gain"),
            ('"ceil(batch * 4, 64)"', '"ceil(batch * row, 64)"', "row"),
            ("max_batch_size = 8", "max_batch_size = -8", "max_batch_size"),
            ('["seq", 4]', '["sec", 4]', "sec"),
        ):
            (folder / "config.toml").write_text(text.replace(old, new))
            with pytest.raises(errors.InvalidError, match=message):
                gpu.load_model(folder)
        (folder / "config.toml").write_text(text)
        (folder / "mean.comp").write_text("void main() { nothing(); }")
        with pytest.raises(errors.CompileError):
            gpu.load_model(folder)
