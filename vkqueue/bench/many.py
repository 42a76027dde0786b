"""What dispatch_many is worth: its launches per second beside a C loop that records and submits the same dispatches.

The launches are independent: each writes a range, or a buffer, of its own, and C puts no barriers between its
dispatches. As elsewhere the ratio is what counts, of sides that are measured in turns; see `measure`.
"""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any

import numpy as np

from vkqueue.bench.limit import Limit
from vkqueue.errors import InternalError
from vkqueue.wire import codec
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection

FORMS = ("ranges", "buffers")
"""Launches on the rows of one buffer, by offsets; launches on buffers of their own, by handles."""

# Requests under way: one is checked while another is recorded, and others run.
_WINDOW = 6
_ELEMENTS = 64
_STRIDE = 256  # bytes of a row: 64 floats, and no device asks for a coarser alignment
_MOST_BUFFERS = 24_576
_C_BATCHES = 60
_FIRST_MSGID = 1 << 16  # so that all are written alike


class ManyClient:
    """One client that sends the same `dispatch_many` again and again.

    Args:
        form: of FORMS.
        count: launches of a request.
        scalars: whether each launch has its own constants.
    """

    def __init__(self, path: str, spirv: bytes, device: int, *, form: str, count: int, scalars: bool = True) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(path)
        self._conn = ClientConnection(Limits())
        self._count = count
        self._call("hello", protocol=1, client="bench", device=device)
        params: dict[str, Any] = {
            "module": self._call("module.load", spirv=spirv)["module"],
            "count": count,
            "grid": [-(-_ELEMENTS // 64)],
            "scalars": [_ELEMENTS, 0.5],
        }
        if scalars:
            rows = np.zeros(count, [("n", "<u4"), ("k", "<f4")])
            rows["n"], rows["k"] = _ELEMENTS, 0.5
            params["scalars"] = {"packed": rows.tobytes()}
        x = self._buffer(_STRIDE)
        # Requests under way write other memory than each other, as far as buffers do.
        some = _WINDOW if form == "ranges" else max(1, min(_WINDOW, _MOST_BUFFERS // count))
        targets = [self._own(form) for _ in range(some)]
        self._messages = [
            codec.pack([0, _FIRST_MSGID + i, "dispatch_many", [{**params, "args": [x, targets[i % len(targets)]]}]])
            for i in range(_WINDOW)
        ]
        self._answer = len(codec.pack([1, _FIRST_MSGID, None, {"count": count}]))

    def _own(self, form: str) -> dict[str, Any]:
        """What the launches of a request write."""
        if form == "ranges":
            whole = self._buffer(self._count * _STRIDE)
            offsets = np.arange(self._count, dtype="<u8") * np.uint64(_STRIDE)
            return {"buffer": whole, "offsets": offsets.tobytes(), "size": _STRIDE}
        handles = [self._buffer(_STRIDE) for _ in range(self._count)]
        return {"handles": np.array(handles, "<u4").tobytes()}

    def _buffer(self, size: int) -> int:
        handle: int = self._call("buffer.create", size=size)["buffer"]
        return handle

    def _call(self, method: str, **params: Any) -> Any:
        self._conn.request(method, params)
        for piece in self._conn.data_to_send():
            self._sock.sendall(piece)
        while not (answers := self._conn.receive_data(self._sock.recv(1 << 16))):
            pass
        _, error, result = answers[0]
        if error is not None:
            raise error
        return result

    def run(self, seconds: float) -> float:
        """Launches per second with the window kept full."""
        for message in self._messages:
            self._sock.sendall(message)
        for _ in range(_WINDOW):  # the first has NumPy imported and the pipeline built
            self._next()
        done, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            self._next()
            done += self._count
        for _ in range(_WINDOW):
            self._receive()
        return done / elapsed

    def _next(self) -> None:
        self._sock.sendall(self._messages[self._receive() - _FIRST_MSGID])

    def _receive(self) -> int:
        """The msgid of the next answer, which must be a success."""
        data = b""
        while len(data) < self._answer:
            more = self._sock.recv(self._answer - len(data))
            if not more:
                raise InternalError("the daemon closed the connection")
            data += more
        if data[7] != 0xC0:  # nil where an error would stand
            raise InternalError(f"a request failed: {data!r}")
        return int.from_bytes(data[3:7], "big")

    def close(self) -> None:
        self._sock.close()


def launches_per_s(path: str, spirv: bytes, device: int = 0, *, form: str, count: int, seconds: float) -> float:
    """Independent launches per second of one client that sends `count` in each request.

    Raises:
        VkqueueError: a request failed.
    """
    client = ManyClient(path, spirv, device, form=form, count=count)
    try:
        return client.run(seconds)
    finally:
        client.close()


def compare(
    path: str, spirv: bytes, limit: Limit, uuid: str, device: int = 0, *, count: int, seconds: float, repeats: int
) -> dict[str, float]:
    """Medians over `repeats`: launches per second of each of FORMS and of C (batches of 256, three in flight, no
    barriers), and the ratios of the two."""
    samples: dict[str, list[float]] = {"c": [], **{form: [] for form in FORMS}}
    for _ in range(repeats):
        us = limit.run(uuid, jobs=256, batches=_C_BATCHES, barrier=False, in_flight=3)
        samples["c"].append(1e6 / us)
        for form in FORMS:
            samples[form].append(launches_per_s(path, spirv, device, form=form, count=count, seconds=seconds))
    medians = {f"{name}_launches_per_s": statistics.median(values) for name, values in samples.items()}
    ratios = {f"{form}_ratio": medians[f"{form}_launches_per_s"] / medians["c_launches_per_s"] for form in FORMS}
    return {**medians, **ratios}
