"""Arrays in memory that is shared, and copies between arrays, by both clients."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client.either import Runner, ready, submitted

import vkqueue
import vkqueue.aio
from vkqueue import errors

F32 = np.float32


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No descriptor, and no memory."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert not [link for link in map(target, set(os.listdir("/proc/self/fd")) - before) if "memfd:" in link]
    assert "memfd:vkqueue" not in Path("/proc/self/maps").read_text()


def target(file: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except FileNotFoundError:
        return ""


def test_a_kernel_works_on_what_numpy_shows(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        axpy = (await ready(gpu.load(b"fake:axpy"))).kernel
        x, y = await ready(gpu.shared(100, "f4")), await ready(gpu.shared_like(np.empty(100, F32)))
        assert isinstance(x, vkqueue.SharedArray if run.kind == "sync" else vkqueue.aio.AsyncSharedArray)
        assert (x.shape, x.dtype, x.nbytes, x.offset) == ((100,), F32, 400, 0)
        theirs, ours = await ready(x.numpy()), await ready(y.numpy())
        assert not ours.any() and ours.flags.writeable
        theirs[:] = np.arange(100)
        assert await ready(axpy(x, y, a=2, n=100, elements=100)) is None
        assert np.array_equal(ours, 2 * np.arange(100))
        assert np.shares_memory(ours, await ready(y.numpy()))
        await ready(y.set(np.ones(100, F32)))
        await ready(axpy(x, y, a=1, n=100, elements=100))
        copy = await ready(y.get())
        assert np.array_equal(copy, np.arange(100) + 1) and not np.shares_memory(copy, ours)
        assert np.array_equal(await ready(await submitted(y.submit_get())), copy)
        await ready(await submitted(y.submit_set(np.zeros(100, F32))))
        assert not ours.any()
        written = [params for method, params in daemon[0].log if method == "buffer.share"]
        assert written == [{"size": 400, "as": 2}, {"size": 400, "as": 3}]

    run(body, daemon[1])


def test_with_contents_and_of_a_form(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        values = np.arange(6, dtype=np.int64).reshape(2, 3)
        a = await ready(gpu.shared_array(values[:, ::-1]))
        assert np.array_equal(await ready(a.numpy()), values[:, ::-1])
        b = await ready(gpu.shared_array([1, 2], "f8", device=0))
        assert (await ready(b.numpy())).dtype == np.float64
        c = await ready(gpu.shared_like(a))
        assert (c.shape, c.dtype) == (a.shape, a.dtype)
        assert not (await ready(c.numpy())).any()
        empty = await ready(gpu.shared((3, 0), "f4"))
        assert (await ready(empty.numpy())).shape == (3, 0)
        assert empty.wire() == [empty.handle.id, 0, 0]
        scalar = await ready(gpu.shared((), "f4"))
        (await ready(scalar.numpy()))[...] = 7
        assert (await ready(scalar.get())) == 7
        with pytest.raises(errors.InvalidError, match="shape"):
            await ready(gpu.shared(-1, "f4"))
        with pytest.raises(errors.InvalidError, match="dtype"):
            await ready(gpu.shared_like(np.array([None])))

    run(body, daemon[1])


def test_views_are_of_the_same_memory(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        a = await ready(gpu.shared((4, 8), "f4"))
        whole = await ready(a.numpy())
        for view, expected in (
            (a[1:3], whole[1:3]),
            (a[2], whole[2]),
            (a[1:][1][4:], whole[2][4:]),
            (a.reshape(8, 4), whole.reshape(8, 4)),
            (a[1].view("u4"), whole[1].view("u4")),
        ):
            assert type(view) is type(a)
            shown = await ready(view.numpy())
            assert np.shares_memory(shown, expected) and shown.shape == expected.shape and shown.dtype == expected.dtype
            assert shown.ctypes.data == expected.ctypes.data
        await ready(a[3].set(np.arange(8, dtype=F32)))
        assert np.array_equal(whole[3], np.arange(8))

    run(body, daemon[1])


def test_numpy_waits_for_the_work_that_was_started(run: Runner, daemon: Any) -> None:
    fake, path = daemon

    async def body(gpu: Any) -> None:
        fill = (await ready(gpu.load(b"fake:fill"))).kernel
        a, other = await ready(gpu.shared(64, "f4")), await ready(gpu.shared(64, "f4"))
        shown = await ready(a.numpy())
        looks = (a.numpy, a.get, a.wait, lambda: a.set(np.ones(64, F32)))
        await ready(gpu.flush())
        with fake.hold():
            future = await submitted(fill.submit(a[:32], value=3, grid=1))
            assert not (await ready(other.numpy())).any(), "other arrays need not wait"
            for look in looks:
                if run.kind == "sync":
                    gpu.timeout = 0.02
                    with pytest.raises(TimeoutError, match="work with the array"):
                        look()
                    gpu.timeout = 30
                else:
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(look(), 0.02)
            assert not future.done(), "nobody has cancelled it"
        assert np.array_equal((await ready(a.numpy()))[:32], np.full(32, 3))
        assert future.done() and shown[0] == 3

    run(body, path)


def test_copies_between_arrays(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        shared = await ready(gpu.shared_array(np.arange(12, dtype=F32).reshape(3, 4)))
        own = await ready(gpu.zeros((3, 4), "f4"))
        await ready(own.copy_from(shared))
        assert np.array_equal(await ready(own.get()), np.arange(12).reshape(3, 4))
        await ready(own[0].copy_to(own[2]))
        future = await submitted(own[1:].submit_copy_to(shared[:2]))
        assert await ready(future) is None
        assert np.array_equal(await ready(shared.numpy()), [[4, 5, 6, 7], [0, 1, 2, 3], [8, 9, 10, 11]])
        await ready(await submitted(shared[0].submit_copy_from(shared[2])))
        assert np.array_equal((await ready(shared.numpy()))[0], [8, 9, 10, 11])
        with pytest.raises(errors.InvalidError, match=r"a copy of \(4,\) float32 to \(3, 4\) float32"):
            await ready(own.copy_from(shared[0]))
        with pytest.raises(errors.InvalidError, match="a copy of .* int32 to .* float32"):
            await ready(own.copy_from(shared.view("i4", (3, 4))))
        with pytest.raises(errors.InvalidError, match="overlap"):
            await ready(own[:2].copy_to(own[1:]))
        own.free()
        with pytest.raises(errors.InvalidError, match="the target of the copy was freed"):
            await ready(shared.copy_to(own))

    run(body, daemon[1])


def test_arrays_of_two_connections_are_not_copied(run: Runner, daemon: Any) -> None:
    with vkqueue.connect(daemon[1]) as other:
        theirs = other.zeros(4, "f4")

        async def body(gpu: Any) -> None:
            ours = await ready(gpu.zeros(4, "f4"))
            with pytest.raises(errors.InvalidError, match="the source is an array of another connection"):
                await ready(ours.copy_from(theirs))

        run(body, daemon[1])


def test_a_view_outlives_the_array_and_the_connection(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> tuple[Any, Any]:
        with await ready(gpu.shared_array(np.arange(4, dtype=F32))) as a:
            view = await ready(a.numpy())
        with pytest.raises(errors.InvalidError, match="the shared array was freed"):
            await ready(a.numpy())
        await ready(gpu.flush())
        assert daemon[0].buffers() == 0
        kept = await ready(gpu.shared_array([5, 6]))
        return view, (await ready(kept.numpy()))[1:]

    view, kept = run(body, daemon[1])
    gc.collect()
    assert np.array_equal(view, np.arange(4))
    view[0] = 9
    assert kept[0] == 6


def test_an_array_that_is_collected_is_freed(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        a = await ready(gpu.shared(4, "f4"))
        part = a[1:]
        del a
        gc.collect()
        await ready(gpu.flush())
        assert daemon[0].buffers() == 1
        del part
        gc.collect()
        await ready(gpu.flush())
        assert daemon[0].buffers() == 0

    run(body, daemon[1])


def test_numpy_functions_see_the_memory(daemon: Any) -> None:
    with vkqueue.connect(daemon[1]) as gpu:
        a = gpu.shared_array(np.arange(4, dtype=F32))
        assert np.shares_memory(np.asarray(a), a.numpy())
        assert np.sum(a) == 6
        assert not np.shares_memory(a.__array__(copy=True), a.numpy())
        assert np.asarray(a, np.float64).dtype == np.float64
        with pytest.raises(ValueError, match="only as a copy"):
            a.__array__(np.float64, copy=False)
        assert np.shares_memory(a.__array__(copy=False), a.numpy())


def test_what_cannot_be_shared_is_told_to_whoever_uses_it(run: Runner, start: Callable[..., Any]) -> None:
    _, path = start(max_memory=1000)

    async def body(gpu: Any) -> None:
        a = await ready(gpu.shared(1000, "f4"))
        with pytest.raises(errors.QuotaError):
            await ready(gpu.flush())
        with pytest.raises(errors.QuotaError):
            await ready(a.numpy())
        b = await ready(gpu.shared(10, "f4"))
        assert (await ready(b.numpy())).size == 10

    run(body, path)


def test_requests_that_are_held_back_keep_their_own_memory(run: Runner, start: Callable[..., Any]) -> None:
    _, path = start(max_queued_jobs=2)

    async def many(gpu: Any) -> list[Any]:
        if run.kind == "sync":
            return [gpu.shared_array([i]) for i in range(8)]
        return list(await asyncio.gather(*(gpu.shared_array([i]) for i in range(8))))

    async def body(gpu: Any) -> None:
        for i, array in enumerate(await many(gpu)):
            assert list(await ready(await submitted(array.submit_get()))) == [i]

    run(body, path)


def test_a_connection_that_breaks_closes_what_waited(run: Runner, start: Callable[..., Any]) -> None:
    fake, path = start(max_queued_jobs=1)

    async def body(gpu: Any) -> None:
        tasks = []
        with fake.hold():
            if run.kind == "sync":
                gpu.timeout = 0.02
                gpu.shared(4, "f4")
                with pytest.raises(TimeoutError):
                    gpu.shared(4, "f4")  # held back
            else:
                tasks = [asyncio.ensure_future(gpu.shared(4, "f4")) for _ in range(3)]
                await asyncio.sleep(0)
            fake.drop()
            with pytest.raises(errors.ConnectionLostError):
                await ready(gpu.ping())
            await asyncio.gather(*tasks, return_exceptions=True) if tasks else None

    run(body, path)


def test_a_batch_of_shares_carries_each_its_own(daemon: Any) -> None:
    with vkqueue.connect(daemon[1]) as gpu:
        with gpu.batch():
            arrays = [gpu.shared_array([i, i]) for i in range(20)]
            mixed = [gpu.array(np.full(40_000, i)) for i in range(3)]  # larger ones, sent without a copy, between
            more = gpu.shared_array([99])
        for i, array in enumerate(arrays):
            assert list(array.submit_get().result()) == [i, i]
        assert list(more.submit_get().result()) == [99]
        assert [int(m.get()[0]) for m in mixed] == [0, 1, 2]


def test_a_forked_child_leaves_the_connection_alone(daemon: Any) -> None:
    with vkqueue.connect(daemon[1]) as gpu:
        a = gpu.shared_array([1, 2, 3])
        view = a.numpy()
        child = os.fork()
        if child == 0:
            try:
                a.numpy()
            except errors.ConnectionLostError:
                view[0] = 7  # the memory is common to all who have it
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert list(a.submit_get().result()) == [7, 2, 3]
