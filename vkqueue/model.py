"""Values that cross layers: a job's row, its token, batches going down, completions coming up.

Only ids and bytes travel; no layer outside `gpu` sees a Vulkan handle. Ids are counted up by the daemon
and never reused, so an id can serve as a cache key for as long as the daemon lives.

A *row* is one job. It is a plain tuple because a tuple costs 0.06 µs and a frozen dataclass 1.2 µs; build it
in the order of the ``ROW_*`` names below and unpack it in one statement::

    session, msgid, op, token, target, constants, grid, payload, stamp, options = row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vkqueue.errors import VkqueueError

# Operations (ROW_OP).
DISPATCH = 0
"""target: pipeline id; constants: push-constant bytes; grid: (x, y, z); payload: None, or the transient
entries of the launch, a tuple of ("in" | "inout" | "uniform", bytes-like) and ("out", size)."""
WRITE = 1
"""token: one write range; payload: bytes-like, exactly as long as the range."""
READ = 2
"""token: one read range; the result is its bytes."""
FILL = 3
"""token: one write range (multiple of 4, from a multiple of 4); payload: the 32-bit word to fill with."""
COPY = 4
"""token: one read range and one write range of equal size on different buffers or disjoint ranges."""
CREATE = 5
"""target: the new buffer's id; token: one write range over all of it (none when the size is 0);
grid: the client's handle, for the answer; payload: (size, bytes-like, Shared or None). Without bytes the buffer is
zero. Of Shared memory the token has no range: its bytes are the client's."""
FREE = 6
"""target: the id of a buffer to release; token as CREATE's. It waits its turn behind what uses the buffer, and is
acted on when it comes: batches do not contain it."""
GRAPH = 7
"""A graph's launch. target: its GraphInstance; token: everything of clients' that the instance touches, and its arenas;
payload: None, or as DISPATCH's, one entry for each of the instance's `transients`; what is "in" may be Pieces."""
MANY = 8
"""Launches of one pipeline, one after the other. target: pipeline id; token: a kernels.launches.ManyToken; payload: a
kernels.launches.Many, the request's launches or a part of them."""

# Places of a row. The session id is opaque to everything below the daemon but for isolation: transient
# memory of two sessions is never shared where the device cannot bound accesses by the descriptor's range.
ROW_SESSION, ROW_MSGID, ROW_OP, ROW_TOKEN, ROW_TARGET = 0, 1, 2, 3, 4
ROW_CONSTANTS, ROW_GRID, ROW_PAYLOAD, ROW_STAMP, ROW_OPTIONS = 5, 6, 7, 8, 9
Row: TypeAlias = tuple[Any, ...]

# Flags of a row in a batch, decided by the stream.
BARRIER = 1
"""A full compute+transfer memory barrier is recorded before this row."""
INIT = 2
"""The initializer runs: the row's descriptors are pushed, or written into its slot of the ring. Of a layout with
both a pushed set and sets in the ring it speaks for the slot; what is pushed is pushed for each launch that does not
follow one with the same token."""
DIRECT = 4
"""WRITE, READ, CREATE: done by the host through mapped memory while the batch is recorded."""

Range: TypeAlias = tuple[int, int, int]
"""(buffer id, first byte, end byte)."""

STORAGE = "storage"
UNIFORM = "uniform"


class Shared:
    """Memory that a client and the daemon both have mapped, to become a buffer.

    Attributes:
        map: the daemon's mapping (a ctypes array), whole pages, which cannot shrink (the file is sealed). Who drops the
            last reference unmaps it.
    """

    __slots__ = ("__weakref__", "map")

    def __init__(self, map: Any) -> None:
        self.map = map

    def __len__(self) -> int:
        """Bytes of payload that the daemon holds: none, the client holds them."""
        return 0


class Pieces:
    """Bytes that come in several pieces, as one value of a payload ("in"): the backend writes them one after the other.

    Attributes:
        parts: bytes-likes; the same one may be there more than once.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of a pipeline's descriptors. Interned by the daemon: equal shapes are one object with one id.

    Attributes:
        sets: ((set number, ((binding, kind, count), ...)), ...), both in rising order; only what the kernel
            statically uses, so numbers may have holes. kind is STORAGE or UNIFORM; count the array length.
        push_constant_bytes: bytes pushed with each launch, 0 for none.
    """

    id: int
    sets: tuple[tuple[int, tuple[tuple[int, str, int], ...]], ...]
    push_constant_bytes: int

    def push_set(self, max_push_descriptors: int) -> int | None:
        """The one set that is pushed while recording: the lowest that fits, None when none does.

        Vulkan allows one push-descriptor set a pipeline layout, of at most `maxPushDescriptors` descriptors.
        """
        for number, bindings in self.sets:
            if 0 < sum(count for _, _, count in bindings) <= max_push_descriptors:
                return number
        return None

    def needs_ring(self, max_push_descriptors: int) -> bool:
        """Whether launches need a slot of the ring of sets: some used set cannot be pushed."""
        pushed = self.push_set(max_push_descriptors)
        return any(number != pushed for number, _ in self.sets)


class Token:
    """What a launch touches. Interned: an equal launch carries the same object.

    Attributes:
        id: never reused.
        layout: the pipeline's Layout, None for transfers.
        entries: for each descriptor in (set, binding, array element) order: (buffer id, offset, size) for a
            client buffer, or (0, place in the row's payload, size) for transient memory.
        reads, writes: ranges of client buffers, for hazards; transient memory is in neither.
        cached: whether the daemon will use the token again (False for those with transient entries).
        buffers: ids of the client buffers among all these; one may be bound by an empty range, so be in no other.
    """

    __slots__ = ("buffers", "cached", "entries", "id", "layout", "reads", "writes")

    def __init__(
        self,
        id: int,
        layout: Layout | None,
        entries: tuple[tuple[int, int, int], ...],
        reads: tuple[Range, ...],
        writes: tuple[Range, ...],
        cached: bool = True,
    ) -> None:
        self.id = id
        self.layout = layout
        self.entries = entries
        self.reads = reads
        self.writes = writes
        self.cached = cached
        self.buffers = tuple({r[0] for r in reads} | {w[0] for w in writes} | {e[0] for e in entries if e[0]})


@dataclass(frozen=True, slots=True)
class Options:
    """The rarer parameters of a dispatch; a row without any has None in their place.

    Attributes:
        priority: -100 to 100, larger first.
        deadline_ns: on the clock of ROW_STAMP (`time.monotonic_ns`), 0 for none.
        after: msgids of this connection that must have succeeded.
        timing: whether the answer carries times.
        label: for debug labels and logs, empty for none.
    """

    priority: int = 0
    deadline_ns: int = 0
    after: tuple[int, ...] = ()
    timing: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """What the compile thread needs to build one pipeline. `id` is never reused.

    Attributes:
        spirv: the module's bytes, in host order.
        specialization: ((constant id, raw little-endian bytes of its value), ...).
    """

    id: int
    layout: Layout
    spirv: bytes
    entry: str
    specialization: tuple[tuple[int, bytes], ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One step of a graph. Ranges are (place, first byte, end byte), places those of the instance.

    Attributes:
        op: DISPATCH, COPY, FILL or WRITE.
        entries: (place, offset, size): of DISPATCH one for each descriptor, in a token's order; of COPY what is read
            and what is written; of FILL and WRITE what is written.
        barrier: stands before this node.
        pipeline, layout, constants, grid: of DISPATCH.
        data: of FILL the 32-bit word, of WRITE bytes (a multiple of 4).
        late, late_grid: places in the instance's `numbers` of what stands there instead of constants or data, and of
            the grid; -1 where the node has them itself.
    """

    op: int
    entries: tuple[tuple[int, int, int], ...]
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    barrier: bool = False
    pipeline: int = 0
    layout: Layout | None = None
    constants: bytes = b""
    grid: tuple[int, int, int] = (1, 1, 1)
    data: int | bytes = 0
    late: int = -1
    late_grid: int = -1
    label: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class GraphInstance:
    """A graph with all that a recording of it depends on: buffers and scalars. `id` is never reused.

    Attributes:
        nodes: in the order of execution.
        places: (buffer id, first byte) for each place that nodes name.
        arenas: (buffer id, size) of the graph's own buffers among them. The backend makes them, zeroed, when it first
            meets them; they are released as any buffer.
        transients: (place, size) of what comes and leaves with a launch: copied there before the nodes and from there
            after them.
        results: names of those that leave.
        numbers: constants, data and grids that came with the launch.
        moves: whether a launch moves bytes: a node copies, fills or writes, or something comes or leaves.
        fixed: buffers that nothing writes while the instance is launched, so that its token need not name them.
    """

    id: int
    nodes: tuple[GraphNode, ...]
    places: tuple[tuple[int, int], ...]
    arenas: tuple[tuple[int, int], ...] = ()
    transients: tuple[tuple[int, int], ...] = ()
    results: tuple[str, ...] = ()
    numbers: tuple[Any, ...] = ()
    moves: bool = True
    fixed: frozenset[int] = frozenset()

    def constants(self, node: GraphNode) -> bytes:
        """The push constants of a DISPATCH."""
        return node.constants if node.late < 0 else self.numbers[node.late]

    def grid(self, node: GraphNode) -> tuple[int, int, int]:
        """The grid of a DISPATCH."""
        return node.grid if node.late_grid < 0 else self.numbers[node.late_grid]

    def data(self, node: GraphNode) -> Any:
        """What a FILL or WRITE writes."""
        return node.data if node.late < 0 else self.numbers[node.late]


@dataclass(slots=True)
class Batch:
    """Rows that are recorded into one command buffer and submitted together.

    `flags` and `slots` run parallel to `rows` (slots: the ring slot of a launch whose layout needs one, else
    -1). `reason` says why the batch was closed: "idle", "full", "delay" or "backlog". `timed`: whether the backend is
    to say what each row took (`Completion.spent_ns`), where it can.
    """

    serial: int
    rows: list[Row]
    flags: list[int]
    slots: list[int]
    reason: str = ""
    closed_ns: int = 0
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Free these once every batch posted before has finished. Ids that do not exist are ignored."""

    buffers: tuple[int, ...] = ()
    pipelines: tuple[int, ...] = ()
    instances: tuple[int, ...] = ()
    """Graphs' instances that will not be launched again (they may be, at the cost of another recording)."""


@dataclass(slots=True)
class Completion:
    """What became of a batch: each row succeeded unless `errors` has its index.

    Attributes:
        errors: row index -> error. One bad row fails alone.
        results: row index -> list of bytes-like (READ: one; DISPATCH, GRAPH: their `out` and `inout` entries in order).
        device_us: row index -> microseconds on the device, for rows that asked for timing on a device that
            has timestamps.
        spent_ns: row index -> nanoseconds by which the device was done later for it, of rows in a `timed` batch on
            such a device. They add up to what the batch took.
        submits: queue submissions made (0 when the host did all of it).
        final: False for a first answer that the batch is past its time limit (every row is then in `errors`
            or `results` as far as known, and a second completion with final=True follows when the fence is).
        lost: the device is lost.
    """

    batch: Batch
    errors: dict[int, VkqueueError] = field(default_factory=dict)
    results: dict[int, list[Any]] = field(default_factory=dict)
    device_us: dict[int, int] = field(default_factory=dict)
    spent_ns: dict[int, int] = field(default_factory=dict)
    submits: int = 0
    submitted_ns: int = 0
    finished_ns: int = 0
    final: bool = True
    lost: bool = False


@dataclass(frozen=True, slots=True)
class PipelineBuilt:
    """The compile thread's answer: `error` is None when the pipeline can be used."""

    id: int
    error: VkqueueError | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as `devices` reports it, plus what the stream must know.

    Attributes:
        uuid: `deviceUUID` in hex; two devices may share one, so identity is (uuid, index).
        type: "discrete", "integrated", "virtual", "cpu" or "other".
        api_version: such as "1.3.230".
        limits, features: Vulkan's own names; features that are present are enabled. Beside
            VkPhysicalDeviceLimits: maxPushDescriptors, maxBufferSize, maxMemoryAllocationSize, subgroupSize,
            subgroupSupportedOperations, subgroupSupportedStages, spirvVersionMajor/Minor, and the robustness2
            alignments where known.
        max_push_descriptors: 0 when launches go through rings of sets.
        direct_write_max, direct_read_max: largest transfer, in bytes, that the host does itself through
            mapped memory (0: never).
        timestamps: whether device times can be measured.
    """

    index: int
    uuid: str
    name: str
    type: str
    driver: str
    api_version: str
    memory_bytes: int
    limits: dict[str, Any]
    features: dict[str, bool]
    max_push_descriptors: int = 0
    direct_write_max: int = 0
    direct_read_max: int = 0
    timestamps: bool = False

    def to_wire(self) -> dict[str, Any]:
        """The map of the `devices` answer."""
        names = ("index", "uuid", "name", "type", "driver", "api_version", "memory_bytes", "limits", "features")
        return {name: getattr(self, name) for name in names}
