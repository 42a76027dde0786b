"""The parameters of `dispatch_many` to launches, all of them checked at once.

What one launch may be is decided by the plan, launch by launch as for `dispatch`; here the same rules are written for
whole columns. Where a column breaks one, the first launch that does goes through the plan, which says what is wrong:
so both have the same errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.errors import InternalError, InvalidError, VkqueueError, brief
from vkqueue.kernels.buffer_table import BufferTable, FindAll
from vkqueue.kernels.launches import Many, ManyArgs, ManyJob, ManyToken, Slot
from vkqueue.kernels.plan import Binding, Bound, BoundBuffer, Plan, bind_one, elements_of
from vkqueue.model import Layout

Column: TypeAlias = npt.NDArray[Any]
Find: TypeAlias = Callable[[Any, str], BoundBuffer]

_BINS = (bytes, bytearray, memoryview)
_U8, _U32, _U64 = np.dtype(np.uint8), np.dtype("<u4"), np.dtype("<u8")
_DTYPES = {
    "int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4", "int64": "<i8",
    "uint64": "<u8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "bool32": "<u4",
}  # fmt: skip

# The largest minUniformBufferOffsetAlignment that a device may have.
_UNIFORM_STRIDE = 256

# Of a buffer that is bound whole: nothing lies outside of it.
_WHOLE = (0, 2**63 - 1)

_FORMS = ({"handles"}, {"handles", "offsets", "size"}, {"buffer", "offsets", "size"})


class _Ranges(NamedTuple):
    """An entry that differs from launch to launch; what is no column is the same for all.

    Without `offsets` each launch gets all of its buffer.
    """

    handles: Any
    offsets: Column | None
    sizes: Any


class Checker:
    """Checks one request. For one call of `check`.

    Args:
        plan: of the kernel.
        params: as `wire.messages.check` left them.
        find: handle and label to buffer; raises for one that cannot be used here.
        find_all: handles to buffers, None for those that `find` raises for.
        args: what another request with equal arguments was given, if that is known.
    """

    def __init__(
        self, plan: Plan, params: Mapping[str, Any], find: Find, find_all: FindAll, args: ManyArgs | None = None
    ) -> None:
        self._plan = plan
        self._params = params
        self._count: int = params["count"]
        self._find = find
        self._args = args
        self._table = BufferTable(find_all)
        self._bound = Bound()
        self._entries: list[list[Any]] = []  # for each binding those of its descriptors, columns as _Ranges
        self._columns: dict[str, Column] = {}  # of scalars, by member
        self._worst: int | None = None  # the first launch known to be wrong

    def check(self) -> Many:
        """The launches.

        Raises:
            InvalidError, NotFoundError, DeviceLostError: a launch is wrong: the message and `data` name the first one;
                or something is wrong for all of them.
        """
        grids, scalars = self._grids(), self._scalars()
        args = self._args or self._arguments()
        if self._worst is not None:
            raise self._explain(self._worst, grids)
        most = grids.max(axis=0).tolist() if isinstance(grids, np.ndarray) else grids
        job = ManyJob(self._count, args.nbytes + _nbytes(grids) + _nbytes(scalars), math.prod(most))
        if self._plan.uniform is None:
            return Many(job, args, 0, self._count, scalars, grids)
        slot, data = self._provide(scalars, len(args.transients))
        return Many(job, args, 0, self._count, b"", grids, (*args.slots, slot), (*args.transients, ("uniform", data)))

    def _arguments(self) -> ManyArgs:
        slots = tuple(self._slots())
        transients = tuple(self._bound.payload)
        held = sum(len(value) for _, value in transients) + sum(_nbytes(value) for slot in slots for value in slot[:3])
        return ManyArgs(tuple(self._table.ids), slots, transients, held)

    def _bin(self, data: Any, dtype: np.dtype[Any], width: int, what: str) -> Column:
        """A bin with `width` values for each launch, as rows of them."""
        wanted = self._count * width * dtype.itemsize
        if not isinstance(data, _BINS) or len(data) != wanted:
            raise InvalidError(
                f"{what}: expected a bin of {wanted} bytes ({width * dtype.itemsize} for each of {self._count} "
                f"launches), got {f'{len(data)} bytes' if isinstance(data, _BINS) else brief(data)}",
                {"expected": wanted},
            )
        return np.frombuffer(data, dtype).reshape(self._count, width)

    def _wrong(self, launches: Any) -> None:
        """Take note of launches that break a rule: True in the column."""
        first = int(launches.argmax())
        if launches[first] and (self._worst is None or first < self._worst):
            self._worst = first

    # Grids and scalars

    def _grids(self) -> Any:
        plan, p = self._plan, self._params
        if "launch" in p:
            return plan.launch(p["launch"])
        grid = p["grid"]
        if type(grid) is not dict:
            return plan.grid(grid)
        if grid.keys() != {"grids"}:
            raise InvalidError("grid: expected a list of one to three integers (work groups), or {'grids': bin}")
        grids = self._bin(grid["grids"], _U32, 3, "grids")
        if (grids.max(axis=0) > plan.max_groups).any():
            self._wrong((grids > plan.max_groups).any(axis=1))
        return grids

    def _scalars(self) -> Any:
        """What is pushed: bytes, or a row of them for each launch."""
        packer, given = self._plan.scalars, self._params.get("scalars")
        if type(given) is dict and len(given) == 1:
            [(form, value)] = given.items()
            if form == "packed" and isinstance(value, _BINS):
                return self._bin(value, _U8, packer.padded, "scalars: packed") if packer.padded else packer.pack(value)
            if form == "columns" and type(value) is dict:
                return self._packed(value)
        return packer.pack(given)

    def _packed(self, columns: dict[str, Any]) -> Any:
        packer = self._plan.scalars
        packer.check_names(columns)
        rows = np.zeros((self._count, packer.padded), _U8)
        for name, type_, offset, count, step in packer.members:
            dtype = np.dtype(_DTYPES[type_])
            values = self._columns[name] = self._bin(columns[name], dtype, count, f"scalars: {name} ({type_})")
            if type_ == "bool32" and values.max() > 1:
                self._wrong((values > 1).any(axis=1))
            for i in range(count):
                at = offset + i * step
                rows[:, at : at + dtype.itemsize].view(dtype)[:, 0] = values[:, i]
        return rows if packer.padded else b""

    def _provide(self, scalars: Any, place: int) -> tuple[Slot, Any]:
        """The uniform buffer that TVM passes scalars in: one for all launches, or a piece of one for each."""
        buffer, size = -1 - place, self._plan.scalars.padded
        offsets: Any = 0
        if isinstance(scalars, np.ndarray):
            stride = -(-size // _UNIFORM_STRIDE) * _UNIFORM_STRIDE
            rows = np.zeros((self._count, stride), _U8)
            rows[:, :size] = scalars
            scalars, offsets = rows, np.arange(self._count, dtype=np.uint64) * np.uint64(stride)
        return Slot(buffer, offsets, size, True, False), scalars

    # Descriptors

    def _slots(self) -> list[Slot]:
        plan, args = self._plan, self._params["args"]
        if len(args) != len(plan.bindings):
            plan.bind(args, self._find)  # says what it takes
        slots = []
        for binding, entry in zip(plan.bindings, args, strict=True):
            entries: list[Any] = []
            self._entries.append(entries)
            for element in elements_of(binding, entry):
                if type(element) is dict and ("handles" in element or "buffer" in element):
                    ranges = self._ranges(binding, element)
                    entries.append(ranges)
                    slots.append(self._differing(binding, ranges))
                else:
                    entries.append(element)
                    slots.append(self._shared(binding, element))
        return slots

    def _ranges(self, binding: Binding, entry: dict[str, Any]) -> _Ranges:
        if entry.keys() not in _FORMS:
            raise InvalidError(
                f"{binding.label}: an entry that differs from launch to launch is {{'handles': bin}}, alone or with "
                f"'offsets' and 'size', or {{'buffer': handle, 'offsets': bin, 'size': int or bin}}; got a map of "
                f"{', '.join(sorted(entry))}"
            )
        handles = entry.get("buffer")
        if "handles" in entry:
            handles = self._bin(entry["handles"], _U32, 1, f"{binding.label}: handles")[:, 0]
        if "offsets" not in entry:
            return _Ranges(handles, None, None)
        offsets = self._bin(entry["offsets"], _U64, 1, f"{binding.label}: offsets")[:, 0]
        sizes = entry["size"]
        if isinstance(sizes, _BINS):
            sizes = self._bin(sizes, _U64, 1, f"{binding.label}: size")[:, 0]
        elif type(sizes) is not int or not 0 <= sizes < 1 << 64:
            raise InvalidError(f"{binding.label}: size: expected an integer of at least 0 or a bin, got {brief(sizes)}")
        return _Ranges(handles, offsets, sizes)

    def _shared(self, binding: Binding, entry: Any) -> Slot:
        """An entry as in `dispatch`, for all launches."""
        if type(entry) is dict:
            if "out" in entry or "inout" in entry:
                raise InvalidError(
                    f"{binding.label}: dispatch_many returns no outputs; let the launches write buffers, and read those"
                )
            if "in" in entry and binding.access in ("write", "read_write"):
                raise InvalidError(
                    f"{binding.label}: the kernel writes it, so the launches cannot share one 'in'; give buffers"
                )
        before = len(self._bound.payload)
        bind_one(binding, entry, self._bound, self._find)
        _, offset, size = self._bound.entries[-1]
        if len(self._bound.payload) > before:
            return Slot(-1 - before, 0, size, True, False)
        handle = entry[0] if type(entry) is list else entry
        place = self._table.place(self._bound.buffers[-1], handle)
        return Slot(place, offset, size, *_access(binding))

    def _differing(self, binding: Binding, ranges: _Ranges) -> Slot:
        handles, offsets, sizes = ranges
        if isinstance(handles, np.ndarray):
            places: Any = self._table.places(handles)
            if places.min() < 0:
                self._wrong(places < 0)
            room = self._table.room(places)
        else:
            buffer = self._find(handles, binding.label)
            places, room = self._table.place(buffer, handles), np.asarray([buffer.size], np.uint64)
        if offsets is None:
            self._check_sizes(binding, room)
            return Slot(places, 0, room, *_access(binding))
        self._check_offsets(binding, room, offsets, np.atleast_1d(np.asarray(sizes, np.uint64)))
        return Slot(places, offsets, sizes, *_access(binding))

    def _check_sizes(self, binding: Binding, sizes: Column) -> None:
        """As `Binding.check_range`. The column may have one value for all."""
        if sizes.min() < binding.fixed or sizes.max() > binding.max_range:
            bad = (sizes < binding.fixed) | (sizes > binding.max_range)
            self._wrong(np.broadcast_to(bad, self._count))

    def _check_offsets(self, binding: Binding, room: Column, offsets: Column, sizes: Column) -> None:
        self._check_sizes(binding, sizes)
        largest = sizes.max()
        # What holds for the worst of each column holds for all.
        if largest > room.min() or offsets.max() > room.min() - largest:
            outside = sizes > room
            self._wrong(np.broadcast_to(outside | (offsets > np.where(outside, 0, room - sizes)), self._count))
        if int(np.bitwise_or.reduce(offsets)) % binding.align:  # alignments are powers of two
            self._wrong(offsets % np.uint64(binding.align) != 0)

    # What is wrong

    def _explain(self, launch: int, grids: Any) -> VkqueueError:
        """The error that `dispatch` would have for this launch."""
        try:
            if isinstance(grids, np.ndarray):
                self._plan.grid(grids[launch].tolist())
            self._explain_scalars(launch)
            # Known arguments are right, and none were looked at.
            for binding, entries in zip(self._plan.bindings, self._entries, strict=self._args is None):
                for entry in entries:
                    bind_one(binding, _entry_of(entry, launch), Bound(), self._find)
        except VkqueueError as error:
            data = {**(error.data or {}), "launch": launch}
            return type(error)(f"launch {launch}: {error.message}", data)
        return InternalError(f"launch {launch} was found wrong for no reason", {"launch": launch})

    def _explain_scalars(self, launch: int) -> None:
        if self._columns:
            packer = self._plan.scalars
            packer.pack([v for name, *_ in packer.members for v in self._columns[name][launch].tolist()])


def _entry_of(entry: Any, launch: int) -> Any:
    """What one launch gets, as `dispatch` takes it."""
    if type(entry) is not _Ranges:
        return entry
    handles, offsets, sizes = (int(v[launch]) if isinstance(v, np.ndarray) else v for v in entry)
    return handles if offsets is None else [handles, offsets, sizes]


def _access(binding: Binding) -> tuple[bool, bool]:
    """Whether the kernel counts as reading, and as writing; as `bind_one` has it."""
    return binding.access != "write", binding.access in ("write", "read_write")


def _nbytes(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else 0


def token_of(id: int, layout: Layout, args: ManyArgs) -> ManyToken:
    """What the launches touch."""
    read: dict[int, tuple[int, int]] = {}
    written: dict[int, tuple[int, int]] = {}
    for slot in args.slots:
        whole = isinstance(slot.offset, int) and not isinstance(slot.buffer, int)
        covered = _whole(slot.buffer, args.buffers) if whole else _covered(slot, args.buffers)
        for wanted, target in ((slot.reads, read), (slot.writes, written)):
            if wanted and (whole or target.keys().isdisjoint(covered)):
                target.update(covered)
            elif wanted:
                for buffer, (first, end) in covered.items():
                    low, high = target.get(buffer, (first, end))
                    target[buffer] = min(low, first), max(high, end)
    return ManyToken(id, layout, args.buffers, read, written)


def _whole(places: Column, buffers: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    there = np.zeros(len(buffers), np.bool_)
    there[places] = True
    return dict.fromkeys(compress(buffers, there.tolist()), _WHOLE)


def _covered(slot: Slot, buffers: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """One range of each buffer that covers all of a slot's."""
    if isinstance(slot.buffer, int) and slot.buffer < 0:
        return {}
    places = np.atleast_1d(slot.buffer)
    sizes, offsets = np.atleast_1d(np.asarray(slot.size, np.int64)), np.atleast_1d(np.asarray(slot.offset, np.int64))
    places, sizes, offsets = np.broadcast_arrays(places, sizes, offsets)
    if sizes.min() == 0:
        there = sizes > 0
        places, sizes, offsets = places[there], sizes[there], offsets[there]
    if isinstance(slot.buffer, int):
        if not len(sizes):
            return {}
        return {buffers[slot.buffer]: (int(offsets.min()), int((offsets + sizes).max()))}
    lows, highs = np.full(len(buffers), _WHOLE[1], np.int64), np.zeros(len(buffers), np.int64)
    np.minimum.at(lows, places, offsets)
    np.maximum.at(highs, places, offsets + sizes)
    bounds = zip(lows.tolist(), highs.tolist(), strict=True)
    return {id: bound for id, bound in zip(buffers, bounds, strict=True) if bound[1]}
