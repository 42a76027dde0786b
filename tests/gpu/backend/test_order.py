"""Launches and transfers take effect in the order sent, within a batch and over batches in flight."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from typing import Any

import pytest
from support.gpu_rig import KINDS, Rig, ints

from vkqueue.model import Row

pytestmark = pytest.mark.gpu

N = 256
GRID = (N // 64, 1, 1)


def scalars(a: int) -> tuple[str, bytes]:
    return ("uniform", struct.pack("<iI", a, N))


def test_rule_01_s06_each_queued_launch_sees_its_own_uniform_scalars(rig: Rig) -> None:
    y = rig.buffer(4 * N)
    digits = [3, 1, 4, 1, 5, 9, 2, 6]
    *_, result = rig.results(*(rig.dispatch("add_uniform", (y, scalars(d)), grid=GRID) for d in digits), rig.read(y))
    assert result[0] == ints(*[31415926] * N)


def test_rule_01_s06_a_slice_is_not_reused_before_its_batch_is_retired(rig: Rig) -> None:
    y = rig.buffer(4 * N)
    flying = [rig.submit(rig.dispatch("add_uniform", (y, scalars(d)), grid=GRID)) for d in (7, 8, 9)]
    blocks = [next(iter(s.frame.slices._lent.values()))[0] for s in flying if s.frame is not None]
    assert len({block.buffer.handle for block in blocks}) == 3
    for submission in flying:
        rig.finish(submission)
    again = rig.submit(rig.dispatch("add_uniform", (y, scalars(1)), grid=GRID))
    assert again.frame is not None and next(iter(again.frame.slices._lent.values()))[0] in blocks
    rig.finish(again)
    assert rig.ints_of(y) == [7891] * N


def chain(rig: Rig, x: int, y: int, z: int) -> list[Row]:
    """z = ((x * 2) * 3) and then x = z * 5 (a write after a read), through one buffer after the other."""
    return [
        rig.dispatch("scale", (x, y), ints(2), GRID),
        rig.dispatch("scale", (y, z), ints(3), GRID),
        rig.dispatch("scale", (z, x), ints(5), GRID),
    ]


@pytest.mark.parametrize("memory", KINDS)
def test_rule_11_chains_in_one_batch_and_over_several(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory)
    x, y, z = rig.buffer(ints(*range(N))), rig.buffer(4 * N), rig.buffer(4 * N)
    rig.results(*chain(rig, x, y, z))
    assert rig.ints_of(x) == [30 * i for i in range(N)]
    flying = [rig.submit(row) for row in chain(rig, x, y, z)]
    for submission in flying:
        assert not rig.finish(submission).errors
    assert rig.ints_of(z) == [180 * i for i in range(N)]
    assert rig.ints_of(x) == [900 * i for i in range(N)]


def test_rule_11_diamonds(rig: Rig) -> None:
    top = rig.buffer(ints(*range(N)))
    left, right, bottom = (rig.buffer(4 * N) for _ in range(3))
    rows = [
        rig.dispatch("scale", (top, left), ints(2), GRID),
        rig.dispatch("scale", (top, right), ints(-3), GRID),
        rig.dispatch("add", (left, right, bottom), grid=GRID),
        rig.dispatch("add", (bottom, bottom, top), grid=GRID),
        rig.read(top),
    ]
    assert rig.results(*rows)[0][0] == ints(*(-2 * i for i in range(N)))


def test_rule_11_every_kind_of_transfer_is_ordered_with_launches(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(naive=True)  # the host does nothing, the device everything
    a, create_a = rig.create(ints(*range(N)))
    b, create_b = rig.create(4 * N)
    rows = [
        create_a,
        create_b,
        rig.dispatch("scale", (a, b), ints(3), GRID),
        rig.write(a, ints(100, 200), 8),
        rig.copy(b, 0, a, 4 * (N // 2), 2 * N),
        rig.fill(b, 0xFFFFFFFF, 4, 8),
        rig.dispatch("increment", (a,), grid=GRID),
        rig.read(a, 0, 24),
        rig.read(a, 4 * (N // 2), 16),
        rig.read(b, 0, 16),
    ]
    completion = rig.run(*rows)
    assert not completion.errors and completion.submits == 1
    assert completion.results == {
        7: [ints(1, 2, 101, 201, 5, 6)],
        8: [ints(1, 4, 7, 10)],
        9: [ints(0, -1, -1, 9)],
    }


def test_rule_12_a_read_after_a_launch_sees_it_and_an_upload_may_reuse_its_source(rig: Rig) -> None:
    source = bytearray(ints(*range(N)))
    x, y = rig.buffer(4 * N), rig.buffer(4 * N)
    write = rig.submit(rig.write(x, memoryview(source)))
    source[:] = bytes(len(source))
    launch = rig.submit(rig.dispatch("scale", (x, y), ints(7), GRID))
    read = rig.submit(rig.read(y))
    for submission in (write, launch):
        rig.finish(submission)
    assert rig.finish(read).results == {0: [ints(*(7 * i for i in range(N)))]}


class Spied:
    """The raw recording functions, with a log of their names."""

    def __init__(self, raw: Any) -> None:
        self.log: list[str] = []
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._raw, name)

        def logged(*args: object) -> None:
            self.log.append(name.removeprefix("cmd_"))
            function(*args)

        return logged


def test_only_what_changed_is_recorded(open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    rig = open_rig()
    if not rig.backend.device.push_descriptors:
        pytest.skip("the device has no push descriptors")
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    z = rig.buffer(ints(*[0] * N))
    spied = Spied(rig.backend._recorder._raw)
    monkeypatch.setattr(rig.backend._recorder, "_raw", spied)
    scale, shift = rig.dispatch("scale", (x, y), ints(3), GRID), rig.dispatch("shift", (z,), ints(3), GRID)
    push, constants = "push_descriptor_set_with_template", "push_constants"
    for rows, recorded in (
        ([scale], ["bind_pipeline", push, constants, "dispatch"]),
        ([scale, scale], ["bind_pipeline", push, constants, "dispatch", "dispatch"]),
        # Another layout may disturb the constants although they are the same bytes.
        ([scale, shift, scale], ["bind_pipeline", push, constants, "dispatch"] * 3),
        ([scale, rig.dispatch("scale", (x, y), ints(4), GRID)],
         ["bind_pipeline", push, constants, "dispatch", constants, "dispatch"]),
        ([scale, rig.dispatch("scale", (x, z), ints(3), GRID)],
         ["bind_pipeline", push, constants, "dispatch", push, "dispatch"]),
        ([rig.dispatch("scale", (x, y), ints(3), (1, 0, 1))], ["bind_pipeline", push, constants]),
    ):  # fmt: skip
        spied.log.clear()
        assert rig.run(*rows).errors == {}
        assert spied.log == recorded


@pytest.mark.parametrize("memory", KINDS)
def test_rule_43_work_in_flight_is_ordered_and_results_visible(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory)
    data = rig.buffer(4 * N)
    flying = [rig.submit(rig.dispatch("increment", (data,), grid=GRID), rig.read(data, 0, 4)) for _ in range(8)]
    seen = [struct.unpack("<I", rig.finish(s).results[1][0])[0] for s in flying]
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]
    assert rig.ints_of(data) == [8] * N, "and what the host reads itself afterwards"


@pytest.mark.parametrize(
    ("memory", "what", "expected"),
    [
        ("unified", "launch", 1),
        ("resizable BAR", "launch", 1),
        ("discrete", "launch", 0),
        ("discrete", "read", 1),
        ("discrete", "payload", 1),
    ],
)
def test_rule_43_a_barrier_to_the_host_ends_a_batch_whose_results_the_host_sees(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, memory: str, what: str, expected: int
) -> None:
    rig = open_rig(memory=memory)
    if len(rig.backend.device.memory_types) > 2:
        pytest.skip("counts barriers for the memory that lavapipe is disguised with")
    data = rig.buffer(4 * N)
    calls: list[object] = []
    commands = rig.backend._recorder._commands
    real = commands.barrier_to_host

    def counted(command: object) -> None:
        calls.append(command)
        real(command)

    monkeypatch.setattr(commands, "barrier_to_host", counted)
    rows = {
        "launch": rig.dispatch("increment", (data,), grid=GRID),
        "read": rig.read(data),
        "payload": rig.dispatch("scale", (("in", bytes(64)), data), ints(2), GRID),
    }
    rig.results(rows[what])
    assert len(calls) == expected


def test_rule_39_structures_outlive_the_calls_that_read_them(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(naive=True, descriptors="sets")
    gc.collect()
    x, create = rig.create(ints(*range(N)))
    y = rig.buffer(4 * N)
    gc.collect()
    rows = [create, rig.dispatch("scale", (x, y), ints(2), GRID), rig.read(y)]
    gc.collect()
    submission = rig.submit(*rows)
    del rows
    gc.collect()
    assert rig.backend.wait(submission, 10)
    gc.collect()
    assert rig.backend.collect(submission).results == {2: [ints(*(2 * i for i in range(N)))]}
    gc.collect()
    rig.backend.retire(submission)
