"""Requests for inference that differ in their inputs' bytes only are not decoded again.

All but the contents of these bins is the request's *form*. MessagePack says how long a bin is before its contents, so
where the bytes up to the first contents, and those behind each, are a form's, the message is of this form whatever the
contents are. It is whole and right then, as the one was that the form was learned from. To the form the daemon may pin
what it worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkqueue.wire import codec
from vkqueue.wire.headers import bins_in

# Arbitrary bounds of what is kept of a connection: forms and their bytes, lengths of what is before the first contents.
_MAX_KEPT = 256
_MAX_KEPT_BYTES = 256 * 1024
_MAX_HEADS = 8

INFER = b"\xabmodel.infer"
_FRAME = b"\x94\x00\x00"  # of a request with the msgid 0: what follows is a body


class Form:
    """What requests have in common.

    Attributes:
        names: of each bin, in order, the input whose data it is.
        memo: the daemon's.
        size: bytes of a body.
        rest: of each bin its size, and the bytes behind it.
    """

    __slots__ = ("_message", "memo", "names", "rest", "size")

    def __init__(self, message: bytes, names: list[str], rest: list[tuple[int, bytes]], size: int) -> None:
        self._message = message  # with placeholders
        self.names = names
        self.rest = rest
        self.size = size
        self.memo: Any = None

    def params(self, bins: Sequence[bytes]) -> dict[str, Any]:
        """The parameters of a request with these bins."""
        params: dict[str, Any] = codec.unpack_spliced(self._message, [memoryview(data) for data in bins])[3][0]
        return params


class Filled:
    """The parameters of a request of a form."""

    __slots__ = ("bins", "form")

    method = "model.infer"

    def __init__(self, form: Form, bins: list[bytes]) -> None:
        self.form = form
        self.bins = bins

    def whole(self) -> dict[str, Any]:
        """As they are when they have been decoded."""
        return self.form.params(self.bins)


class Forms:
    """Of one connection. A request's body is all behind its msgid."""

    def __init__(self) -> None:
        self._known: dict[bytes, Form] = {}  # by what comes before the contents of the first bin
        self._heads: list[int] = []  # lengths of these
        self._bytes = 0

    def find(self, view: memoryview, body: int, fill: int) -> tuple[Filled, int] | None:
        """The request whose body begins at `body`, if it is known and lies whole before `fill`; and where it ends."""
        known = self._known
        for head in self._heads:
            form = known.get(view[body : body + head].tobytes())
            if form is None or body + form.size > fill:
                continue
            bins = []
            at = body + head
            for size, behind in form.rest:
                contents, at = at, at + size
                bins.append(view[contents:at].tobytes())
                stop = at + len(behind)
                if view[at:stop].tobytes() != behind:
                    break
                at = stop
            else:
                return Filled(form, bins), at
        return None

    def learn(self, body: bytes) -> None:
        """Keep the form of a request for inference that is right, if all of its bins are data of inputs."""
        places = bins_in(body)
        if not places:
            return
        spliced, end = _FRAME, 0
        for header, _, after in places:
            spliced += body[end:header] + codec.PLACEHOLDER
            end = after
        spliced += body[end:]
        marks = [memoryview(b"") for _ in places]
        params = codec.unpack_spliced(spliced, marks)[3][0]
        inputs = params.get("inputs")
        found = {}
        for name, entry in inputs.items() if type(inputs) is dict else ():
            if type(entry) is dict:
                found[id(entry.get("data"))] = name
        names = [found.get(id(mark)) for mark in marks]
        if None in names:
            return
        begins = [begin for _, begin, _ in places[1:]] + [len(body)]
        rest = [(after - begin, body[after:upto]) for (_, begin, after), upto in zip(places, begins, strict=True)]
        self._keep(body[: places[0][1]], Form(spliced, [str(name) for name in names], rest, len(body)))

    def _keep(self, head: bytes, form: Form) -> None:
        if len(self._known) >= _MAX_KEPT or self._bytes >= _MAX_KEPT_BYTES:
            self._known.clear()
            self._heads.clear()
            self._bytes = 0
        self._bytes += len(head) + sum(len(behind) for _, behind in form.rest)
        self._known[head] = form
        if len(head) not in self._heads:
            self._heads = [len(head), *self._heads[: _MAX_HEADS - 1]]

    def __bool__(self) -> bool:
        """Whether any is known."""
        return bool(self._known)


__all__ = ["INFER", "Filled", "Form", "Forms"]
