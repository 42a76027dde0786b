"""What only the asyncio client has to prove: cancellation, tasks, the loop's pass as a batch."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import vkqueue.aio
from vkqueue import errors

F32 = np.float32


async def turns(count: int = 3) -> None:
    """Let the loop run some passes."""
    for _ in range(count):
        await asyncio.sleep(0)


async def queued(fake: Any, count: int) -> None:
    """Return once the daemon has so much work queued."""
    for _ in range(100_000):
        if fake.queued() == count:
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def test_a_cancelled_await_takes_the_work_back(daemon: Any) -> None:
    fake, path = daemon
    async with vkqueue.aio.connect(path) as gpu:
        copy = (await gpu.load(b"fake:copy")).kernel
        with fake.hold():
            with anyio.move_on_after(0.001) as scope:
                await copy(b"1234", 4, grid=1)
            assert scope.cancelled_caught
            future = await copy.submit(b"5678", 4, grid=1)
            waiting = asyncio.ensure_future(future.wait())
            await turns()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await gpu.ping()
            assert fake.queued() == 1
        assert (await future).tobytes() == b"5678"
        assert (await copy(b"9abc", 4, grid=1)).tobytes() == b"9abc"
    assert fake.methods().count("cancel") == 1


async def test_cancelled_while_it_is_written(daemon: Any) -> None:
    """Half of a large message is out: the rest has to follow before anything else."""
    fake, path = daemon
    data = np.arange(1 << 20, dtype=F32)
    async with vkqueue.aio.connect(path) as gpu:
        copy = (await gpu.load(b"fake:copy")).kernel
        with fake.pause():
            for action in (copy(data, data.nbytes, elements=data.size), gpu.array(data), gpu.load(bytes(1 << 20))):
                with anyio.move_on_after(0.001) as scope:
                    await action
                assert scope.cancelled_caught
        await gpu.flush()
        assert (await copy(data, data.nbytes, elements=data.size)).tobytes() == data.tobytes()


async def test_many_tasks(daemon: Any) -> None:
    fake, path = daemon
    async with vkqueue.aio.connect(path) as gpu:
        axpy = (await gpu.load(b"fake:axpy")).kernel

        async def work(seed: int) -> None:
            mine = await gpu.zeros(64, F32)
            ones = np.full(64, seed, F32)
            await asyncio.gather(*(axpy(ones, mine, a=1, n=64, grid=1) for _ in range(10)))
            assert (await mine.get())[63] == 10 * seed

        async with asyncio.TaskGroup() as group:
            for seed in range(20):
                group.create_task(work(seed))


async def test_what_is_started_in_one_pass_leaves_together(daemon: Any) -> None:
    async with vkqueue.aio.connect(daemon[1]) as gpu:
        axpy = (await gpu.load(b"fake:axpy")).kernel
        x, y = await gpu.array(np.ones(4, F32)), await gpu.zeros(4, F32)
        await axpy(x, y, a=1, n=4, grid=1)
        writes: list[int] = []
        push = gpu.link._push
        gpu.link._push = lambda: (writes.append(gpu.core.session.bytes_out), push())  # type: ignore[method-assign]
        await asyncio.gather(*(axpy(x, y, a=1, n=4, grid=1) for _ in range(100)))
        assert len(writes) == 1


async def test_two_tasks_wait_for_one_future(daemon: Any) -> None:
    fake, path = daemon
    async with vkqueue.aio.connect(path) as gpu:
        copy = (await gpu.load(b"fake:copy")).kernel
        with fake.hold():
            future = await copy.submit(b"1234", 4, grid=1)
            both = asyncio.gather(future, future)
            await turns()
        assert [a.tobytes() for a in await both] == [b"1234"] * 2


async def test_both_sockets_full(daemon: Any) -> None:
    async with vkqueue.aio.connect(daemon[1]) as gpu:
        copy = (await gpu.load(b"fake:copy")).kernel
        data = np.arange(1 << 18, dtype=F32)
        futures = [await copy.submit(data, data.nbytes, elements=data.size) for _ in range(8)]
        for future in futures:
            assert (await future).tobytes() == data.tobytes()


async def test_submit_waits_while_the_queue_is_full(start: Any) -> None:
    fake, path = start(max_queued_jobs=3)
    async with vkqueue.aio.connect(path) as gpu:
        nothing = (await gpu.load(b"fake:nothing")).kernel
        await nothing(grid=1)
        with fake.hold():
            for _ in range(3):
                await nothing.submit(grid=1)
            fourth = asyncio.ensure_future(nothing.submit(grid=1))
            await queued(fake, 3)
            assert not fourth.done()
            fifth = asyncio.ensure_future(nothing.submit(grid=1))
            await turns()
            fifth.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fifth
            assert len(gpu.core._held) == 1
        await (await fourth)
    assert fake.methods().count("dispatch") == 5


async def test_closing_fails_those_who_wait(daemon: Any) -> None:
    fake, path = daemon
    gpu = await vkqueue.aio.connect(path)
    copy = (await gpu.load(b"fake:copy")).kernel
    with fake.hold():
        waiting = asyncio.ensure_future(copy(b"1234", 4, grid=1))
        await queued(fake, 1)
        with fake.pause():
            writing = asyncio.ensure_future(copy(np.zeros(1 << 20, F32), 4, grid=1))
            await turns()
            gpu.close()
            for task in (waiting, writing):
                with pytest.raises(errors.ConnectionLostError, match="closed"):
                    await task


async def test_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(errors.ConnectionLostError, match="No such file"):
        await vkqueue.aio.connect(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(TimeoutError):
            async with vkqueue.aio.connect(path, timeout=0.01):
                raise AssertionError("not reached")


async def test_a_fork_does_not_share_the_connection(daemon: Any) -> None:
    fake, path = daemon
    async with vkqueue.aio.connect(path) as gpu:
        copy = (await gpu.load(b"fake:copy")).kernel
        with fake.hold():
            future = await copy.submit(b"1234", 4, grid=1)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for action in (gpu.ping(), copy(b"1234", 4, grid=1), future.wait()):
                        try:
                            action.send(None)
                        except errors.ConnectionLostError as error:
                            assert f"belongs to process {os.getppid()}" in str(error)
                        except StopIteration:
                            assert isinstance(future.error, errors.ConnectionLostError)
                    gpu.close()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - the loop has nothing else to do
        assert (await future).tobytes() == b"1234"


def test_a_client_outlives_no_loop(daemon: Any) -> None:
    async def leave() -> Any:
        return await vkqueue.aio.connect(daemon[1])

    gpu = asyncio.run(leave())
    gpu.close()
