"""Load on a daemon from one process of its own: prepared messages over many connections, answers only counted.

The generator must cost little beside the daemon, since both share the machine: messages are packed once, and answers,
which all have one size, are counted by their bytes and looked at only when that does not come out even.

Run as ``python -m vkqueue.bench.load SOCKET SPIRV JSON``; the answer is JSON on standard output.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from vkqueue.wire import codec
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection

_TICK = os.sysconf("SC_CLK_TCK")

_SILENCE_S = 30.0  # arbitrary

# An answer to a dispatch without outputs: array, type, uint 32 msgid, nil, map of one, "outputs", empty array.
_ANSWER = len(b"\x94\x01\xce....\xc0") + len(codec.pack({"outputs": []}))


class Connection:
    """One client: buffers of its own, and bursts of dispatches to send again and again.

    Args:
        window: launches that are under way.
        independent: whether launches write buffers of their own, `buffers` in turn, or all the same one.
    """

    def __init__(
        self, path: str, spirv: bytes, *, window: int, independent: bool, elements: int, device: int, buffers: int = 256
    ) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self._conn = ClientConnection(Limits())
        self.call("hello", protocol=1, client="bench", device=device)
        module = self.call("module.load", spirv=spirv)["module"]
        x = self.buffer(elements)
        many = buffers if buffers > 256 else min(window, buffers)
        ys = [self.buffer(elements) for _ in range(many if independent else 1)]
        chunk = self._chunk = max(window // 2, 1)
        requests = self.requests(module, x, ys, elements, -(-max(2 * chunk, len(ys)) // chunk) * chunk)
        messages = [codec.pack([0, 1000 + i, method, [params]]) for i, (method, params) in enumerate(requests)]
        self._bursts = [b"".join(messages[i : i + chunk]) for i in range(0, len(messages), chunk)]
        self.one = messages[0]
        self._turn = 0  # of the bursts
        self._next = 0  # of the two that are under way
        self._owed = [0, 0]
        self._answered = 0
        self._bytes = 0
        self._view = memoryview(bytearray(1 << 18))
        self._unsent: memoryview | None = None
        self._stopped = False

    def requests(
        self, module: int, x: int, ys: list[int], elements: int, count: int
    ) -> list[tuple[str, dict[str, Any]]]:
        """(method, parameters) of what is sent again and again."""
        common = {"module": module, "scalars": [elements, 0.5], "grid": [-(-elements // 64)]}
        return [("dispatch", {**common, "args": [x, ys[i % len(ys)]]}) for i in range(count)]

    def call(self, method: str, **params: Any) -> Any:
        """A request while nothing else is under way; its answer.

        Raises:
            VkqueueError
        """
        self._conn.request(method, params)
        for piece in self._conn.data_to_send():
            self.sock.sendall(piece)
        while True:
            answers = self._conn.receive_data(self.sock.recv(1 << 16))
            if answers:
                _, error, result = answers[0]
                if error is not None:
                    raise error
                return result

    def buffer(self, elements: int) -> int:
        handle: int = self.call("buffer.create", size=4 * elements)["buffer"]
        return handle

    def warm_up(self) -> None:
        """One launch, so that the pipeline is there."""
        self.round_trip()
        self._bytes = self._answered = 0

    def round_trip(self) -> None:
        self.sock.sendall(self.one)
        got = 0
        while got < _ANSWER:
            got += self.sock.recv_into(self._view)
        if got != _ANSWER:
            raise SystemExit(f"an answer of {got} bytes, expected {_ANSWER}: {bytes(self._view[:got])!r}")

    def start(self) -> None:
        self.sock.setblocking(False)
        self._send()
        self._send()

    def _send(self) -> None:
        burst = memoryview(self._bursts[self._turn])
        self._turn = (self._turn + 1) % len(self._bursts)
        self._owed[self._next] = self._chunk
        self._next ^= 1
        self._unsent = memoryview(bytes(self._unsent) + bytes(burst)) if self._unsent is not None else burst
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        while self._unsent is not None:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None

    def receive(self) -> int:
        """Read once and keep the window full; answers counted."""
        try:
            got = self.sock.recv_into(self._view)
        except BlockingIOError:
            return 0
        if got == 0:
            raise SystemExit("the daemon closed the connection")
        self._bytes += got
        new = self._bytes // _ANSWER - self._answered
        self._answered += new
        left = new
        while left and any(self._owed):
            taken = min(left, self._owed[self._next])
            self._owed[self._next] -= taken
            left -= taken
            if self._owed[self._next] == 0:
                if self._stopped:
                    self._next ^= 1
                else:
                    self._send()
        self.flush()
        return new

    def finish(self) -> None:
        """Read what is owed, and make sure that every answer was a success: another has another size."""
        self._stopped = True
        self.sock.setblocking(True)
        self.sock.settimeout(30)
        if self._unsent is not None:
            self.sock.sendall(self._unsent)
            self._unsent = None
        while any(self._owed):
            self.receive()
        if self._bytes != self._answered * _ANSWER:
            raise SystemExit("some answers were no successes: their sizes differ")


def latency(connection: Connection, count: int) -> dict[str, float]:
    """Round trips one at a time: microseconds, p50 and p95."""
    times = []
    for _ in range(count):
        started = time.perf_counter_ns()
        connection.round_trip()
        times.append((time.perf_counter_ns() - started) / 1000)
    return {"p50_us": statistics.median(times), "p95_us": statistics.quantiles(times, n=20)[-1]}


def throughput(connections: list[Connection], seconds: float) -> dict[str, float]:
    """Windows kept full on every connection: jobs answered per second, the first fifth of the time not counted."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.start()
            selector.register(connection.sock, selectors.EVENT_READ, connection)
        begin = time.perf_counter()
        warm, end = begin + seconds / 5, begin + seconds
        jobs, since, last = 0, 0.0, begin
        while last < end or not jobs:
            ready = selector.select(_SILENCE_S)
            if not ready:
                raise SystemExit(f"the daemon has not answered for {_SILENCE_S:g} s")
            for key, _ in ready:
                answered = key.data.receive()
                last = time.perf_counter()
                if since:
                    jobs += answered
                elif last >= warm:
                    since = last  # what came by now belongs to the time before
        rate = jobs / (last - since)
    for connection in connections:
        connection.finish()
    return {"jobs": jobs, "jobs_per_s": rate}


class Counters:
    """What the daemon counts from here on, and the CPU time that it takes.

    Args:
        connection: idle now, and when `per_job` is called.
        pid: the daemon's process; None leaves CPU time out.
    """

    def __init__(self, connection: Connection, pid: int | None) -> None:
        self._connection = connection
        self._pid = pid
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        stats = self._connection.call("stats")
        values = {key: float(stats[key]) for key in ("jobs_completed", "batches", "submits")}
        if self._pid is not None:
            values["front"], values["all"] = cpu_seconds(self._pid)
        return values

    def per_job(self) -> dict[str, float]:
        """Jobs per batch, and the rest per job."""
        spent = {key: value - self._before[key] for key, value in self._read().items()}
        jobs = max(spent["jobs_completed"], 1)
        result = {"jobs_per_batch": jobs / max(spent["batches"], 1), "submits_per_job": spent["submits"] / jobs}
        if self._pid is not None:
            result["front_cpu_us_per_job"] = spent["front"] / jobs * 1e6
            result["cpu_us_per_job"] = spent["all"] / jobs * 1e6
        return result


def cpu_seconds(pid: int) -> tuple[float, float]:
    """(of the main thread, of the whole process): user and system time from /proc."""

    def of(path: Path) -> float:
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK  # utime, stime: proc(5) fields 14 and 15

    return of(Path(f"/proc/{pid}/task/{pid}/stat")), of(Path(f"/proc/{pid}/stat"))


def main() -> None:
    path, spirv, options = sys.argv[1], Path(sys.argv[2]).read_bytes(), json.loads(sys.argv[3])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = [
        Connection(
            path,
            spirv,
            window=options["window"],
            independent=options["independent"],
            elements=options["elements"],
            device=options["device"],
            buffers=options.get("buffers", 256),
        )
        for _ in range(options["clients"])
    ]
    for connection in connections:
        connection.warm_up()
    counters = Counters(connections[0], options["pid"])
    if options["window"] == 1:
        result = latency(connections[0], options["count"])
    else:
        result = throughput(connections, options["seconds"])
    sys.stdout.write(json.dumps({**result, **counters.per_job()}))


if __name__ == "__main__":
    main()
