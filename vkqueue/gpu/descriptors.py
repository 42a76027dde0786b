"""Descriptors of tokens: packed once into the bytes that update templates read, and rings of descriptor sets."""

from __future__ import annotations

import struct
from typing import Any

from vkqueue.errors import InternalError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.buffers import Buffers
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.gpu.layout import PipelineLayout
from vkqueue.model import Token

# Packed tokens kept. With 100 bytes each and their places in two tables some 20 MB; a client that uses more different
# launches than this in turn packs them anew, at 1 µs a descriptor. Arbitrary.
MAX_PACKED = 65_536
# Slots whose sets one descriptor pool holds.
POOL_SLOTS = 64

_UNIFORM_BUFFER, _STORAGE_BUFFER = 6, 7  # VkDescriptorType

Place = tuple[int, int]
"""(VkBuffer, offset in it) of a transient entry."""


class Descriptors:
    """Packed tokens and rings of a device.

    Attributes:
        packed: token id -> the bytes of its VkDescriptorBufferInfos, for tokens that come again. Only the hot loop
            reads it directly; whoever misses there calls `pack`.
    """

    def __init__(self, device: Device, buffers: Buffers, max_packed: int = MAX_PACKED) -> None:
        self._device = device
        self._buffers = buffers
        self._max_packed = max_packed
        self.packed: dict[int, bytes] = {}
        self._tokens: dict[int, set[int]] = {}  # buffer id -> tokens, packed or in a slot, that bind it
        self._slots: dict[int, set[tuple[Ring, int]]] = {}  # token id -> slots that hold it
        self._rings: dict[int, Ring] = {}  # layout id -> ring

    def pack(self, token: Token, places: list[Place] | None = None) -> bytes:
        """The descriptors of a token, remembered if it comes again.

        Args:
            places: where the transient entries of this launch lie, by their place in the payload.

        Raises:
            NotFoundError: a buffer was never created or is gone.
            InternalError: an entry lies outside its buffer, or names a transient that is not there.
        """
        values: list[int] = []
        for id, offset, size in token.entries:
            if id:
                values += self.client_entry(id, offset, size)
            elif places is not None and offset < len(places):
                # A range must not be empty. One byte of the slice's own padding is no element of any array.
                values += (*places[offset], size or 1)
            else:
                raise InternalError(f"token {token.id} names transient entry {offset}, which the row does not have")
        data = struct.pack(f"<{len(values)}Q", *values)
        if token.cached:
            if len(self.packed) >= self._max_packed:
                self._evict()
            self.packed[token.id] = data
            self._remember(token)
        return data

    def slot(self, layout: PipelineLayout, slot: int, token: Token, data: bytes) -> Ring:
        """The ring with `token` in its slot, written there unless it is already.

        No batch in flight may use the slot if it has to be written.

        Raises:
            OutOfDeviceMemoryError: no memory for another pool.
            InternalError: the row has no slot.
        """
        if slot < 0:
            raise InternalError(f"a launch with layout {layout.layout.id} needs a slot of the ring and has none")
        ring = self._rings.get(layout.layout.id)
        if ring is None:
            ring = self._rings[layout.layout.id] = Ring(self._device, layout)
        held = ring.holds(slot)
        if held != token.id:
            ring.write(slot, token.id if token.cached else None, data)
            if held is not None and (places := self._slots.get(held)) is not None:
                places.discard((ring, slot))
                if not places:
                    del self._slots[held]
            if token.cached:
                self._slots.setdefault(token.id, set()).add((ring, slot))
                self._remember(token)
        return ring

    def forget(self, buffers: tuple[int, ...]) -> None:
        """Drop every token that binds one of these buffers: it cannot be used again."""
        for id in buffers:
            for token in self._tokens.pop(id, ()):
                self.packed.pop(token, None)
                for ring, slot in self._slots.pop(token, ()):
                    ring.clear(slot, token)

    def layout_gone(self, layout: PipelineLayout) -> None:
        """Destroy the ring of a layout whose set layouts are about to go; nothing in flight uses it."""
        ring = self._rings.pop(layout.layout.id, None)
        if ring is not None:
            ring.close()

    def close(self) -> None:
        """Destroy the rings."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def client_entry(self, id: int, offset: int, size: int) -> tuple[int, int, int]:
        """(VkBuffer, offset, range) to bind for a range of a client's buffer.

        Raises:
            NotFoundError: the buffer was never created or is gone.
            InternalError: the range lies outside it.
        """
        buffer = self._buffers.get(id)
        if offset < 0 or size < 0 or offset + size > buffer.size:
            raise InternalError(f"range {offset} + {size} lies outside buffer {id} of {buffer.size} bytes")
        if size == 0:
            return self._buffers.empty_range(buffer)
        return buffer.handle, offset, size

    def _remember(self, token: Token) -> None:
        for id, _, _ in token.entries:
            if id:
                self._tokens.setdefault(id, set()).add(token.id)

    def _evict(self) -> None:
        """Drop the oldest half: one pass over the tables for many tokens, and nothing to do at each use."""
        for token in list(self.packed)[: self._max_packed // 2 + 1]:
            del self.packed[token]
        self._tokens = {
            id: kept
            for id, tokens in self._tokens.items()
            if (kept := {t for t in tokens if t in self.packed or t in self._slots})
        }


class Ring:
    """Descriptor sets of one layout, as many groups of them as there are slots in use.

    A group has one set for each set of the layout that is not pushed.

    Attributes:
        layout: whose they are.
    """

    def __init__(self, device: Device, layout: PipelineLayout) -> None:
        self._device = device
        self.layout = layout
        self._sets = layout.rings
        self._pools: list[int] = []
        self._room = 0  # groups that the last pool has room for
        self._groups: list[tuple[int, ...]] = []
        self._holds: list[int | None] = []
        self._device_param = param(device.handle)
        self._templates = [param(ring.template) for ring in layout.rings]
        self._bindings: list[list[tuple[int, int, bytes]]] = []
        self._layouts = binding.ffi.new(
            "VkDescriptorSetLayout[]",
            [binding.ffi.cast("VkDescriptorSetLayout", ring.set_layout) for ring in layout.rings],
        )

    def holds(self, slot: int) -> int | None:
        """The id of the token in a slot; None for an unknown or no token."""
        return self._holds[slot] if slot < len(self._holds) else None

    def reserve(self, slots: int) -> None:
        """Have so many slots, so that writing them does not fail.

        Raises:
            OutOfDeviceMemoryError
        """
        while len(self._groups) < slots:
            self._add_group()

    def write(self, slot: int, token: int | None, data: Any) -> None:
        """Write packed descriptors (bytes, or a pointer to them) into a slot; None for a token that cannot come again.

        Raises:
            OutOfDeviceMemoryError
        """
        self.reserve(slot + 1)
        update = self._device.raw.update_descriptor_set_with_template
        self._holds[slot] = None
        for handle, template in zip(self._groups[slot], self._templates, strict=True):
            update(self._device_param, param(handle), template, data)
        self._holds[slot] = token

    def clear(self, slot: int, token: int) -> None:
        """Forget what a slot holds, if it is this token."""
        if self._holds[slot] == token:
            self._holds[slot] = None

    def bindings(self, slot: int) -> list[tuple[int, int, bytes]]:
        """What to bind for a slot: (first set, count, VkDescriptorSets), a tuple for each run of set numbers."""
        return self._bindings[slot]

    def close(self) -> None:
        """Destroy the pools and with them all sets."""
        for pool in self._pools:
            self._device.destroy("VkDescriptorPool", pool)
        self._pools.clear()

    def _add_group(self) -> None:
        if not self._room:
            self._add_pool()
        try:
            group = self._allocate()
        except binding.DescriptorPoolFullError:
            # The driver may find a pool full or fragmented before it is by count: then another one.
            self._add_pool()
            group = self._allocate()
        self._room -= 1
        self._groups.append(group)
        self._holds.append(None)
        self._bindings.append(_runs([ring.number for ring in self._sets], group))

    def _allocate(self) -> tuple[int, ...]:
        count = len(self._sets)
        device = self._device
        with Arena() as arena:
            info = arena.struct(
                "VkDescriptorSetAllocateInfo",
                descriptorPool=self._pools[-1],
                descriptorSetCount=count,
                pSetLayouts=self._layouts,
            )
            out = arena.out("VkDescriptorSet[]", count)
            device.calls.vkAllocateDescriptorSets(device.handle, info, out)
            return tuple(binding.address(out[i]) for i in range(count))

    def _add_pool(self) -> None:
        sizes = (
            (_UNIFORM_BUFFER, sum(ring.uniform for ring in self._sets)),
            (_STORAGE_BUFFER, sum(ring.storage for ring in self._sets)),
        )
        with Arena() as arena:
            structs = [
                arena.struct("VkDescriptorPoolSize", type=kind, descriptorCount=count * POOL_SLOTS)
                for kind, count in sizes
                if count
            ]
            info = arena.struct(
                "VkDescriptorPoolCreateInfo",
                maxSets=len(self._sets) * POOL_SLOTS,
                poolSizeCount=len(structs),
                pPoolSizes=structs,
            )
            self._pools.append(self._device.create("VkDescriptorPool", info))
        self._room = POOL_SLOTS


def _runs(numbers: list[int], handles: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    """Consecutive set numbers with their sets, as `vkCmdBindDescriptorSets` takes them."""
    runs: list[tuple[int, list[int]]] = []
    for number, handle in zip(numbers, handles, strict=True):
        if runs and runs[-1][0] + len(runs[-1][1]) == number:
            runs[-1][1].append(handle)
        else:
            runs.append((number, [handle]))
    return [(first, len(sets), struct.pack(f"<{len(sets)}Q", *sets)) for first, sets in runs]
