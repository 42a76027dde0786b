"""Rows that move bytes: create, write, read, fill, copy. By the host where the stream says so, else by the device."""

from __future__ import annotations

from vkqueue.errors import InternalError, VkqueueError
from vkqueue.gpu.buffers import Buffers, ClientBuffer, DeviceBuffer
from vkqueue.gpu.commands import Commands
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.mapped import Mapping
from vkqueue.gpu.payload import Payloads
from vkqueue.model import COPY, CREATE, FILL, READ, WRITE, Completion, Range, Row, Shared

_UNSEEN = "a DIRECT row on memory that the host does not see"
# Zeroing a new buffer of up to this size is done by the host wherever it sees the buffer: less than a command costs.
HOST_ZERO_MAX = 16 << 10


class Transfers:
    """Performs or records transfer rows.

    Each method takes (frame, completion, row index, row, whether it is DIRECT) and returns whether it recorded
    commands into `frame.main`, which has been begun unless the row is DIRECT.

    Raises (each):
        NotFoundError: a buffer was never created or is gone.
        OutOfDeviceMemoryError: no memory for staging.
        InternalError: the row breaks the contract of `model`.
    """

    def __init__(self, buffers: Buffers, payloads: Payloads, commands: Commands) -> None:
        self._buffers = buffers
        self._payloads = payloads
        self._commands = commands
        self.by_op = {
            WRITE: self._write, READ: self._read, FILL: self._fill, COPY: self._copy, CREATE: self._create,
        }  # fmt: skip

    def _write(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        token, payload = row[3], row[7]
        if not len(payload):
            return False
        buffer, start, size = self._range(token.writes)
        if size != len(payload):
            raise InternalError(f"a write of {len(payload)} bytes to a range of {size}")
        if direct:
            _mapped(buffer).write(buffer.offset + start, payload)
            frame.by_host.add(index)
            return False
        self._upload(frame, buffer, start, payload, size)
        return True

    def _read(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        token = row[3]
        if not token.reads:
            completion.results[index] = [b""]
            return False
        buffer, start, size = self._range(token.reads)
        if direct or not size:
            completion.results[index] = [_mapped(buffer).read(buffer.offset + start, size) if size else b""]
            frame.by_host.add(index)
            return False
        target = self._payloads.result(frame, size)
        self._commands.copy(frame.main_param, buffer, start, target.block.buffer, target.offset, size)
        frame.host_sees = True
        frame.results.append((index, [target]))
        return True

    def _fill(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        token, word = row[3], row[7]
        if not token.writes:
            return False
        buffer, start, size = self._range(token.writes)
        if start % 4 or size % 4:
            raise InternalError(f"a fill of {size} bytes from {start}; both must be multiples of 4")
        if size:
            self._commands.fill(frame.main_param, buffer, start, size, word)
        return size > 0

    def _copy(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        token = row[3]
        if not token.writes:
            return False
        source, start, size = self._range(token.reads)
        target, place, room = self._range(token.writes)
        if size != room:
            raise InternalError(f"a copy of {size} bytes to a range of {room}")
        if size:
            self._commands.copy(frame.main_param, source, start, target, place, size)
        return size > 0

    def _create(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        id, (size, data) = row[4], row[7]
        if type(data) is Shared:
            self._buffers.adopt(id, data, size)
            frame.by_host.add(index)
            return False
        if data is not None and len(data) != size:
            raise InternalError(f"a buffer of {size} bytes with {len(data)} bytes of data")
        buffer = self._buffers.create(id, size)
        try:
            return self._initialize(frame, index, buffer, b"" if data is None else data, direct)
        except VkqueueError:
            # Nothing was recorded that uses it.
            self._buffers.take(id)
            self._buffers.destroy_client(buffer)
            raise

    def _initialize(self, frame: Frame, index: int, buffer: DeviceBuffer, data: object, direct: bool) -> bool:
        """Write all of a new buffer: the data, and zeros behind it, for the memory was someone else's before."""
        assert isinstance(data, (bytes, bytearray, memoryview))
        size, capacity = len(data), buffer.capacity
        mapping = buffer.mapping
        if mapping is not None and (direct or (not size and capacity <= HOST_ZERO_MAX)):
            # Nothing in flight can know the buffer, so the host may write it whatever the stream thinks.
            if size:
                mapping.write(buffer.offset, data)
            mapping.zero(buffer.offset + size, capacity - size)
            frame.by_host.add(index)
            return False
        if direct:
            # An empty buffer, which nothing waits for. Its byte is zeroed before all rows.
            if size or buffer.size:
                raise InternalError(_UNSEEN)
            self._commands.fill(self._commands.open_setup(frame), buffer, 0, capacity, 0)
            return False
        if size:
            self._upload(frame, buffer, 0, data, capacity)
        else:
            self._commands.fill(frame.main_param, buffer, 0, capacity, 0)
        return True

    def _upload(self, frame: Frame, buffer: ClientBuffer, start: int, data: object, size: int) -> None:
        """Copy `data`, followed by zeros up to `size` bytes, through staging memory."""
        source, offset = self._payloads.source(frame, data, size)
        self._commands.copy(frame.main_param, source, offset, buffer, start, size)

    def _range(self, ranges: tuple[Range, ...]) -> tuple[ClientBuffer, int, int]:
        """(buffer, first byte, size) of a row's one range, inside the buffer."""
        if len(ranges) != 1:
            raise InternalError(f"a transfer with {len(ranges)} ranges on one side")
        id, start, end = ranges[0]
        buffer = self._buffers.get(id)
        if not 0 <= start <= end <= buffer.size:
            raise InternalError(f"bytes {start} to {end} lie outside buffer {id} of {buffer.size} bytes")
        return buffer, start, end - start


def _mapped(buffer: ClientBuffer) -> Mapping:
    if buffer.mapping is None:
        raise InternalError(_UNSEEN)
    return buffer.mapping
