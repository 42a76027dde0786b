"""Requests that come again, byte for byte but for their msgid, are not decoded again.

A client that launches the same kernel on the same buffers sends the same bytes each time. Everything behind the msgid
is then known by one dictionary look-up: the request is whole (MessagePack is free of prefixes: if the bytes begin with
a value that was whole once, they hold that value), it is checked, and its parameters are the same object as before, to
which the daemon may pin what it worked out for them.

Only dispatches and launches of graphs, of moderate size, are kept; and of requests for inference all but their inputs'
bytes (`forms`). Learning costs a little for each message, so it is
given up, but for an attempt now and then, where nothing comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkqueue.wire.forms import INFER, Forms

# Arbitrary bounds: of one request (a graph's launch may name many buffers), of the requests kept and their bytes, of
# the different lengths that are tried.
_MAX_BYTES = 512
_MAX_GRAPH_BYTES = 4096
_MAX_KEPT = 16_384
_MAX_KEPT_BYTES = 24 * 2**20
# Of all connections: who would keep more drops its own first.
_MAX_KEPT_EVERYWHERE = 256 * 2**20
# About what CPython takes for the parameters of a request and their place here, beside its bytes.
_OVERHEAD = 1024
_MAX_SIZES = 4
# What learning may cost before it has to pay: a learned request costs one, a repeated one gives one back.
# Enough for a client that goes round as many requests as are kept: it pays from the second round on.
_BUDGET = _MAX_KEPT
_FORM_COST = 4  # more, for a form; arbitrary

_DISPATCH = b"\xa8dispatch"
_GRAPH_LAUNCH = b"\xacgraph.launch"


class Launch(dict[str, Any]):
    """Parameters of a dispatch that may come again; the same object then. `memo` is the daemon's."""

    __slots__ = ("memo",)

    method = "dispatch"

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.memo: Any = None

    def whole(self) -> dict[str, Any]:
        """As they are when they have been decoded."""
        return self


class GraphLaunch(Launch):
    """Parameters of a graph's launch that may come again."""

    __slots__ = ()

    method = "graph.launch"


class _Everywhere:
    """Bytes that all connections of the process keep."""

    bytes = 0


class Repeats:
    """Of one connection.

    Args:
        vet: whether a decoded message is a request that needs no further check but that of its msgid.
    """

    def __init__(self, vet: Callable[[Any], bool]) -> None:
        self._vet = vet
        self._known: dict[bytes, Launch] = {}
        self._sizes: list[int] = []
        self._bytes = 0
        self._budget = _BUDGET
        self._forms = Forms()

    @property
    def learning(self) -> bool:
        """Whether `learn` is worth its cost at present; asked once a burst."""
        self._budget += 1
        return self._budget > 0

    def take(self, view: memoryview, begin: int, fill: int, messages: list[Any]) -> int:  # noqa: C901 - hot loop
        """Append (msgid, Launch or Filled) for each known request from `begin` on; the index behind the last."""
        known, forms = self._known, self._forms
        if not known and not forms:
            return begin
        append, find, sizes = messages.append, known.get, self._sizes
        size = sizes[0] if sizes else 0
        launch: Any
        came = len(messages)
        while begin + 7 < fill:
            # [0, msgid, …: a request's head, by the form of its msgid
            if view[begin] != 0x94 or view[begin + 1]:
                break
            form = view[begin + 2]
            if form == 0xCE:
                body = begin + 7
                msgid = view[begin + 3] << 24 | view[begin + 4] << 16 | view[begin + 5] << 8 | view[begin + 6]
            elif form == 0xCD:
                body = begin + 5
                msgid = view[begin + 3] << 8 | view[begin + 4]
            elif form < 0x80:
                body = begin + 3
                msgid = form
            elif form == 0xCC:
                body = begin + 4
                msgid = view[begin + 3]
            else:
                break
            end = body + size
            launch = find(view[body:end].tobytes()) if end <= fill else None
            if launch is None:
                for other in sizes:
                    end = body + other
                    if end <= fill and (launch := find(view[body:end].tobytes())) is not None:
                        size = other
                        break
                else:
                    filled = forms.find(view, body, fill)
                    if filled is None:
                        break
                    launch, end = filled
            append((msgid, launch))
            begin = end
        self._budget = min(self._budget + len(messages) - came, _MAX_KEPT)
        return begin

    def learn(self, message: Any, raw: memoryview) -> None:
        """Keep a request that came whole, if it may come again; `raw` is all of its bytes."""
        if self._budget <= 0:
            return
        self._budget -= 1
        form = raw[2]
        begin = 7 if form == 0xCE else 5 if form == 0xCD else 4 if form == 0xCC else 3
        if raw[begin : begin + len(INFER)] == INFER:
            if self._vet(message):
                self._budget -= _FORM_COST
                self._forms.learn(raw[begin:].tobytes())
            return
        if len(raw) > _MAX_GRAPH_BYTES:
            return
        body = raw[begin:].tobytes()
        if body.startswith(_GRAPH_LAUNCH):
            kind: type[Launch] = GraphLaunch
        elif body.startswith(_DISPATCH) and len(raw) <= _MAX_BYTES:
            kind = Launch
        else:
            return
        if not self._vet(message):
            return
        if not self._room():
            return
        self._bytes += len(body) + _OVERHEAD
        _Everywhere.bytes += len(body) + _OVERHEAD
        self._known[body] = kind(message[3][0])
        if len(body) not in self._sizes:
            self._sizes = [len(body), *self._sizes[: _MAX_SIZES - 1]]

    def _room(self) -> bool:
        """Whether another may be kept; at a bound of its own all that is kept is forgotten first."""
        full = _Everywhere.bytes >= _MAX_KEPT_EVERYWHERE
        if full or len(self._known) >= _MAX_KEPT or self._bytes >= _MAX_KEPT_BYTES:
            self._known.clear()
            self._sizes.clear()
            _Everywhere.bytes -= self._bytes
            self._bytes = 0
        return _Everywhere.bytes < _MAX_KEPT_EVERYWHERE

    def __del__(self) -> None:
        _Everywhere.bytes -= self._bytes
