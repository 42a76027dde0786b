"""Producers and consumers over asyncio: several tasks make blocks of signal, others have them filtered on the device.

Shows vkqueue.aio: a bounded queue that keeps producers from running ahead, device arrays that are reused for block
after block, a wait that gives other tasks their turn, and one failure that ends everything cleanly.

    python examples/pipeline.py [--producers 4] [--consumers 3] [--blocks 24]

Every result is compared with NumPy's; the first that differs ends it with an error. It uses your daemon, and starts
one if none runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vkqueue.aio

KERNEL = Path(__file__).parent / "axpy/axpy.spv"
SIZE = 16_384

Block = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Work:
    """A block of a producer's, and what has to come of it: block + gain * carrier, as often as `times`."""

    producer: int
    number: int
    block: Block
    gain: float
    times: int


async def produce(producer: int, blocks: int, queue: asyncio.Queue[Work]) -> None:
    """Make blocks; `put` waits while the queue is full, so at most a few blocks exist at once."""
    rng = np.random.default_rng(producer)
    for number in range(blocks):
        block = rng.integers(-100, 100, SIZE).astype("float32")
        await queue.put(Work(producer, number, block, float(rng.integers(1, 9)), int(rng.integers(1, 6))))


async def consume(
    gpu: vkqueue.aio.AsyncClient, axpy: vkqueue.aio.AsyncKernel, carrier: Block, queue: asyncio.Queue[Work]
) -> int:
    """Take blocks until cancelled. The two arrays on the device are this task's for all its blocks."""
    on_device, wave = await gpu.zeros(SIZE, "float32"), await gpu.array(carrier)
    done = 0
    with on_device, wave, contextlib.suppress(asyncio.CancelledError):
        while True:
            work = await queue.get()
            await on_device.submit_set(work.block)
            for _ in range(work.times):  # in order, since each writes what the one before it wrote
                await axpy.submit(wave, on_device, n=SIZE, k=work.gain, elements=SIZE)
            result = await on_device.numpy()  # behind all of these; meanwhile other tasks run
            if not np.array_equal(result, work.block + work.times * work.gain * carrier):
                raise ValueError(f"block {work.number} of producer {work.producer} came back wrong")
            done += 1
            queue.task_done()
    return done


async def run(producers: int, consumers: int, blocks: int) -> list[int]:
    """How many blocks each consumer did."""
    carrier = np.resize(np.arange(-8, 8, dtype="float32"), SIZE)
    queue: asyncio.Queue[Work] = asyncio.Queue(maxsize=2 * consumers)
    async with vkqueue.aio.connect(spawn=True) as gpu:
        axpy = (await gpu.load(KERNEL)).kernel
        async with asyncio.TaskGroup() as tasks:  # a consumer that fails ends the others, and the producers
            taking = [tasks.create_task(consume(gpu, axpy, carrier, queue)) for _ in range(consumers)]
            making = [tasks.create_task(produce(number, blocks, queue)) for number in range(producers)]
            await asyncio.wait(making)
            await queue.join()
            for task in taking:
                task.cancel()
    return [task.result() for task in taking]


def main() -> None:
    parser = argparse.ArgumentParser(description="Producers and consumers over asyncio.")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=24, help="of each producer")
    options = parser.parse_args()

    started = time.perf_counter()
    done = asyncio.run(run(options.producers, options.consumers, options.blocks))
    seconds = time.perf_counter() - started
    shares = ", ".join(map(str, done))
    print(f"{sum(done)} blocks of {options.producers} producers right, by consumers {shares}, in {seconds:.2f} s")


if __name__ == "__main__":
    main()
