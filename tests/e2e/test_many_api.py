"""kernel.many by the public API, on a real daemon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from client.either import Runner, ready, submitted
from support.daemon import Daemon

import vkqueue

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parents[1] / "gpu" / "kernels"
N = 64


@pytest.fixture(params=["sync", "aio"])
def run(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


def test_rows_scalars_and_grids(run: Runner, daemon: Daemon) -> None:
    async def body(gpu: object) -> None:
        scale = (await ready(gpu.load(KERNELS / "scale.spv"))).kernel  # type: ignore[attr-defined]
        x = await ready(gpu.array(np.arange(N, dtype="int32")))  # type: ignore[attr-defined]
        rows = await ready(gpu.zeros((500, N), "int32"))  # type: ignore[attr-defined]
        factors = np.arange(500)
        assert await ready(scale.many(x, vkqueue.each(rows), scalars={"m0": factors}, elements=N)) is None
        assert (await ready(rows.numpy()) == np.arange(N) * factors[:, None]).all()
        # Backwards, every other launch doing nothing, from data that travels along.
        back = vkqueue.each(rows, np.arange(500)[::-1])
        timed = await ready(
            scale.many(np.ones(N, "int32"), back, scalars={"m0": factors}, grid=factors % 2, timing=True)
        )
        assert timed.value is None and timed.timing.total_us > 0
        expected = np.where((factors[::-1] % 2 == 1)[:, None], factors[::-1, None], np.arange(N) * factors[:, None])
        assert (await ready(rows.numpy()) == expected).all()

    run(body, str(daemon.path))


def test_lists_of_arrays_futures_and_order(run: Runner, daemon: Daemon) -> None:
    async def body(gpu: object) -> None:
        increment = (await ready(gpu.load(KERNELS / "increment.spv"))).kernel  # type: ignore[attr-defined]
        arrays = [await ready(gpu.zeros(N, "int32")) for _ in range(40)]  # type: ignore[attr-defined]
        ours = vkqueue.each(arrays)
        futures = [await submitted(increment.submit_many(ours, grid=1)) for _ in range(3)]
        last = await submitted(increment.submit_many(arrays[0], count=5, grid=1, after=futures))
        assert await ready(last) is None
        assert (await ready(arrays[0].numpy()) == 8).all() and (await ready(arrays[39].numpy()) == 3).all()
        for array in arrays[1:]:
            array.free()
        with pytest.raises(vkqueue.InvalidError, match="was freed"):
            await ready(increment.many(ours, grid=1))

    run(body, str(daemon.path))


def test_errors_come_from_either_side(run: Runner, daemon: Daemon) -> None:
    async def body(gpu: object) -> None:
        increment = (await ready(gpu.load(KERNELS / "increment.spv"))).kernel  # type: ignore[attr-defined]
        rows = await ready(gpu.zeros((8, N), "int32"))  # type: ignore[attr-defined]
        most = gpu.limits.max_many_launches  # type: ignore[attr-defined]
        with pytest.raises(vkqueue.InvalidError, match="max_many_launches"):
            await ready(increment.many(rows, count=most + 1, grid=1))
        grids = np.ones((8, 3), int)
        grids[5, 1] = 2**31
        with pytest.raises(vkqueue.InvalidError, match=r"launch 5: grid\[1\]") as caught:
            await ready(increment.many(vkqueue.each(rows), grid=grids))
        assert caught.value.data is not None and caught.value.data["launch"] == 5
        assert (await ready(rows.numpy()) == 0).all()

    run(body, str(daemon.path))
