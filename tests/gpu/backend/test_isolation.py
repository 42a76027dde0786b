"""What a kernel cannot reach: the memory of other clients, by any kind of entry, with and without robustness2."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest
from support.gpu_rig import KINDS, Rig

from vkqueue.gpu.payload import Tuning
from vkqueue.model import Row

pytestmark = pytest.mark.gpu

SECRET = 0x5EC2E701
SECRETS = struct.pack("<I", SECRET) * 1024
COUNT = 8192
"""Words read or written at once: past everything that lies in one staging block and in neighbouring buffers."""
GRID = (COUNT // 64, 1, 1)
READ_DATA, WRITE_DATA, READ_BLOCK = 0, 1, 2
UNIFORM_SIZE = 64
DEFAULTS: tuple[Any, Any] = (("in", bytes(64)), ("uniform", bytes(UNIFORM_SIZE)))
# From where on words are read or written, relative to the entry's first: behind it, far behind, before it, and
# so far before it that the byte offset wraps.
STARTS = (0, 4096, -COUNT, -(1 << 30) + 16)


def reach(rig: Rig, mode: int, start: int, data: Any, block: Any, result: Any) -> Row:
    """A launch that reads or writes COUNT words of an entry from word `start` on."""
    return rig.dispatch("reach", (data, block, result), struct.pack("<3I", start % (1 << 32), COUNT, mode), GRID)


class Neighbours:
    """Another client's things, on all sides of what the attacker gets: buffers and transient entries."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.buffers = [rig.buffer(SECRETS) for _ in range(2)]

    def surrounded(self, *attack: Row) -> tuple[list[Row], Callable[[dict[int, Any]], None]]:
        """Rows of session 1 round the attacker's, and the check that they were not disturbed."""
        self.rig.session = 1
        result = ("inout", SECRETS)

        def launch() -> Row:
            # Reads its own entries within bounds: result becomes the data.
            return self.rig.dispatch(
                "reach",
                (("in", SECRETS), ("uniform", SECRETS[:UNIFORM_SIZE]), result),
                struct.pack("<3I", 0, 1024, READ_DATA),
                (16, 1, 1),
            )

        rows = [launch(), *attack, launch()]

        def check(results: dict[int, Any]) -> None:
            for index in (0, len(rows) - 1):
                assert bytes(results[index][0]) == SECRETS, "a neighbour's results were changed"
            for id in self.buffers:
                assert self.rig.bytes_of(id) == SECRETS, "a neighbour's buffer was changed"

        return rows, check


def entries(rig: Rig) -> dict[str, tuple[Any, bool]]:
    """Every kind of entry of the attacker's, 256 bytes each: (entry, whether a storage entry)."""
    whole, part = rig.buffer(256), rig.buffer(1024)
    return {
        "handle": (whole, True),
        "range": ((part, 256, 256), True),
        "in": (("in", bytes(256)), True),
        "inout": (("inout", bytes(256)), True),
        "out": (("out", 256), True),
        "uniform values": (("uniform", bytes(256)), False),
        "uniform handle": (whole, False),
        "uniform range": ((part, 256, 256), False),
    }


CASES = list(itertools.product((True, False), KINDS))


@pytest.mark.parametrize(("robustness2", "memory"), CASES)
@pytest.mark.parametrize("large_go_to_scratch", [False, True])
def test_rule_42_reads_out_of_range_see_nothing_of_others(
    open_rig: Callable[..., Rig], robustness2: bool, memory: str, large_go_to_scratch: bool
) -> None:
    tuning = Tuning(host_in_max=0, host_out_max=0) if large_go_to_scratch else None
    rig = open_rig(robustness2=robustness2, memory=memory, tuning=tuning)
    neighbours = Neighbours(rig)
    rig.session = 2
    attacks = []
    for entry, storage in entries(rig).values():
        for start in STARTS:
            data, block = (entry, DEFAULTS[1]) if storage else (DEFAULTS[0], entry)
            mode = READ_DATA if storage else READ_BLOCK
            attacks.append(reach(rig, mode, start, data, block, ("out", 4 * COUNT)))
    after = rig.buffer(SECRETS)
    neighbours.buffers.append(after)
    rows, check = neighbours.surrounded(*attacks)
    completion = rig.run(*rows)
    assert not completion.errors
    for index in range(1, len(rows) - 1):
        seen = struct.unpack(f"<{COUNT}I", completion.results[index][-1])
        assert SECRET not in seen, f"attack {index - 1} read another client's memory"
    check(completion.results)


@pytest.mark.parametrize(("robustness2", "memory"), CASES)
@pytest.mark.parametrize("large_go_to_scratch", [False, True])
def test_rule_42_writes_out_of_range_change_nothing_of_others(
    open_rig: Callable[..., Rig], robustness2: bool, memory: str, large_go_to_scratch: bool
) -> None:
    tuning = Tuning(host_in_max=0, host_out_max=0) if large_go_to_scratch else None
    rig = open_rig(robustness2=robustness2, memory=memory, tuning=tuning)
    neighbours = Neighbours(rig)
    rig.session = 2
    attacks = [
        reach(rig, WRITE_DATA, start, entry, DEFAULTS[1], ("out", 4))
        for entry, storage in entries(rig).values()
        if storage
        for start in STARTS
    ]
    neighbours.buffers.append(rig.buffer(SECRETS))
    rows, check = neighbours.surrounded(*attacks)
    completion = rig.run(*rows)
    assert not completion.errors
    check(completion.results)


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("large_go_to_scratch", [False, True])
def test_rule_42_without_robustness2_sessions_never_share_a_block(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, memory: str, large_go_to_scratch: bool
) -> None:
    tuning = Tuning(host_in_max=0, host_out_max=0) if large_go_to_scratch else None
    rig = open_rig(robustness2=False, memory=memory, tuning=tuning)
    handles: dict[int, set[int]] = {1: set(), 2: set()}
    real = rig.backend.payloads.place

    def spy(frame: Any, session: Any, payload: Any) -> Any:
        places, results = real(frame, session, payload)
        handles[session] |= {handle for handle, _ in places}
        return places, results

    monkeypatch.setattr(rig.backend.payloads, "place", spy)
    rows = []
    for session in (1, 2):
        rig.session = session
        rows.append(reach(rig, READ_DATA, 0, ("in", SECRETS), DEFAULTS[1], ("out", 4 * COUNT)))
    rig.results(*rows)
    assert handles[1] and handles[2] and not handles[1] & handles[2]


def test_rule_42_a_range_ends_where_it_was_said_to(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    assert rig.backend.device.robust_ranges, "this test needs robustness2"
    buffer = rig.buffer(SECRETS)
    part = (buffer, 256, 256)
    inside, behind, written = rig.results(
        reach(rig, READ_DATA, 0, part, DEFAULTS[1], ("out", 4 * COUNT)),
        reach(rig, READ_DATA, 64, part, DEFAULTS[1], ("out", 4 * COUNT)),
        reach(rig, WRITE_DATA, 64, part, DEFAULTS[1], ("out", 4)),
    )
    assert bytes(inside[0]) == SECRETS[:256].ljust(4 * COUNT, b"\0")
    assert bytes(behind[0]) == bytes(4 * COUNT)
    assert rig.bytes_of(buffer) == SECRETS and written == [bytes(4)]


@pytest.mark.parametrize("memory", KINDS)
def test_new_buffers_are_zero_whatever_lay_there_before(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory)
    for size in (1, 5, 63, 64, 100, 4096, 100_000):
        first = rig.buffer(b"\xff" * size)
        offset = rig.backend.buffers.get(first).allocation.offset
        rig.release(first)
        again = rig.buffer(size)
        assert rig.backend.buffers.get(again).allocation.offset == offset, "not the same memory: proves nothing"
        assert rig.bytes_of(again) == bytes(size)
        rig.release(again)


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("with_data", [False, True])
def test_the_padding_of_a_new_buffer_is_zero_too(
    open_rig: Callable[..., Rig], memory: str, with_data: bool
) -> None:
    rig = open_rig(memory=memory)
    first = rig.buffer(b"\xff" * 64)
    rig.release(first)
    small = rig.buffer(b"\x11" * 5 if with_data else 5)
    buffer = rig.backend.buffers.get(small)
    assert buffer.capacity >= buffer.allocation.size, "memory behind the VkBuffer could be read without robustness2"
    buffer.size = rig.sizes[small] = buffer.capacity
    expected = (b"\x11" * 5 if with_data else b"").ljust(buffer.capacity, b"\0")
    assert rig.bytes_of(small) == expected


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("large_go_to_scratch", [False, True])
def test_out_entries_are_zero_although_slices_are_used_again(
    open_rig: Callable[..., Rig], memory: str, large_go_to_scratch: bool
) -> None:
    tuning = Tuning(host_in_max=0, host_out_max=0) if large_go_to_scratch else None
    rig = open_rig(memory=memory, tuning=tuning)
    for size in (4, 100, 5000, 300_000):
        for _ in range(2):
            dirty = rig.dispatch("scale", (("in", b"\xff" * size), ("inout", b"\xee" * size)), b"\1\0\0\0", (0, 1, 1))
            assert rig.results(dirty)[0][0] == b"\xee" * size
            clean = rig.dispatch("scale", (("in", b"\xff" * size), ("out", size)), b"\1\0\0\0", (0, 1, 1))
            assert rig.results(clean)[0][0] == bytes(size)
