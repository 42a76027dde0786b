"""Graphs by the public API on a real daemon: an iteration written as NumPy code, eagerly and as a graph."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon

import vkqueue
import vkqueue.aio

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parents[1] / "gpu" / "kernels"
AXPY = Path(vkqueue.__file__).parent / "cli" / "kernels" / "axpy.spv"
N = 1000


def expected(x: Any, k: int, steps: int) -> Any:
    """y = 0; `steps` times: t = k (x + y), y = t + x."""
    y = np.zeros_like(x)
    for _ in range(steps):
        y = k * (x + y) + x
    return y


def test_a_loop_in_a_graph(daemon: Daemon) -> None:
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        scale, add = (gpu.load(KERNELS / f"{name}.spv").kernel for name in ("scale", "add"))
        with gpu.graph() as g:
            x, y, k = g.input("x", N, "int32"), g.output("y", N, "int32"), g.scalar("k", "int32")
            g.fill(y, 0)
            for _ in range(5):
                s, t = g.temporary(N, "int32"), g.temporary(N, "int32")
                add(x, y, s, elements=N)
                scale(s, t, scalars=[k], elements=N)
                add(t, x, y, elements=N)
        assert g.nodes == 16
        assert g.barriers == 15
        assert g.memory_bytes < 10 * 4 * N  # ten temporaries in the place of two
        data = np.arange(N, dtype=np.int32)
        futures = [g.submit(x=data + i, k=i) for i in range(8)]
        for i, future in enumerate(futures):
            assert np.array_equal(future.result(), expected(data + i, i, 5))
        on_device, result = gpu.array(data), gpu.zeros(N, "int32")
        for i in (3, 4):
            g(x=on_device, y=result, k=i)
            assert np.array_equal(result.numpy(), expected(data, i, 5))


def test_a_captured_step(daemon: Daemon) -> None:
    """Two arrays that feed each other, as in a simulation; then other arrays in their places."""
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        axpy = gpu.load(AXPY).kernel
        a, b = gpu.array(np.ones(N, np.float32)), gpu.zeros(N, "float32")
        with gpu.capture() as step:
            axpy(a, b, k=0.5, n=N, elements=N)
            axpy(b, a, k=-0.25, n=N, elements=N)
        p, q = np.float32(1), np.float32(0)
        for _ in range(20):
            step.submit()
            q += np.float32(0.5) * p
            p -= np.float32(0.25) * q
        assert np.allclose(a.numpy(), p) and np.allclose(b.numpy(), q)
        c, d = gpu.array(np.full(N, 2, np.float32)), gpu.zeros(N, "float32")
        step({a: c, b: d})
        assert (c.numpy()[0], d.numpy()[0]) == (1.75, 1.0)


def test_graphs_of_the_asyncio_client(daemon: Daemon) -> None:
    async def main() -> None:
        async with vkqueue.aio.connect(daemon.path) as gpu:
            scale = (await gpu.load(KERNELS / "scale.spv")).kernel
            async with gpu.graph() as g:
                x, t, y = g.input("x", N, "int32"), g.temporary(N, "int32"), g.output("y", N, "int32")
                await scale(x, t, scalars=[2], elements=N)
                await scale(t, y, scalars=[3], elements=N)
            data = np.arange(N, dtype=np.int32)
            results = await asyncio.gather(*(g(x=data + i) for i in range(20)))
            for i, result in enumerate(results):
                assert np.array_equal(result, 6 * (data + i))

    asyncio.run(main())
