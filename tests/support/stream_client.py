"""A client of a stream of requests to models, in a process of its own that may be killed at any time.

    python -m support.stream_client SOCKET LOG SEED SECONDS

Each line of LOG is written before what it tells of is sent, or once it is answered: a request's way can be told from it
however the process ends. Status 1 and a last line "wrong" when an answer is not the right one.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.affine import W, check, inputs, outputs
from support.e2e import create, read
from support.e2e import load as load_module
from support.rawclient import RawClient, RemoteError

MODELS = ("m", "plain", "both", "fragile")
"""m: two versions, priorities, time-outs. plain: not batched. both: an ensemble. fragile: none for lengths 5 to 8."""

_WINDOW = 48  # requests on their way

Check = Callable[[dict[str, Any]], None]


class Log:
    """Lines of JSON, each in one write: what was written survives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **data: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **data}) + "\n").encode())


class Wrong(Exception):
    """An answer is not the right one."""


class StreamClient:
    """Sends requests of all kinds, a few on their way at a time, and looks at each answer."""

    def __init__(self, path: str, log: Log, seed: int) -> None:
        self.log = log
        self.rng = random.Random(seed)
        self.client = RawClient(path, timeout=120)
        self.open: dict[int, tuple[set[str], Check]] = {}  # msgid → outcomes that are right, what looks at the result
        self.cancels: dict[int, int] = {}  # msgid of a cancel → of what
        self.cancelled: set[int] = set()
        self.mix = load_module(self.client, "mix")

    # Out

    def send(self, method: str, params: dict[str, Any], right: set[str], look: Check, **facts: Any) -> int:
        msgid = self.client.msgid + 1
        self.log.write("sent", id=msgid, method=method, **facts)
        assert self.client.send(method, **params) == msgid
        self.open[msgid] = right, look
        return msgid

    def samples(self) -> Any:
        shape = self.rng.randint(1, 3), self.rng.randint(1, 16)
        return np.array([[self.rng.randint(-50, 50) for _ in range(shape[1])] for _ in range(shape[0])], np.float32)

    def infer(self) -> None:
        """A good one; it may be cancelled or have a time-out."""
        name = self.rng.choice(("m", "m", "m", "plain", "both", "fragile"))
        x = self.samples()[:1] if name == "plain" else self.samples()
        params: dict[str, Any] = {"name": name, "inputs": inputs(x)}
        right, look = {"ok"}, self._checker(name, x)
        if name == "both":
            params["inputs"] = {"in": params["inputs"]["x"]}
        elif name == "plain":
            params["inputs"]["x"]["shape"] = [x.shape[1]]
        elif name == "fragile" and 5 <= x.shape[1] <= 8:
            right = {"invalid"}
        elif name == "m":
            params |= self._for_m(right)
        msgid = self.send("model.infer", params, right, look, model=name, samples=len(x))
        if self.rng.random() < 0.03:
            right.add("cancelled")
            self.cancel(msgid)

    def _for_m(self, right: set[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"timing": self.rng.random() < 0.1}
        if self.rng.random() < 0.5:
            found["priority"] = self.rng.randint(0, 4)
        if self.rng.random() < 0.05:
            found["timeout_us"] = self.rng.choice((1, 100, 5000))
            right.add("expired")
        if self.rng.random() < 0.2:
            found["version"] = self.rng.randint(1, 2)
        if self.rng.random() < 0.2:
            found["outputs"] = self.rng.choice((["total"], ["rows"], {"rows": None}))
        return found

    @staticmethod
    def _checker(name: str, x: Any) -> Check:
        def look(answer: dict[str, Any]) -> None:
            if name == "both":
                found, middle = outputs(answer), 2 * x + x.shape[1]
                bucket = 8 if x.shape[1] <= 8 else 16
                padding = (bucket - x.shape[1]) * (2 * 1000 + x.shape[1])
                np.testing.assert_allclose(found["middle"], middle, rtol=1e-5)
                np.testing.assert_allclose(found["sums"], middle.sum(1) + padding, rtol=1e-5)
            elif name == "plain":
                np.testing.assert_allclose(outputs(answer)["doubled"], 2 * x[0] + x.shape[1], rtol=1e-5)
            else:
                check(answer, x, W * answer["version"])

        return look

    def cancel(self, target: int) -> None:
        msgid = self.send("cancel", {"msgid": target}, {"ok"}, lambda answer: None)
        self.cancels[msgid] = target

    def with_buffers(self) -> None:
        """Input, output or both in buffers, which are freed when the request is sent, or read and freed after it."""
        x, offset = self.samples(), 4 * self.rng.randint(0, 3)
        params: dict[str, Any] = {"name": "m", "inputs": inputs(x)}
        source = target = 0
        if self.rng.random() < 0.7:
            source = create(self.client, bytes(offset) + x.tobytes())
            params["inputs"] = {"x": {"shape": list(x.shape), "buffer": source, "offset": offset}}
        if self.rng.random() < 0.7:
            target = create(self.client, x.size * 16 + offset)
            params["outputs"] = {"rows": {"buffer": target, "offset": offset}, "total": {}}

        def look(answer: dict[str, Any]) -> None:
            if target:
                found = read(self.client, target, offset=offset, size=x.size * 16)
                answer["outputs"]["rows"]["data"] = found.tobytes()
                self.client.call("buffer.free", buffer=target)
            check(answer, x, W * answer["version"])

        self.send("model.infer", params, {"ok"}, look, model="m", samples=len(x))
        if source:
            self.client.call("buffer.free", buffer=source)

    def bad(self) -> None:
        """Something wrong; `refused` in the log: the model counts it."""
        x = {"shape": [1, 3], "data": bytes(12)}
        kinds: list[tuple[dict[str, Any], str, bool]] = [
            ({"inputs": {"x": {"shape": [1, 17], "data": bytes(68)}}}, "invalid", True),
            ({"inputs": {"x": {"shape": [3], "data": bytes(12)}}}, "invalid", True),
            ({"inputs": {"x": {"shape": [0, 3], "data": b""}}}, "invalid", True),
            ({"inputs": {"x": {"shape": [1, -3], "data": bytes(12)}}}, "invalid", True),
            ({"inputs": {"x": {"shape": [1, 3], "data": bytes(24)}}}, "invalid", True),
            ({"inputs": {"x": {"shape": [9, 3], "data": bytes(108)}}}, "invalid", True),
            ({"inputs": {"x": {"shape": [2**62, 2**62], "data": bytes(8)}}}, "invalid", True),
            ({"inputs": {"x": x, "y": x}}, "invalid", True),
            ({"inputs": {}}, "invalid", True),
            ({"inputs": {"x": {"shape": [1, 3], "buffer": 999_999}}}, "not_found", True),
            ({"inputs": {"x": x}, "outputs": {"rows": {"buffer": 999_999}}}, "not_found", True),
            ({"inputs": {"x": x}, "outputs": ["row"]}, "invalid", True),
            ({"inputs": {"x": x}, "name": "absent"}, "not_found", False),
            ({"inputs": {"x": x}, "version": 77}, "not_found", False),
            ({"inputs": {"x": x}, "version": 0}, "invalid", False),
            ({"inputs": [x]}, "invalid", False),
        ]
        params, code, counted = self.rng.choice(kinds)
        facts = {"refused": code} if counted else {"elsewhere": code}
        self.send("model.infer", {"name": "m", **params}, {code}, _no_result, model="m", samples=1, **facts)

    def dispatch(self) -> None:
        """An ordinary launch beside the models'."""
        data = np.arange(64, dtype=np.uint32) * self.rng.randint(1, 1000)
        x, y, k = create(self.client, data), create(self.client, data), self.rng.randint(0, 99)

        def look(answer: dict[str, Any]) -> None:
            found = read(self.client, y, np.uint32)
            np.testing.assert_array_equal(found, 31 * data + data + np.uint32(k))
            for buffer in (x, y):
                self.client.call("buffer.free", buffer=buffer)

        params = {"module": self.mix, "args": [x, y], "scalars": [64, k], "grid": [1]}
        self.send("dispatch", params, {"ok"}, look)

    def transient(self) -> None:
        """A model that comes and goes all the time."""
        x = self.samples()
        params = {"name": "transient", "inputs": inputs(x)}
        self.send("model.infer", params, {"ok", "not_found"}, self._checker("m", x), model="transient", samples=len(x))

    # In

    def answered(self) -> None:
        """Look at all answers that have come, also while others are looked at."""
        while ready := [msgid for msgid in self.open if msgid in self.client.answers]:
            for msgid in ready:
                self._answer(msgid)

    def _answer(self, msgid: int) -> None:
        right, look = self.open.pop(msgid)
        try:
            result, outcome = self.client.wait(msgid), "ok"
        except RemoteError as error:
            result, outcome = None, error.code
            if outcome not in right:
                raise Wrong(f"{msgid}: {error}, expected one of {sorted(right)}") from None
        if outcome not in right:
            raise Wrong(f"{msgid}: answered, expected one of {sorted(right)}")
        self.log.write("answered", id=msgid, outcome=outcome, version=result.get("version") if result else None)
        if msgid in self.cancels:
            self._cancel_said(self.cancels.pop(msgid), result["cancelled"])
        elif outcome == "cancelled":
            self.cancelled.add(msgid)
        if result is not None:
            try:
                look(result)
            except AssertionError as error:
                raise Wrong(f"{msgid}: {error}") from None

    def _cancel_said(self, target: int, cancelled: bool) -> None:
        """A request that is cancelled is answered ahead of the cancel's own answer, which says so."""
        if cancelled is not (target in self.cancelled):
            raise Wrong(f"{target}: its cancel says {cancelled}")

    def until(self, most: int) -> None:
        """Receive until no more than that are on their way."""
        self.answered()
        while len(self.open) > most:
            if not self.client.receive():
                raise Wrong("the daemon closed the connection")
            self.answered()

    def run(self, seconds: float) -> None:
        """Until the time is over; then all is answered."""
        until = time.monotonic() + seconds
        kinds = [self.infer, self.with_buffers, self.bad, self.dispatch, self.transient]
        while time.monotonic() < until:
            for kind in self.rng.choices(kinds, [87, 5, 1, 5, 2], k=self.rng.choice((1, 4, 16))):
                kind()
            while select.select([self.client.sock], [], [], 0)[0] and self.client.receive():
                pass
            self.until(_WINDOW if self.rng.random() < 0.9 else 0)
        self.until(0)


def _no_result(answer: dict[str, Any]) -> None:
    raise AssertionError("a bad request was answered")


def main() -> None:
    """As the module's docstring says."""
    path, log_path, seed, seconds = sys.argv[1:]
    log = Log(Path(log_path))
    try:
        client = StreamClient(path, log, int(seed))
        log.write("begun")
        client.run(float(seconds))
    except (Wrong, ConnectionError, TimeoutError, RemoteError) as error:
        log.write("wrong", what=f"{type(error).__name__}: {error}")
        sys.exit(1)
    log.write("ended")


if __name__ == "__main__":
    main()
