"""Large data in pieces that fit a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vkqueue.errors import InternalError

# A message is more than its data: names, handles, other arguments. Arbitrary, and far above what they come to.
_HEAD_ROOM = 16 * 1024
# Pieces start at multiples of this where they can, so that copies on both sides stay aligned.
_ALIGN = 4096
# Of what is split anyway: as fast as pieces of 64 MiB, and a quarter of the memory on the way.
_PIECE = 16 * 1024 * 1024


def payload_bytes(max_message_bytes: int) -> int:
    """How many bytes of data one message may carry."""
    room = max_message_bytes - min(_HEAD_ROOM, max_message_bytes // 4)
    return room // _ALIGN * _ALIGN if room >= _ALIGN else max(room, 1)


def pieces(size: int, payload: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of the pieces of `size` bytes, of which a message carries `payload`; one empty piece for none."""
    if size == 0:
        yield 0, 0
    piece = payload if size <= payload else min(payload, _PIECE)
    for offset in range(0, size, piece):
        yield offset, min(piece, size - offset)


class Gather:
    """Puts the pieces of a read together. A single one is passed on as it came."""

    def __init__(self, size: int, payload: int) -> None:
        # NumPy has the kernel use huge pages for large memory: a tenth of the page faults of a bytearray.
        self._whole = np.empty(size, np.uint8) if size > payload else None
        self.data: Any = self._whole

    def sink(self, offset: int, size: int) -> Callable[[dict[str, Any]], None]:
        """What takes the answer to the read of this piece."""

        def take(result: dict[str, Any]) -> None:
            data = result["data"]
            if len(data) != size:
                raise InternalError(f"the daemon sent {len(data)} bytes of a read of {size}")
            if self._whole is None:
                self.data = data
            else:
                self._whole[offset : offset + size] = np.frombuffer(data, np.uint8)

        return take
