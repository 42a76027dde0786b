"""What only the blocking client has to prove: threads, interrupts, timeouts, forks (rule 47)."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest

import vkqueue
from vkqueue import errors

F32 = np.float32


@pytest.fixture
def gpu(daemon: Any) -> Any:
    with vkqueue.connect(daemon[1]) as client:
        yield client


def in_thread(action: Callable[[], Any]) -> Callable[[], Any]:
    """Start it; the result joins."""
    box: list[Any] = []

    def run() -> None:
        try:
            box.append(action())
        except BaseException as error:  # handed over to the test
            box.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> Any:
        thread.join(20)
        assert not thread.is_alive(), "the thread still waits"
        return box[0]

    return join


def waiting(gpu: Any, count: int) -> None:
    """Return once `count` threads wait (the driver and those asleep)."""
    link = gpu.link
    for _ in range(2_000_000):
        if (link._driver is not None) + len(link._waiters) == count:
            return
        os.sched_yield()
    raise AssertionError("they never waited")


def test_many_threads_on_one_client(gpu: Any) -> None:
    axpy = gpu.load(b"fake:axpy").kernel

    def work(seed: int) -> None:
        values = np.full(64, seed, F32)
        mine = gpu.array(values)
        for _ in range(20):
            assert axpy(values, mine, a=1, n=64, grid=1) is None
            result = axpy(values, np.zeros(64, F32), a=2, n=64, grid=1)
            assert result[0] == 2 * seed
        assert mine.get()[63] == 21 * seed

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, seed) for seed in range(8)]:
            future.result(20)
    assert gpu.link._driver is None
    assert gpu.link._waiters == []


def test_results_come_to_whom_they_belong_in_any_order(gpu: Any, daemon: Any) -> None:
    copy = gpu.load(b"fake:copy").kernel
    with daemon[0].hold():
        futures = [copy.submit(np.full(4, i, F32), 16, grid=1) for i in range(3)]
        joins = [in_thread(future.result) for future in futures]
        waiting(gpu, 3)
        assert futures[0].cancel()  # by a thread that does not wait yet: the driver reads for it
        assert isinstance(joins[0](), errors.JobCancelledError)
    for i in (1, 2):
        assert joins[i]().view(F32)[0] == i


def test_a_driver_that_leaves_hands_over(gpu: Any, daemon: Any) -> None:
    copy = gpu.load(b"fake:copy").kernel
    with daemon[0].hold():
        first = copy.submit(b"1234", 4, grid=1)
        driver = in_thread(lambda: first.wait(0.05))
        waiting(gpu, 1)
        other = in_thread(copy.submit(b"5678", 4, grid=1).result)
        assert driver() is False
    assert other().tobytes() == b"5678"
    assert first.result().tobytes() == b"1234"


def test_closing_ends_the_waits_of_other_threads(gpu: Any, daemon: Any) -> None:
    copy = gpu.load(b"fake:copy").kernel
    with daemon[0].hold():
        joins = [in_thread(copy.submit(b"1234", 4, grid=1).result) for _ in range(3)]
        waiting(gpu, 3)
        gpu.close()
        for join in joins:
            error = join()
            assert isinstance(error, errors.ConnectionLostError)
            assert "closed" in str(error)
    assert gpu.link._sock.fileno() == -1


def test_timeouts(daemon: Any) -> None:
    fake, path = daemon
    with vkqueue.connect(path, timeout=20) as gpu:
        copy = gpu.load(b"fake:copy").kernel
        with fake.hold():
            future = copy.submit(b"1234", 4, grid=1)
            with pytest.raises(TimeoutError, match="goes on"):
                future.result(0)
            with pytest.raises(TimeoutError):
                future.exception(0.001)
            assert not future.wait(0)
            gpu.timeout = 0.01
            with pytest.raises(TimeoutError):
                copy(b"5678", 4, grid=1)
            gpu.timeout = 20
            gpu.ping()
            assert fake.queued() == 1  # the call that nobody waits for was taken back, the future's was not
        assert future.result().tobytes() == b"1234"


def test_timeouts_while_writing(daemon: Any) -> None:
    fake, path = daemon
    data = np.zeros(1 << 20, F32)
    with vkqueue.connect(path, timeout=20) as gpu:
        copy = gpu.load(b"fake:copy").kernel
        gpu.timeout = 0.01
        assert gpu.timeout == 0.01
        with fake.pause():
            for start, args in ((copy, (data, 16)), (copy.submit, (data, 16)), (gpu.array, (data,))):
                with pytest.raises(TimeoutError, match="took no more"):
                    start(*args, **({} if start == gpu.array else {"grid": 1}))
        gpu.timeout = 20
        gpu.flush()
        assert copy(b"1234", 4, grid=1).tobytes() == b"1234"
        assert fake.methods().count("cancel") == 2


def test_cancelling_what_runs_already(gpu: Any, daemon: Any) -> None:
    copy = gpu.load(b"fake:copy").kernel
    with daemon[0].hold():
        future = copy.submit(b"1234", 4, grid=1)
        job = daemon[0].call(lambda: daemon[0].sessions[0].queue.popleft())  # as if a device had taken it
        assert future.cancel() is False
        daemon[0].call(lambda: daemon[0].sessions[0].queue.append(job))
    assert future.result().tobytes() == b"1234"


def test_both_sockets_full(gpu: Any) -> None:
    """The daemon reads no more while its answers wait: writing has to go on reading."""
    copy = gpu.load(b"fake:copy").kernel
    data = np.arange(1 << 18, dtype=F32)
    futures = [copy.submit(data, data.nbytes, elements=data.size) for _ in range(8)]
    for future in futures:
        assert future.result().tobytes() == data.tobytes()


def test_a_thread_that_cannot_write_is_helped_by_the_one_that_reads(gpu: Any, daemon: Any) -> None:
    fake, _ = daemon
    copy = gpu.load(b"fake:copy").kernel
    data = np.arange(1 << 20, dtype=F32)
    with fake.hold():
        small = in_thread(copy.submit(b"1234", 4, grid=1).result)
        waiting(gpu, 1)
        with fake.pause():
            large = in_thread(lambda: copy.submit(data, data.nbytes, elements=data.size).result())
            waiting(gpu, 2)
    assert small().tobytes() == b"1234"
    assert large().tobytes() == data.tobytes()


class Counting:
    """A socket that counts what is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.sends = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("send", "sendmsg"):
            self.sends += 1
        return getattr(self._sock, name)

    def fileno(self) -> int:
        return self._sock.fileno()


def test_a_batch_leaves_together(gpu: Any, daemon: Any) -> None:
    axpy = gpu.load(b"fake:axpy").kernel
    x, y = gpu.array(np.ones(4, F32)), gpu.zeros(4, F32)
    axpy(x, y, a=1, n=4, grid=1)
    sock = gpu.link._sock = Counting(gpu.link._sock)
    with gpu.batch():
        with gpu.batch():
            futures = [axpy.submit(x, y, a=1, n=4, grid=1) for _ in range(10)]
        assert sock.sends == 0
        other = in_thread(lambda: axpy(x, y, a=1, n=4, grid=1))  # what was put off leaves with it
        assert other() is None
        assert sock.sends == 1
        futures.append(axpy.submit(x, y, a=1, n=4, grid=1))
        assert sock.sends == 1
        futures[-1].result()
        assert sock.sends == 2
        gpu.array(np.zeros(1 << 14, F32))  # large: it is sent from the caller's memory, so now
        assert sock.sends > 2
        before = sock.sends
        futures.append(axpy.submit(x, y, a=1, n=4, grid=1))
        assert sock.sends == before
    assert sock.sends == before + 1
    assert [future.result() for future in futures] == [None] * 12
    assert y.get()[0] == 14
    with pytest.raises(errors.ConnectionLostError), gpu.batch():
        gpu.close()
        axpy(x, y, a=1, n=4, grid=1)


def test_an_interrupt_while_waiting_leaves_the_connection_usable(gpu: Any, daemon: Any) -> None:
    fake, _ = daemon
    copy = gpu.load(b"fake:copy").kernel

    class Interrupted:
        """A poller whose first wait meets a signal."""

        def __init__(self, poller: Any) -> None:
            self.poll = self.interrupt
            self.modify = poller.modify
            self.poller = poller

        def interrupt(self, timeout: object) -> Any:
            self.poll = self.poller.poll
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    with fake.hold():
        future = copy.submit(b"1234", 4, grid=1)
        gpu.link._poller = Interrupted(gpu.link._poller)
        with pytest.raises(KeyboardInterrupt):
            future.result()
        gpu.link._poller = Interrupted(gpu.link._poller)
        with pytest.raises(KeyboardInterrupt):
            copy(b"5678", 4, grid=1)
        gpu.ping()
        assert fake.queued() == 1  # the blocking call was taken back
    assert future.result().tobytes() == b"1234"


class InterruptAt:
    """A profiler that raises KeyboardInterrupt at the n-th place, in the client or the wire, where a signal can.

    Python runs signal handlers when a function begins and when a call into C has returned, and not, for one, between
    the end of a `with` block and the release of its lock; so tracing lines would find what cannot happen.
    """

    def __init__(self, n: int) -> None:
        self.left = n
        self.hit = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event not in ("call", "c_return"):
            return
        if "/vkqueue/client/" in frame.f_code.co_filename or "/vkqueue/wire/" in frame.f_code.co_filename:
            self.left -= 1
            if self.left == 0:
                self.hit = True
                sys.setprofile(None)
                raise KeyboardInterrupt


def test_an_interrupt_anywhere_leaves_it_usable_or_closed(daemon: Any) -> None:
    """Never out of step: wherever in a call the interrupt comes, the next call is right or is refused."""
    path = daemon[1]
    outcomes = {"usable": 0, "closed": 0}
    place, hit = 0, True
    while hit:
        place += 1
        with vkqueue.connect(path) as gpu:
            module = gpu.load(b"fake:axpy,copy")
            axpy, copy = module["axpy"], module["copy"]
            x, y = gpu.array(np.ones(4, F32)), gpu.array(np.zeros(4, F32))
            other = copy.submit(b"1234", 4, grid=1)
            profiler = InterruptAt(place)
            sys.setprofile(profiler)
            try:
                axpy(x, y, a=1, n=4, grid=1)
                axpy(x, y, a=1, n=4, grid=1)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            hit = profiler.hit
            try:
                assert copy(b"5678", 4, grid=1).tobytes() == b"5678"
                assert other.result(10).tobytes() == b"1234"
                assert y.get()[0] in (0, 1, 2)
                outcomes["usable"] += 1
            except errors.ConnectionLostError as error:
                assert "interrupt" in str(error)
                outcomes["closed"] += 1
                try:  # its answer may have come before
                    assert other.result(10).tobytes() == b"1234"
                except errors.ConnectionLostError:
                    pass
    assert min(outcomes.values()) > 10, outcomes


def test_an_interrupt_in_one_thread_does_not_strand_the_others(daemon: Any) -> None:
    place, hit = 0, True
    while hit:
        place += 7  # arbitrary: where the other thread stands differs each time anyway
        with vkqueue.connect(daemon[1]) as gpu:
            copy = gpu.load(b"fake:copy").kernel
            join = in_thread(lambda copy=copy: [copy(bytes([i] * 4), 4, grid=1).tobytes() for i in range(5)])
            profiler = InterruptAt(place)
            sys.setprofile(profiler)
            try:
                copy(b"1234", 4, grid=1)
            except (KeyboardInterrupt, errors.ConnectionLostError):
                pass
            finally:
                sys.setprofile(None)
            hit = profiler.hit
            try:
                assert copy(b"5678", 4, grid=1).tobytes() == b"5678"
            except errors.ConnectionLostError:
                assert gpu.closed
            results = join()
            assert isinstance(results, errors.ConnectionLostError) or results == [bytes([i] * 4) for i in range(5)]
            assert gpu.closed or not isinstance(results, BaseException)


def test_a_fork_does_not_share_the_connection(gpu: Any, daemon: Any) -> None:
    copy = gpu.load(b"fake:copy").kernel
    with daemon[0].hold():
        future = copy.submit(b"1234", 4, grid=1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for action in (gpu.ping, future.result, lambda: copy(b"1234", 4, grid=1)):
                    with pytest.raises(errors.ConnectionLostError, match=f"belongs to process {os.getppid()}"):
                        action()
                gpu.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert future.result().tobytes() == b"1234"
    gpu.ping()


def test_nothing_is_left_open(daemon: Any) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with vkqueue.connect(daemon[1]) as gpu:
        gpu.ping()
        daemon[0].drop()
        with pytest.raises(errors.ConnectionLostError):
            gpu.ping()
    client = vkqueue.connect(daemon[1])
    client.close()
    daemon[0].call(lambda: None)
    daemon[0].drop()
    assert descriptors() == before


def test_a_daemon_that_refuses_is_heard_although_writing_fails(start: Any) -> None:
    fake, path = start(max_message_bytes=4096)
    with vkqueue.connect(path) as gpu:
        gpu.core.session.max_message_bytes = 1 << 30  # as if the client did not know
        with pytest.raises(errors.ConnectionLostError, match="limit is 4096"):
            gpu._call(gpu.core.control, "ping", {"x": np.zeros(1 << 20, np.uint8).data})


def test_connecting_to_one_that_never_answers(tmp_path: Any) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(TimeoutError):
            vkqueue.connect(path, timeout=0.01)
