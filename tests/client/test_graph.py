"""Graphs by both clients: what is recorded, what is sent, what comes back."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from client.either import Runner, ready, submitted

import vkqueue
from vkqueue import errors

F32 = np.float32


class recorded:
    """`async with recorded(gpu.graph()) as g` for either client."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.is_async = hasattr(graph, "__aenter__")

    async def __aenter__(self) -> Any:
        return await self.graph.__aenter__() if self.is_async else self.graph.__enter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        if self.is_async:
            await self.graph.__aexit__(*exc_info)
        else:
            self.graph.__exit__(*exc_info)


async def kernels(gpu: Any, names: str) -> list[Any]:
    module = await ready(gpu.load(b"fake:" + names.encode()))
    return [module[name] for name in names.split(",")]


async def doubled(gpu: Any) -> Any:
    """y = k x, twice over, through a temporary."""
    axpy, copy = await kernels(gpu, "axpy,copy")
    async with recorded(gpu.graph()) as g:
        x, y = g.input("x", (4, 16), F32), g.output("y", (4, 16), F32)
        t, k = g.temporary((4, 16), F32), g.scalar("k", F32)
        assert await ready(copy(x, t, elements=64)) is None
        await ready(axpy(x, t, a=k, n=64, elements=64))
        await ready(copy(t, y, grid=1))
    return g


def test_a_graph_with_data_that_is_sent_along(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        g = await doubled(gpu)
        assert (g.nodes, g.barriers, g.memory_bytes) == (3, 2, 256)
        x = np.arange(64, dtype=F32).reshape(4, 16)
        y = await ready(g(x=x, k=2))
        assert y.dtype == F32 and y.shape == (4, 16)
        assert np.array_equal(y, 3 * x)
        future = await submitted(g.submit(x=x.tolist(), k=np.float32(0.5)))
        assert np.array_equal(await ready(future if hasattr(future, "__await__") else future.result()), 1.5 * x)

    run(body, daemon[1])
    create, first, _ = [params for method, params in daemon[0].log if method.startswith("graph.")][:3]
    assert create == {
        "nodes": [
            {"kernel": [1, "copy"], "args": ["x", "t0"], "grid": [1]},
            {"kernel": [1, "axpy"], "args": ["x", "t0"], "scalars": {"n": 64, "a": {"scalar": "k"}}, "grid": [1]},
            {"kernel": [1, "copy"], "args": ["t0", "y"], "grid": [1]},
        ],
        "inputs": {"x": 256}, "outputs": {"y": 256}, "temporaries": {"t0": 256}, "scalars": {"k": "float32"}, "as": 2,
    }  # fmt: skip
    assert first["buffers"].keys() == {"x", "y"} and first["buffers"]["y"] == {"out": 256}


def test_device_arrays_stay_where_they_are(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        g = await doubled(gpu)
        x = await ready(gpu.array(np.ones((8, 16), F32)))
        y = await ready(gpu.zeros((4, 16), F32))
        for k in (1.0, 2.0):
            assert await ready(g(x=x[4:], y=y, k=k)) is None
            assert np.array_equal(await ready(y.numpy()), np.full((4, 16), k + 1, F32))

    run(body, daemon[1])
    launches = [params for method, params in daemon[0].log if method == "graph.launch"]
    assert launches[0] == {"graph": 2, "buffers": {"x": [3, 256, 256], "y": 4}, "scalars": {"k": 1.0}}


def test_repeated_launches_are_the_same_bytes_and_see_what_was_freed(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        [copy] = await kernels(gpu, "copy")
        async with recorded(gpu.graph()) as g:
            await ready(copy(g.input("x", 4, F32), g.output("y", 4, F32), elements=4))
        x, y = await ready(gpu.array(np.ones(4, F32))), await ready(gpu.zeros(4, F32))
        for _ in range(3):
            await ready(g(x=x, y=y))
        await ready(g(y=y, x=x))
        y.free()
        with pytest.raises(errors.InvalidError, match="y: the device array was freed"):
            await ready(g(x=x, y=y))
        g.free()
        with pytest.raises(errors.InvalidError, match="the graph was freed"):
            await ready(g(x=x))
        assert "freed" in repr(g)
        await ready(gpu.flush())

    run(body, daemon[1])
    launches = [params for method, params in daemon[0].log if method == "graph.launch"]
    assert launches == [{"graph": 2, "buffers": {"x": 3, "y": 4}}] * 4
    assert ("graph.free", {"graph": 2}) in daemon[0].log


def test_inputs_that_kernels_write_and_several_results(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        swap, copy = await kernels(gpu, "swap,copy")
        async with recorded(gpu.graph()) as g:
            a, b, c = g.input("a", 4, F32), g.input("b", 4, F32), g.output("c", 2, F32)
            await ready(swap(a, b, grid=1))
            g.copy(a[2:], c)
        a, b = np.arange(4, dtype=F32), np.arange(4, 8, dtype=F32)
        got_a, got_b, got_c = await ready(g(a=a, b=b))
        assert [got_a.tolist(), got_b.tolist(), got_c.tolist()] == [[4, 5, 6, 7], [0, 1, 2, 3], [6, 7]]
        assert a[0] == 0
        device = await ready(gpu.array(b))
        got_a, got_c = await ready(g(a=a, b=device))
        assert got_a.tolist() == [4, 5, 6, 7]
        value, timing = await ready(g(a=device, b=device, timing=True, priority=1, label="x", deadline=9))
        assert value.tolist() == [2, 3] and timing.total_us == 2

    run(body, daemon[1])


def test_a_captured_graph(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        axpy, copy = await kernels(gpu, "axpy,copy")
        x, y, z = [await ready(gpu.array(np.full(64, v, F32))) for v in (1, 2, 3)]
        async with recorded(gpu.capture()) as g:
            await ready(axpy(x, y, a=2.0, n=64, elements=64))
            await ready(copy(y[32:], z[:32], elements=32))
            g.fill(x[:4], 9)
        assert (await ready(y.numpy()))[0] == 2  # nothing ran
        for expected in (4, 6):
            assert await ready(g()) is None
            assert (await ready(y.numpy()))[63] == expected
        assert (await ready(z.numpy()))[31] == 6
        x2, y2 = await ready(gpu.array(np.ones(64, F32))), await ready(gpu.zeros(64, F32))
        await ready(g({x: x2, y: y2}))
        assert ((await ready(y2.numpy()))[0], (await ready(x2.numpy()))[0]) == (2, 9)
        got = await ready(g({y: np.zeros(64, F32)}))
        assert got[63] == 2
        with pytest.raises(errors.InvalidError, match="was not used in the graph"):
            await ready(g({x2: x}))
        with pytest.raises(errors.InvalidError, match="the graph takes 256 bytes, got 128"):
            await ready(g({x: x2[:32]}))
        x.free()
        with pytest.raises(errors.InvalidError, match="was freed"):
            await ready(g())

    run(body, daemon[1])
    [create] = [params for method, params in daemon[0].log if method == "graph.create"]
    assert create["inputs"] == {"a0": 256, "a1": 256, "a2": 256}
    assert create["nodes"][1]["args"] == [["a1", 128, 128], ["a2", 0, 128]]
    first, second = [params for method, params in daemon[0].log if method == "graph.launch"][:2]
    assert first == second == {"graph": 5, "buffers": {"a0": 2, "a1": 3, "a2": 4}}


def test_what_may_stand_in_a_call(run: Runner, daemon: Any) -> None:
    """Constant data, uniform blocks, arrays of descriptors, views, device arrays that stay the same."""

    async def body(gpu: Any) -> None:
        axpy, affine, pick = await kernels(gpu, "axpy,affine,pick")
        fixed = await ready(gpu.array(np.full(64, 5, F32)))
        async with recorded(gpu.graph()) as g:
            x, y, n = g.input("x", 64, F32), g.output("y", 64, F32), g.scalar("n", "uint32")
            await ready(pick(y, [x, fixed, x.view(np.int32), x.reshape(8, 8)], scalars=[1], grid=(n,)))
            await ready(axpy(np.ones(64, F32), y, scalars={"n": n, "a": 3.0}, grid=[n]))
            await ready(affine({"scale": 2.0, "bounds": (0, 12)}, y, elements=64))
        assert (await ready(g(x=np.zeros(64, F32), n=64))).tolist() == [12.0] * 64

    run(body, daemon[1])


@pytest.mark.parametrize(
    ("value", "dtype", "word"),
    [(1.5, "float32", 0x3FC00000), (-1, "int32", 0xFFFFFFFF), (7, "uint8", 0x07070707), (3, "int16", 0x00030003),
     (0, "int64", 0), (-1, "int64", 0xFFFFFFFF), (0.0, "float64", 0), (True, "bool", 0x01010101)],
)  # fmt: skip
def test_fills(daemon: Any, value: Any, dtype: str, word: int) -> None:
    with vkqueue.connect(daemon[1]) as gpu, gpu.graph() as g:
        g.fill(g.output("y", 64, dtype), value)
    assert daemon[0].log[1][1]["nodes"] == [{"fill": "y", "value": word}]


@pytest.mark.parametrize(
    ("value", "dtype"), [(1, "int64"), (1.5, "int32"), (300, "uint8"), ("a", "int32"), ([1], "int32")]
)
def test_values_that_do_not_fill(daemon: Any, value: Any, dtype: str) -> None:
    with vkqueue.connect(daemon[1]) as gpu, pytest.raises(errors.InvalidError, match="fill: "), gpu.graph() as g:
        g.fill(g.output("y", 64, dtype), value)
    assert [method for method, _ in daemon[0].log] == ["hello"]


def test_misuse_is_told_where_it_happens(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        axpy, copy = await kernels(gpu, "axpy,copy")
        x = await ready(gpu.zeros(64, F32))
        g = gpu.graph()
        with pytest.raises(errors.InvalidError, match="inside its `with` block"):
            g.input("x", 4, F32)
        with pytest.raises(errors.InvalidError, match="not made yet"):
            await ready(g())
        async with recorded(g):
            s, o = g.input("s", 64, F32), g.output("o", 64, F32)
            for wrong, says in (
                (lambda: g.input("s", 4, F32), "has a 's' already"),
                (lambda: g.output("timing", 4, F32), "a name in a graph"),
                (lambda: g.scalar("2", F32), "a name in a graph"),
                (lambda: g.scalar("c", "complex64"), "no kernel takes a complex64"),
                (lambda: g.copy(s[:2], o), "8 bytes do not fit 256"),
                (lambda: g.copy(np.zeros(4), o), "expected a symbol"),
                (lambda: g.fill(o, g.scalar("d", "float64")), "the target holds float32"),
            ):
                with pytest.raises(errors.InvalidError, match=says):
                    wrong()
            for call, says in (
                (lambda: axpy(s, o, a=1.0, n="4", elements=64), "expected an integer"),
                (lambda: axpy(s, o, a=1.0, n=g.scalar("f", F32), elements=64), "expected an integer"),
                (lambda: axpy(s, o, a=1.0, n=4, elements=g.scalar("e", "int32")), "counts work groups only"),
                (lambda: axpy(s, np.zeros(64, F32), a=1.0, n=4, grid=1), "results stay on the device"),
                (lambda: copy(s, vkqueue.out(64, F32), grid=1), "results stay on the device"),
                (lambda: copy(s, o, grid=1, timing=True), "timing: not of a call in a graph"),
            ):
                with pytest.raises(errors.InvalidError, match=says):
                    await ready(call())
            with pytest.raises(errors.InvalidError, match="being recorded here"):
                async with recorded(gpu.graph()):
                    pass
            await ready(copy(s, o, grid=1))
            with pytest.raises(errors.InvalidError, match="not made yet"):
                _ = g.barriers
        with pytest.raises(errors.InvalidError, match="'s' belongs to a graph"):
            await ready(copy(s, x, grid=1))
        with pytest.raises(errors.InvalidError, match="this graph was recorded"):
            async with recorded(g):
                pass
        scalars = {"d": 1.0, "f": 1.0, "e": 1}
        for values, says in (
            ({}, "input 's' is missing"), ({"s": x, "u": x}, "takes no 'u'"), ({"s": x[:2]}, "got 8 bytes"),
            ({"s": x.view("int32")}, "of float32, got 256 bytes of int32"), ({"s": np.zeros(3, F32)}, "shape"),
            ({"s": x, "o": np.zeros(64, F32)}, "give a device array, or leave it out"),
        ):  # fmt: skip
            with pytest.raises(errors.InvalidError, match=says):
                await ready(g(**values, **scalars))
        with pytest.raises(errors.InvalidError, match="scalar 'd' is missing"):
            await ready(g(s=x))

    run(body, daemon[1])


def test_graphs_that_are_not_made(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        [copy] = await kernels(gpu, "copy")
        with pytest.raises(errors.InvalidError, match="the graph is empty"):
            async with recorded(gpu.graph()):
                pass
        with pytest.raises(errors.InvalidError, match="writes its output 'y'"):
            async with recorded(gpu.graph()) as g:
                await ready(copy(g.input("x", 4, F32), g.temporary(4, F32), grid=1))
                g.output("y", 4, F32)
        with pytest.raises(KeyError):
            async with recorded(gpu.graph()) as g:
                raise KeyError
        # Nothing is recorded any more.
        x, y = await ready(gpu.array(np.ones(4, F32))), await ready(gpu.zeros(4, F32))
        await ready(copy(x, y, elements=4))
        assert (await ready(y.numpy())).tolist() == [1] * 4

    run(body, daemon[1])


def test_other_threads_and_connections_go_on_while_a_graph_is_recorded(daemon: Any) -> None:
    with vkqueue.connect(daemon[1]) as gpu, vkqueue.connect(daemon[1]) as other:
        fill, theirs = gpu.load(b"fake:fill").kernel, other.load(b"fake:fill").kernel
        x, y = gpu.zeros(64, F32), other.zeros(64, F32)
        with gpu.graph() as g:
            fill(g.output("y", 64, F32), value=1.0, elements=64)
            thread = threading.Thread(target=lambda: fill(x, value=2.0, elements=64))
            thread.start()
            thread.join()
            theirs(y, value=3.0, elements=64)
        assert (x.numpy()[0], y.numpy()[0], g()[0]) == (2, 3, 1)
        assert g.nodes == 1


def test_large_data_goes_through_buffers(run: Runner, start: Any) -> None:
    daemon = start(max_message_bytes=66_000)

    async def body(gpu: Any) -> None:
        [swap] = await kernels(gpu, "swap")
        async with recorded(gpu.graph()) as g:
            await ready(swap(g.input("a", 20_000, F32), g.input("b", 20_000, F32), grid=1))
        a, b = np.arange(20_000, dtype=F32), np.ones(20_000, F32)
        got_a, got_b = await ready(g(a=a, b=b))
        assert np.array_equal(got_a, b) and np.array_equal(got_b, a)

    run(body, daemon[1])
    assert daemon[0].log[-1][0] == "buffer.free"


def test_a_graph_that_nobody_holds_is_freed(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        g = await doubled(gpu)
        await ready(g(x=np.zeros((4, 16), F32), k=1.0))
        del g
        gc.collect()
        await ready(gpu.flush())

    run(body, daemon[1])
    assert ("graph.free", {"graph": 2}) in daemon[0].log


def test_a_creation_that_fails_is_told_at_the_end_of_the_block(run: Runner, daemon: Any) -> None:
    async def body(gpu: Any) -> None:
        module = await ready(gpu.load(b"fake:copy"))
        with pytest.raises(errors.NotFoundError, match="no such handle: 1"):
            async with recorded(gpu.graph()) as g:
                await ready(module.kernel(g.input("x", 4, F32), g.output("y", 4, F32), grid=1))
                daemon[0].call(daemon[0].sessions[0].modules.clear)

    run(body, daemon[1])
