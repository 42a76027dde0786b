"""The buffers that a request of many launches names, found for whole columns of handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.kernels.plan import BoundBuffer

Column: TypeAlias = npt.NDArray[Any]
FindAll: TypeAlias = Callable[[list[int]], "list[BoundBuffer | None]"]

# Handles up to this are looked up in tables as long as the largest of them, others by sorting. Connections count them
# up from 1, so nearly all are below.
_DENSE = 1 << 20


class BufferTable:
    """The buffers that a request names, each once."""

    def __init__(self, find_all: FindAll) -> None:
        self._find_all = find_all
        # Handle to place; below zero for those not looked up yet, and those that name nothing.
        self._dense = np.zeros(0, np.int32)
        self._others: dict[int, int] = {}
        self._room = np.zeros(0, np.uint64)
        self.ids: list[int] = []
        self.sizes: list[int] = []

    def place(self, buffer: BoundBuffer, handle: int) -> int:
        """The place of one buffer."""
        if handle < _DENSE:
            self._reach(handle)
            known = int(self._dense[handle])
        else:
            known = self._others.get(handle, -1)
        if known >= 0:
            return known
        place = len(self.ids)
        self.ids.append(buffer.id)
        self.sizes.append(buffer.size)
        if handle < _DENSE:
            self._dense[handle] = place
        else:
            self._others[handle] = place
        return place

    def places(self, handles: Column) -> Column:
        """The places of a column of handles, below zero for those that name no buffer."""
        top = int(handles.max())
        if top >= _DENSE:
            return self._sparse(handles)
        self._reach(top)
        there = np.zeros(len(self._dense), np.bool_)
        there[handles] = True
        new = np.flatnonzero(there & (self._dense < 0))
        if len(new):
            self._dense[new] = self._add(new.tolist())
        return self._dense[handles]

    def room(self, places: Column) -> Column:
        """The sizes of the buffers in these places."""
        if len(self._room) != len(self.sizes):
            self._room = np.asarray(self.sizes, np.uint64)
        return self._room[places] if len(self._room) else np.zeros(len(places), np.uint64)

    def _reach(self, handle: int) -> None:
        if handle >= len(self._dense):
            more = max(handle + 1, 2 * len(self._dense)) - len(self._dense)
            self._dense = np.concatenate([self._dense, np.full(more, -1, np.int32)])

    def _sparse(self, handles: Column) -> Column:
        named, inverse = np.unique(handles, return_inverse=True)
        found = self._find_all(named.tolist())
        pairs = zip(found, named.tolist(), strict=True)
        return np.asarray([-1 if b is None else self.place(b, h) for b, h in pairs], np.int32)[inverse]

    def _add(self, handles: list[int]) -> Column:
        """Places for handles that have none."""
        found = self._find_all(handles)
        first = len(self.ids)
        buffers = [b for b in found if b is not None]
        self.ids += [b.id for b in buffers]
        self.sizes += [b.size for b in buffers]
        places = np.arange(first, len(self.ids), dtype=np.int32)
        if len(buffers) == len(found):
            return places
        every = np.full(len(found), -1, np.int32)
        every[[b is not None for b in found]] = places
        return every
