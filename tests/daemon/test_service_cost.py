"""Batches bounded by the time that they take on the device, learned from those before; what `stats` says of it."""

from __future__ import annotations

from collections.abc import Callable

from support.inprocess import Rig, axpy

from vkqueue.model import DISPATCH, ROW_GRID, ROW_OP

BOUNDED = {"batching": {"max_batch_gpu_ms": 10, "max_batch_delay_us": 0, "batches_in_flight": 1}}


async def test_a_batch_closes_before_it_would_pass_its_time(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config=BOUNDED)
    rig.thread.row_ns = lambda row: row[ROW_GRID][0] * 1_000_000 if row[ROW_OP] == DISPATCH else 1000
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    for _ in range(2):
        client.call("dispatch", **axpy(module, x, y, grid=[3]))

    client.launch(module, x, y)
    client.burst(*[("dispatch", axpy(module, x, y, grid=[3]))] * 8)
    sizes = []
    while rig.thread.batches:
        sizes.append(len(rig.thread.finish().rows))
    assert sizes == [1, 3, 3, 2]
    told = client.call("stats")["devices"][0]["gpu_time"]
    assert (told["batches_bounded"], told["slow_kernels"], told["max_batch_gpu_ms"]) == (2, 1, 10)
    assert told["predictions"] > 0
    assert told["mean_absolute_error"] == told["bias"] == 0


async def test_without_a_bound_nothing_is_timed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"max_batch_gpu_ms": 0}})
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    for _ in range(100):
        client.call("dispatch", **axpy(module, x, y))
    assert not any(getattr(item, "timed", False) for item in rig.thread.posted)
    assert client.call("stats")["devices"][0]["gpu_time"]["predictions"] == 0
