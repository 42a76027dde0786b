"""One client process of `vkqueue demo`: runs one kernel in one way, and compares every result with NumPy's.

``python -m vkqueue.cli.demo_client SOCKET KERNEL WAY ROUNDS``. It says "ready" once its kernel has run, waits for a
line on standard input, works, and ends with a line of JSON. All numbers are small integers, also where they are
floats, so results are equal to the last bit in whatever order they were added.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from vkqueue.client.array import out
from vkqueue.client.future import Future
from vkqueue.client.sync import Client, Kernel, connect

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Work with a known result.

    Attributes:
        launches: that have a share in the result.
        start: sends them, and returns the future of the result without waiting.
    """

    launches: int
    expected: Array
    start: Callable[[], Future[Array]]


def kernel_bytes(name: str) -> bytes:
    """The SPIR-V of one of the demo's kernels."""
    return resources.files("vkqueue.cli").joinpath("kernels", f"{name}.spv").read_bytes()


def axpy_arrays(gpu: Client, axpy: Kernel, rng: np.random.Generator) -> Iterator[Case]:
    """Chains of launches that add to one device array; only its end is read."""
    for n in (1, 1_000, 65_539):
        x, y = (rng.integers(-99, 99, n).astype("float32") for _ in range(2))
        on_device = gpu.array(x)

        def start(n: int = n, x: Any = on_device, y: Array = y) -> Future[Array]:
            total = gpu.array(y)
            for k in range(1, 33):
                axpy.submit(x, total, n=n, k=k, elements=n)
            return total.submit_get()

        yield Case(32, y + np.float32(sum(range(1, 33))) * x, start)


def axpy_inline(gpu: Client, axpy: Kernel, rng: np.random.Generator) -> Iterator[Case]:
    """Single launches whose arrays travel with them."""
    for n in (1, 7, 64, 1_000, 4_096, 20_000):
        x, y = (rng.integers(-99, 99, n).astype("float32") for _ in range(2))

        def start(n: int = n, x: Array = x, y: Array = y) -> Future[Array]:
            return axpy.submit(x, y, n=n, k=3, elements=n)

        yield Case(1, y + np.float32(3) * x, start)


def matmul_arrays(gpu: Client, matmul: Kernel, rng: np.random.Generator) -> Iterator[Case]:
    """Products of three matrices, the one between staying on the device."""
    for n in (16, 65, 128):
        a, b, c = (rng.integers(-9, 9, (n, n)).astype("float32") for _ in range(3))
        first, second, third = map(gpu.array, (a, b, c))

        def start(n: int = n, a: Any = first, b: Any = second, c: Any = third) -> Future[Array]:
            between, product = gpu.empty((n, n), "float32"), gpu.empty((n, n), "float32")
            matmul.submit(a, b, between, m=n, n=n, k=n, elements=(n, n))
            matmul.submit(between, c, product, m=n, n=n, k=n, elements=(n, n))
            return product.submit_get()

        yield Case(2, a @ b @ c, start)


def matmul_inline(gpu: Client, matmul: Kernel, rng: np.random.Generator) -> Iterator[Case]:
    """Products of matrices of all kinds of shapes."""
    for m, n, k in ((1, 1, 1), (33, 17, 65), (100, 3, 50), (96, 96, 96)):
        a, b = rng.integers(-9, 9, (m, k)).astype("float32"), rng.integers(-9, 9, (k, n)).astype("float32")

        def start(m: int = m, n: int = n, k: int = k, a: Array = a, b: Array = b) -> Future[Array]:
            return matmul.submit(a, b, out((m, n), "float32"), m=m, n=n, k=k, elements=(n, m))

        yield Case(1, a @ b, start)


def histogram_arrays(gpu: Client, histogram: Kernel, rng: np.random.Generator) -> Iterator[Case]:
    """Bytes on the device counted several times over into one array."""
    for size in (4, 4_096, 262_144):
        data = rng.integers(0, 256, size, dtype=np.uint8)
        on_device = gpu.array(data)

        def start(size: int = size, data: Any = on_device) -> Future[Array]:
            counts = gpu.zeros(256, "uint32")
            for _ in range(4):
                histogram.submit(data, counts, words=size // 4, grid=8)
            return counts.submit_get()

        yield Case(4, 4 * np.bincount(data, minlength=256).astype("uint32"), start)


def histogram_inline(gpu: Client, histogram: Kernel, rng: np.random.Generator) -> Iterator[Case]:
    """Bytes that travel with the launch; the counts come back."""
    for size in (4, 1_024, 30_000, 131_072):
        data = rng.integers(0, 256, size, dtype=np.uint8)

        def start(size: int = size, data: Array = data) -> Future[Array]:
            return histogram.submit(data, out(256, "uint32"), words=size // 4, grid=4)

        yield Case(1, np.bincount(data, minlength=256).astype("uint32"), start)


Cases = Callable[[Client, Kernel, np.random.Generator], Iterator[Case]]

WAYS: dict[tuple[str, str], tuple[Cases, str]] = {
    ("axpy", "arrays"): (axpy_arrays, "1 - 65,539"),
    ("axpy", "inline"): (axpy_inline, "1 - 20,000"),
    ("matmul", "arrays"): (matmul_arrays, "16x16 - 128x128"),
    ("matmul", "inline"): (matmul_inline, "1x1 - 100x50"),
    ("histogram", "arrays"): (histogram_arrays, "4 B - 256 KiB"),
    ("histogram", "inline"): (histogram_inline, "4 B - 128 KiB"),
}
"""(kernel, way) → its cases, and their sizes for people. With "arrays" data stays on the device."""


def work(cases: list[Case], rounds: int) -> dict[str, Any]:
    """Every case `rounds` times; a round is sent whole before its results are waited for."""
    launches = checked = wrong = 0
    started = time.perf_counter()
    for _ in range(rounds):
        for case, future in [(case, case.start()) for case in cases]:
            result = future.result()
            launches += case.launches
            checked += 1
            wrong += not np.array_equal(result, case.expected)
    seconds = time.perf_counter() - started
    return {"jobs": launches, "checked": checked, "wrong": wrong, "seconds": round(seconds, 3)}


def main() -> None:
    path, name, way, rounds = sys.argv[1:]
    with connect(path, client_name=f"demo {name} {way}") as gpu:
        kernel = gpu.load(kernel_bytes(name), name=name).kernel
        cases = list(WAYS[name, way][0](gpu, kernel, np.random.default_rng(1)))
        for case in cases:
            case.start().result()  # the pipeline is built
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(work(cases, int(rounds))), flush=True)


if __name__ == "__main__":
    main()
