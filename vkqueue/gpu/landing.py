"""Large payloads without a copy by the host: the pages that a message landed in are what the device copies from, and
those that a result is read in are what it copies to.

Such pages come again and again (see `vkqueue.large`), so each are imported once, with VK_EXT_external_memory_host. That
costs about as much as one copy of them (5 ms for 64 MiB on an H200), so it is done when pages come a second time.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import weakref
from collections import OrderedDict
from typing import Any

from vkqueue.errors import DeviceLostError, VkqueueError
from vkqueue.gpu import binding
from vkqueue.gpu.device import Device
from vkqueue.gpu.imported import ImportedBuffer
from vkqueue.large import LARGE, is_kept, new_large, pages_at
from vkqueue.model import Shared

log = logging.getLogger("vkqueue.gpu")

# Imported at once, in bytes: twice what `large` keeps while nobody uses it, for there are those in use. Arbitrary.
_MAX_BYTES = 256 << 20
# Refusals of a driver in a row before it is not asked any more. Arbitrary: one may have no memory for a moment, or not
# take pages that another device has.
_MOST_REFUSALS = 8
_MADV_DONTFORK: int | None = getattr(mmap, "MADV_DONTFORK", None)


class Landing:
    """Imported pages, as what the device copies from or to.

    Attributes:
        buffer: over all of the pages.
        users: passages that are not over.
    """

    __slots__ = ("buffer", "users")

    def __init__(self, buffer: ImportedBuffer) -> None:
        self.buffer = buffer
        self.users = 0


class Passage:
    """Data of a batch that the device copies from or to pages. They are not used for anything else before it is over,
    whoever forgets the batch: a device that is left with work in progress goes on with it.

    Attributes:
        data: the bytes, from the first of the landing's pages on.
    """

    __slots__ = ("data", "landing")

    def __init__(self, landing: Landing, data: memoryview) -> None:
        self.landing = landing
        self.data = data
        landing.users += 1
        _UNDER_WAY.add(self)

    def over(self) -> None:
        """The batch has been retired, or never ran."""
        self.landing.users -= 1
        _UNDER_WAY.discard(self)


_UNDER_WAY: set[Passage] = set()


class Landed:
    """A large result on its way: the device copies it to where it is read. It has what `staging.Slice` has for that."""

    __slots__ = ("block", "data", "offset", "size")

    def __init__(self, passage: Passage) -> None:
        self.block = passage.landing
        self.data = passage.data
        self.offset = 0
        self.size = len(passage.data)

    def read(self) -> Any:
        """The bytes, after the fence."""
        return self.data


class Landings:
    """The imported pages of a device. For the worker thread.

    Args:
        usage: VkBufferUsageFlags of its buffers.
        able: whether the device imports host memory.
    """

    def __init__(self, device: Device, usage: int, able: bool) -> None:
        self._device = device
        self._usage = usage
        self._able = able
        self._refusals = 0
        self._met: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._imported: OrderedDict[mmap.mmap, Landing] = OrderedDict()  # longest unused first

    def source(self, data: Any, room: int) -> Passage | None:
        """What `data`, followed by zeros up to `room` bytes, can be copied from, at offset 0.

        None where it is small, did not land in pages of its own, or came there for the first time.

        Raises:
            DeviceLostError
        """
        size = len(data)
        if not self._able or size < LARGE or type(data) is not memoryview:
            return None
        address = binding.address(binding.ffi.from_buffer(data))
        found = pages_at(address)
        if found is None:
            return None
        pages, landed = found
        if room > size and (room > len(pages) or landed > size):
            return None  # there is no room for zeros, or it is only the beginning of what came
        landing = self._landing(pages)
        if landing is None:
            return None
        if room > size:
            ctypes.memset(address + size, 0, room - size)
        return Passage(landing, data)

    def target(self, size: int) -> Passage | None:
        """Where `size` bytes can be copied to, to be read by the host; None where they are few, or the pages that they
        got came for the first time.

        Raises:
            DeviceLostError
        """
        if not self._able or size < LARGE:
            return None
        data = new_large(size)
        found = pages_at(binding.address(binding.ffi.from_buffer(data)))
        assert found is not None  # of the data that is in use
        landing = self._landing(found[0])
        return None if landing is None else Passage(landing, data)

    def trim(self) -> None:
        """Let go of what no batch uses."""
        for pages, landing in list(self._imported.items()):
            if not landing.users:
                self._drop(pages)

    def close(self) -> None:
        """Let go of everything; the device is idle."""
        for pages in list(self._imported):
            self._drop(pages)

    def _landing(self, pages: mmap.mmap) -> Landing | None:
        landing = self._imported.get(pages)
        if landing is None:
            if pages not in self._met:
                self._met.add(pages)
                return None
            self._make_room(len(pages))
            landing = self._import(pages)
            if landing is None:
                return None
            self._imported[pages] = landing
        self._imported.move_to_end(pages)
        return landing

    def _import(self, pages: mmap.mmap) -> Landing | None:
        if _MADV_DONTFORK is not None:
            # After a fork the first to write gets other pages, and the device would go on with the old ones.
            pages.madvise(_MADV_DONTFORK)
        shared = Shared((ctypes.c_ubyte * len(pages)).from_buffer(pages))
        try:
            landing = Landing(ImportedBuffer(self._device, shared, len(pages), self._usage))
        except DeviceLostError:
            raise
        except VkqueueError as error:  # it is only a short cut
            self._refusals += 1
            self._able = self._refusals < _MOST_REFUSALS
            self._met.discard(pages)
            log.info("large payloads of %d bytes are copied: %s", len(pages), error.message)
            return None
        self._refusals = 0
        return landing

    def _make_room(self, size: int) -> None:
        for pages, landing in list(self._imported.items()):
            if not (landing.users or is_kept(pages)):
                self._drop(pages)
        held = sum(map(len, self._imported))
        for pages, landing in list(self._imported.items()):
            if held + size <= _MAX_BYTES:
                return
            if not landing.users:
                held -= len(pages)
                self._drop(pages)

    def _drop(self, pages: mmap.mmap) -> None:
        self._imported.pop(pages).buffer.free()
