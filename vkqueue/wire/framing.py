"""A stream of bytes to whole messages, bounded in size, depth and count.

Three ways through, so that small messages cost one pass of a C decoder and large ones no copy:

- *Burst.* Messages that lie whole in the receive buffer are decoded in one pass.
- *Tail.* What is left at the end of a burst is a message that is not whole. Its headers are walked in Python
  (`HeaderWalk`, which goes on where it stopped, so that a message that comes byte by byte costs linear time), and
  a header that promises too much ends the connection before anything is allocated for it.
- *Splice.* When the walk meets a large bin of which a part is still to come, the bin gets memory of its own, and the
  next reads go straight there. The rest of the message is kept without its bins, and they are put back at the end.

The receive buffer is never longer than any of the limits, so a message that lies whole in it cannot be over one:
only the walk has to count.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from enum import Enum
from typing import Any

from vkqueue.errors import ProtocolError, TooLargeError, VkqueueError
from vkqueue.large import LARGE, new_large
from vkqueue.wire import codec
from vkqueue.wire.headers import BINS, EXTENSIONS, FIXED_EXTENSIONS, HEADER, STRINGS, WHOLE
from vkqueue.wire.repeats import Repeats

_log = logging.getLogger("vkqueue.wire")

_KIB, _MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may be. Each but the depth is at least 64, so that any header fits the receive buffer.

    Attributes:
        max_message_bytes: a whole message, headers included, both ways.
        max_depth: levels of lists and maps; the message's own list is the first. The deepest message of the
            protocol (a member of an entry of an array of entries) has nine.
        max_items: entries of all lists and maps of one message together, a key and its value counting as two. As
            many as one page of descriptors needs; it also bounds the time that a hostile message costs.
        max_str_bytes: one string. Sources are the longest that are sent on purpose.
        receive_buffer: bytes kept for each connection; enough for 2,000 small dispatches in one read.
        large_bin: bins of this size that are not whole in the receive buffer get memory of their own.
    """

    max_message_bytes: int = 64 * _MIB
    max_depth: int = 32
    max_items: int = 128 * _KIB
    max_str_bytes: int = 16 * _MIB
    receive_buffer: int = 128 * _KIB
    large_bin: int = codec.LARGE

    def __post_init__(self) -> None:
        if self.room < 64 or self.max_depth < 4:
            raise ValueError(f"limits of a message must be at least 64, the depth at least 4: {self}")

    @property
    def room(self) -> int:
        """Bytes of the receive buffer."""
        return min(self.receive_buffer, self.max_message_bytes, self.max_items, self.max_str_bytes)


KEY_FAULT = "a map in the message has a key that is not a string"


def depth_fault(max_depth: int) -> str:
    """The text for a message that is nested too deep."""
    return f"the message is nested more than {max_depth} levels deep"


def structure_fault(value: object, max_depth: int, depth: int = 1) -> str | None:
    """What is wrong with keys or depth of a decoded value, or None.

    Args:
        value: anything; what is no list or map is right.
        max_depth: levels allowed.
        depth: the level of `value` itself.
    """
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return KEY_FAULT
        inner: Any = value.values()
    elif type(value) is list:
        inner = value
    else:
        return None
    if depth > max_depth:
        return depth_fault(max_depth)
    for item in inner:
        if type(item) is list or type(item) is dict:
            fault = structure_fault(item, max_depth, depth + 1)
            if fault:
                return fault
    return None


class Walk(Enum):
    """Where a walk stopped."""

    MORE = "more"  # the message goes on behind what is there
    BIN = "bin"  # at a large bin of which a part is still to come; `position` is its header
    WHOLE = "whole"  # the message ends at `position`


class HeaderWalk:
    """Walks over the headers of one message, from its first byte on, and goes on where it stopped.

    Attributes:
        position: index, in the bytes given to `advance`, of the next header; may lie behind their end.
        taken: bytes of the message that lie before the first of those bytes, and are held elsewhere.
        bin_header, bin_size: of the bin at `position`, after `Walk.BIN`.
        extensions: what `codec.unpack_spliced` wants to know.
    """

    __slots__ = ("_in_map", "_items", "_left", "_limits", "_outer", "bin_header", "bin_size", "extensions",
                 "position", "taken")  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = 1  # values still to come in the innermost list or map; an even number in a map: a key is next
        self._in_map = False
        self._outer: list[tuple[int, bool]] = []  # _left and _in_map of the lists and maps around it
        self._items = 0
        self.position = 0
        self.taken = 0
        self.bin_header = 0
        self.bin_size = 0
        self.extensions: list[memoryview | None] = []

    def advance(self, data: bytearray, end: int) -> Walk:
        """Walk on through data[:end].

        Raises:
            ProtocolError: not MessagePack, a key that is no string, too deep, too many entries.
            TooLargeError: over a size.
        """
        last = self._limits.max_message_bytes - self.taken
        while True:
            while not self._left and self._outer:
                self._left, self._in_map = self._outer.pop()
            position = self.position
            if not self._left:
                return Walk.WHOLE if position <= end else Walk.MORE
            if position >= end:
                return Walk.MORE
            first = data[position]
            if self._in_map and not self._left & 1 and first not in STRINGS:
                raise ProtocolError(KEY_FAULT)
            size = WHOLE[first] or self._look_into(first, data, end, last)
            if not size:
                return Walk.MORE
            if position + size > last:
                raise self._too_large(self.taken + position + size)
            self._left -= 1
            if position + size > end and first in BINS and size - HEADER[first] >= self._limits.large_bin:
                self.bin_header = HEADER[first]
                self.bin_size = size - self.bin_header
                return Walk.BIN
            self.position = position + size

    def splice(self, buffer: memoryview) -> None:
        """After `Walk.BIN`: all bytes up to the bin's end are held elsewhere, the bin's in `buffer`."""
        self.taken += self.position + self.bin_header + self.bin_size
        self.position = 0
        self.extensions.append(buffer)

    def take(self, count: int) -> None:
        """The first `count` bytes are now held elsewhere."""
        self.taken += count
        self.position -= count

    def _look_into(self, first: int, data: bytearray, end: int, last: int) -> int:
        """Bytes of the value that begins at `position`, of a list or map those of its header; 0: more are needed."""
        header = HEADER[first]
        body = self.position + header
        if not header:
            raise ProtocolError("not valid MessagePack: no value begins with the byte 0xc1")
        if body > end:
            return 0
        if first <= 0x9F or first >= 0xDC:
            self._open(first, data, header, last - body)
            return header
        if first in FIXED_EXTENSIONS:
            length, kind = FIXED_EXTENSIONS[first], data[body - 1]
        elif first in EXTENSIONS:
            length, kind = int.from_bytes(data[self.position + 1 : body - 1], "big"), data[body - 1]
        else:
            length, kind = int.from_bytes(data[self.position + 1 : body], "big"), codec.TIMESTAMP
            if first in STRINGS and length > self._limits.max_str_bytes:
                raise TooLargeError(
                    f"a string of {length} bytes: the limit is {self._limits.max_str_bytes}; send bytes as a bin"
                )
        if kind != codec.TIMESTAMP:
            self.extensions.append(None)
        return header + length

    def _open(self, first: int, data: bytearray, header: int, room: int) -> None:
        """Go into a list or map."""
        in_map = first <= 0x8F or first >= 0xDE
        count = first & 0x0F if header == 1 else int.from_bytes(data[self.position + 1 : self.position + header], "big")
        entries = 2 * count if in_map else count
        if entries > room:  # each takes a byte at least
            raise self._too_large(self._limits.max_message_bytes - room + entries)
        self._items += entries
        if self._items > self._limits.max_items:
            raise ProtocolError(
                f"the message has {self._items} or more entries of lists and maps (a key and its value count as two): "
                f"the limit is {self._limits.max_items}; send many numbers as one bin"
            )
        if len(self._outer) >= self._limits.max_depth:
            raise ProtocolError(depth_fault(self._limits.max_depth))
        self._outer.append((self._left - 1, self._in_map))
        self._left = entries + 1  # `advance` takes off one for the list or map itself
        self._in_map = in_map

    def _too_large(self, size: int) -> TooLargeError:
        limit = self._limits.max_message_bytes
        return TooLargeError(
            f"a message of {size} bytes or more: the limit is {limit} (max_message_bytes of hello); send it in parts"
        )


def _landing(size: int) -> memoryview:
    """Memory for a bin that is to come, not touched before the bytes arrive: a promise costs nothing.

    `bytearray(size)` would write zeros to all of it first. What was in the memory before is never seen: a bin is
    handed out only when all of it has arrived.
    """
    return new_large(size) if size >= LARGE else memoryview(_new_bytearray(None, size))


_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]


class Splitter:
    """Bytes of one connection to messages.

    Drive it by `get_buffer`, a read into that, and `buffer_updated`.

    Args:
        repeats: recognizes requests that come again; they appear as (msgid, Launch or Filled) among the messages.

    Attributes:
        fault: why nothing more is taken from this stream, None while all is well.
    """

    def __init__(self, limits: Limits, repeats: Repeats | None = None) -> None:
        self.fault: VkqueueError | None = None
        self._repeats = repeats
        self._limits = limits
        self._buffer = bytearray(limits.room)
        self._view = memoryview(self._buffer)
        self._fill = 0
        self._unpacker = codec.stream_unpacker(limits.room)
        self._walk: HeaderWalk | None = None  # of the message that begins in what is held, or at the buffer's start
        self._held = bytearray()  # its bytes that are no longer in the buffer, but for spliced bins
        self._landing: memoryview | None = None  # the part of the current spliced bin that is still to come

    def get_buffer(self) -> memoryview:
        """Where the next read goes; never empty. It is valid until the next `buffer_updated`."""
        if self._landing is not None:
            return self._landing
        return self._view[self._fill :]

    def buffer_updated(self, count: int) -> list[Any]:
        """Take `count` bytes that were read into the last `get_buffer`.

        Returns:
            The messages that became whole, in order, as Python values of any kind; bins that were received on their
            own as memoryviews, other bins as bytes. When the stream is at fault the error is the last entry, and no
            later call returns any. Keys and depth of messages that came whole are not checked: that is
            `structure_fault`, for the caller, who knows where lists and maps can be.
        """
        messages: list[Any] = []
        if self.fault is not None:
            return messages
        try:
            if self._landing is None:
                self._fill += count
            elif count < len(self._landing):
                self._landing = self._landing[count:]
                return messages
            else:
                self._landing = None
            begin = 0 if self._walk is None else self._resume(self._walk, messages)
            while begin < self._fill:
                begin = self._burst(begin, messages)
            if self._walk is None:
                self._fill = 0
        except VkqueueError as error:
            self.fault = error
            self._fill = 0
            self._walk = None
            self._held = bytearray()
            messages.append(error)
        return messages

    def _burst(self, begin: int, messages: list[Any]) -> int:
        """Decode what is whole from `begin` on; the index where the next message begins, `_fill` if it is kept."""
        repeats = self._repeats
        if repeats is not None:
            begin = repeats.take(self._view, begin, self._fill, messages)
            if begin == self._fill:
                return begin
            if not repeats.learning:
                repeats = None
        unpacker = self._unpacker
        start = end = unpacker.tell()
        tell, append = unpacker.tell, messages.append
        try:
            unpacker.feed(self._view[begin : self._fill])
            for message in unpacker:
                append(message)
                if repeats is not None:
                    repeats.learn(message, self._view[begin + end - start : begin + tell() - start])
                end = tell()
        except Exception:  # the walk finds out what is wrong, and whether the message is whole at all
            _log.debug("a burst stopped early", exc_info=True)
        begin += end - start
        if begin == self._fill:
            return begin
        self._unpacker = codec.stream_unpacker(self._limits.room)
        self._keep_from(begin)
        self._walk = HeaderWalk(self._limits)
        return self._resume(self._walk, messages)

    def _resume(self, walk: HeaderWalk, messages: list[Any]) -> int:
        """Walk on through the buffer; the index where the next message begins, `_fill` when this one is not whole."""
        found = walk.advance(self._buffer, self._fill)
        if found is Walk.WHOLE:
            end = walk.position
            data: bytearray | memoryview = self._view[:end]
            if walk.taken:
                self._held += data
                data, self._held = self._held, bytearray()
            messages.append(codec.unpack_spliced(data, walk.extensions))
            self._walk = None
            return end
        if found is Walk.BIN:
            self._splice(walk)
        elif self._fill == len(self._buffer):
            count = min(walk.position, self._fill)  # less than all when it ends within a header
            self._held += self._view[:count]
            walk.take(count)
            self._keep_from(count)
        return self._fill

    def _splice(self, walk: HeaderWalk) -> None:
        landing = _landing(walk.bin_size)
        self._held += self._view[: walk.position]
        self._held += codec.PLACEHOLDER
        body = walk.position + walk.bin_header
        here = self._fill - body
        landing[:here] = self._view[body : self._fill]
        self._landing = landing[here:]
        self._fill = 0
        walk.splice(landing)

    def _keep_from(self, begin: int) -> None:
        """Move what lies in the buffer from `begin` on to its start."""
        self._fill -= begin
        if begin and self._fill:
            self._buffer[: self._fill] = self._buffer[begin : begin + self._fill]
