"""What was sent on a connection, and what must have become of it: each request that succeeded, one after the other.

Requests are played on plain bytes once all are answered, for only then is known which were cancelled or came too late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from support.rawclient import RawClient

Bytes = npt.NDArray[np.uint8]
Memory = dict[int, Bytes]
"""Contents of buffers, by handle."""


class Wrong(AssertionError):
    """An answer that may not be."""


class DeviceLost(Exception):
    """So some requests were told; what the buffers held is lost."""


@dataclass(slots=True)
class Sent:
    """A request.

    Attributes:
        what: it, in words.
        effect: does to memory what the request does; the result that it must have.
        needs: buffers that must be there.
        creates: a buffer that is there once it has succeeded.
        after: requests that must have succeeded.
        deadline: whether it may come too late.
        touches: whether it touches a byte; if not, it may succeed without its buffers.
    """

    msgid: int
    what: str
    effect: Callable[[Memory], Any]
    needs: tuple[int, ...] = ()
    creates: int = 0
    after: tuple[int, ...] = ()
    deadline: bool = False
    touches: bool = True


class Reference:
    """Contents of a connection's buffers.

    Args:
        tolerated: codes that any request may fail with, and has changed nothing then.

    Attributes:
        memory: as of the last `play`.
        failed: requests that have failed.
        unknown: whether what is in memory is not known any more: many launches failed, of which some may have run.
    """

    def __init__(self, client: RawClient, tolerated: frozenset[str] = frozenset()) -> None:
        self.client = client
        self._tolerated = tolerated
        self.unknown = False
        self.memory: Memory = {}
        self.failed: set[int] = set()
        self.waiting: list[Sent] = []
        self.cancels: dict[int, int] = {}  # msgid of a cancel to that of its request
        self.counts: dict[str, int] = {}
        self.recent: deque[tuple[Sent, str]] = deque(maxlen=2000)

    def touched(self, handle: int) -> str:
        """The last requests that used a buffer, for who looks for what went wrong."""
        using = [f"{sent.msgid} {sent.what}: {code}" for sent, code in self.recent if handle in sent.needs]
        return "\n  ".join(["", *using[-30:]])

    def play(self) -> None:
        """Wait for every answer, and compare.

        Raises:
            Wrong
            DeviceLost: each request has an answer.
        """
        answers = {sent.msgid: self._answer(sent.msgid) for sent in self.waiting}
        cancelled = {request for cancel, request in self.cancels.items() if self._answer(cancel)[1]["cancelled"]}
        if any(error is not None and error["code"] == "device_lost" for error, _ in answers.values()):
            raise DeviceLost
        for sent in self.waiting:
            error, result = answers[sent.msgid]
            code = None if error is None else error["code"]
            self.recent.append((sent, code or "done"))
            self.counts[code or "done"] = self.counts.get(code or "done", 0) + 1
            self._check_code(sent, error, cancelled)
            if code is not None:
                self.failed.add(sent.msgid)
                if code in self._tolerated and sent.what.startswith("dispatch_many"):
                    self.unknown = True
                continue
            expected = sent.effect(self.memory)
            if not self.unknown and not _equal(result, expected):
                raise Wrong(
                    f"request {sent.msgid}, {sent.what}: {difference(result, expected)}"
                    + "".join(map(self.touched, sent.needs[:4]))
                )
        self.waiting.clear()
        self.cancels.clear()

    def _answer(self, msgid: int) -> tuple[Any, Any]:
        while msgid not in self.client.answers:
            if not self.client.receive() and msgid not in self.client.answers:
                raise ConnectionError(f"closed before the answer to {msgid}: {self.client.notices}")
        return self.client.answers.pop(msgid)

    def _check_code(self, sent: Sent, error: dict[str, Any] | None, cancelled: set[int]) -> None:
        code = None if error is None else error["code"]
        if code in self._tolerated:
            return
        missing = any(handle not in self.memory for handle in sent.needs)
        behind = any(msgid in self.failed for msgid in sent.after)
        allowed: set[str | None] = set()
        if sent.msgid in cancelled:
            allowed.add("cancelled")
        elif behind:
            allowed.add("dependency")
            if missing:
                allowed.add("not_found")
        elif missing:
            allowed |= {"not_found"} if sent.touches else {"not_found", None}
        else:
            allowed.add(None)
        if sent.deadline and sent.msgid not in cancelled:
            allowed.add("expired")
        if code not in allowed:
            raise Wrong(f"request {sent.msgid}, {sent.what}: {error or 'done'}; expected {allowed}")


def _equal(result: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return bytes(result) == expected.tobytes() if isinstance(result, (bytes, bytearray)) else False
    if isinstance(expected, dict):
        return isinstance(result, dict) and all(_equal(result.get(k), v) for k, v in expected.items())
    if isinstance(expected, list):
        return len(result) == len(expected) and all(map(_equal, result, expected))
    return bool(result == expected)


def difference(result: Any, expected: Any) -> str:
    """Where bytes differ, in few words."""
    if isinstance(expected, dict) and isinstance(result, dict):
        return ", ".join(
            f"{key}: {difference(result.get(key), value)}"
            for key, value in expected.items()
            if not _equal(result.get(key), value)
        )
    if isinstance(expected, list):
        return ", ".join(f"{i}: {difference(r, e)}" for i, (r, e) in enumerate(zip(result, expected, strict=False)))
    if not isinstance(expected, np.ndarray) or not isinstance(result, (bytes, bytearray, np.ndarray)):
        return f"{str(result)[:80]} instead of {str(expected)[:80]}"
    found = np.frombuffer(result, np.uint8)
    if len(found) != len(expected):
        return f"{len(found)} bytes instead of {len(expected)}"
    places = np.flatnonzero(found != expected)
    if not len(places):
        return "equal"
    first, last = int(places[0]), int(places[-1])
    return (
        f"{len(places)} of {len(found)} bytes differ, from {first} to {last}: "
        f"{found[first : first + 16].tobytes().hex()} instead of {expected[first : first + 16].tobytes().hex()}"
    )
