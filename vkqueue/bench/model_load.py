"""Load on a model from one process: connections with a request under way each, which were packed beforehand.

Run as ``python -m vkqueue.bench.model_load SOCKET JSON``. It says `ready` on standard output, and then for each number
of seconds on standard input what came of so long a run, as a line of JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from vkqueue.bench.model_inputs import Inputs, Wanted
from vkqueue.client.sync import connect
from vkqueue.wire import codec
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection

# All arbitrary.
_REQUESTS = 64  # different ones, and of them no more bytes than this
_REQUEST_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_SILENCE_S = 60.0


def packed(name: str, version: int | None, inputs: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The parameters of one `model.infer`, as they travel. All that this file knows of what is asked."""
    tensors = {key: {"shape": list(array.shape), "data": array.tobytes()} for key, array in inputs.items()}
    return codec.pack({"name": name, "inputs": tensors} | ({} if version is None else {"version": version}))


def requests(path: str, name: str, version: int | None, wanted: Wanted) -> list[bytes]:
    """Different requests to a model that the daemon has.

    Raises:
        VkqueueError: there is no such model, or it takes no such requests.
        OSError: the file with the data cannot be read.
    """
    with connect(path, client_name="bench") as gpu:
        inputs = Inputs(gpu.model(name, version), wanted)
    found = [packed(name, version, inputs.request())]
    while len(found) < _REQUESTS and sum(map(len, found)) + len(found[0]) < _REQUEST_BYTES:
        found.append(packed(name, version, inputs.request()))
    return found


class Connection:
    """One client.

    Attributes:
        sent_ns: when its request left; 0 while none is under way.
    """

    def __init__(self, path: str, bodies: Sequence[bytes], first: int) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self._conn = ClientConnection(Limits())
        self._bodies = bodies
        self._turn = first
        self._conn.request("hello", {"protocol": 1, "client": "bench"})
        self._flush()
        while not self.receive():
            pass
        self.sent_ns = 0

    def send(self) -> None:
        """The next request."""
        self._conn.request_packed("model.infer", self._bodies[self._turn % len(self._bodies)])
        self._turn += 1
        self.sent_ns = time.perf_counter_ns()
        self._flush()

    def _flush(self) -> None:
        for piece in self._conn.data_to_send():
            self.sock.sendall(piece)

    def receive(self) -> list[Any]:
        """What one read brings: (msgid, error, result) of each answer."""
        data = self.sock.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the daemon closed the connection")
        answers = self._conn.receive_data(data)
        if self._conn.fault is not None:
            raise self._conn.fault
        return answers


def run(connections: Sequence[Connection], seconds: float) -> dict[str, Any]:
    """Each client sends its next request when it has an answer, for so long.

    Returns:
        latencies_us: of each request that succeeded; errors: code to [count, a message]; seconds: to the last answer.
    """
    latencies: list[float] = []
    errors: dict[str, list[Any]] = {}
    with selectors.DefaultSelector() as selector:
        begin = time.perf_counter_ns()
        end = now = begin + int(seconds * 1e9)
        for connection in connections:
            selector.register(connection.sock, selectors.EVENT_READ, connection)
            connection.send()
        under_way = len(connections)
        while under_way:
            ready = selector.select(_SILENCE_S)
            if not ready:
                raise SystemExit(f"the daemon has not answered for {_SILENCE_S:g} s")
            for key, _ in ready:
                for _, error, _ in key.data.receive():
                    now = time.perf_counter_ns()
                    if error is None:
                        latencies.append((now - key.data.sent_ns) / 1000)
                    else:
                        errors.setdefault(error.code, [0, error.message])[0] += 1
                    if now < end:
                        key.data.send()
                    else:
                        under_way -= 1
    return {"latencies_us": latencies, "errors": errors, "seconds": (now - begin) / 1e9}


def main() -> None:
    path, options = sys.argv[1], json.loads(sys.argv[2])
    bodies = requests(path, options["model"], options["version"], Wanted(**options["wanted"]))
    connections = [Connection(path, bodies, number * 7) for number in range(options["clients"])]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(connections, float(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
