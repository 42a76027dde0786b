"""Rows of many launches through the stream, on a device that works as late as it may and looks at every launch."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from support.rows import create, layout, read

from vkqueue.gpu.contract import ContractError
from vkqueue.gpu.fake import FakeBackend
from vkqueue.jobs.stream import Stream
from vkqueue.kernels.launches import Many, ManyArgs, ManyJob, ManyToken, Slot
from vkqueue.kernels.many import token_of
from vkqueue.model import MANY, Completion, PipelineSpec, Row

LAYOUT = layout(2, 4)
serials = count(1)


def column(values: list[int], dtype: Any = np.uint64) -> Any:
    return np.array(values, dtype)


def add(bound: list[memoryview], constants: bytes, grid: tuple[int, int, int]) -> None:
    """target[0] = source[0] + constant, for as many bytes as there are groups."""
    source, target = bound
    for i in range(grid[0]):
        target[i] = source[i] + constants[0]
    source[0:0] = b""


@pytest.fixture
def fake() -> FakeBackend:
    fake = FakeBackend(kernels={"add": add})
    fake.compile(PipelineSpec(5, LAYOUT, b"", "add"))
    return fake


def many_row(*slots: Slot, n: int = 3, grids: Any = (1, 1, 1), transients: Any = (), buffers: Any = (1, 2)) -> Row:
    scalars = np.array([[k, 0, 0, 0] for k in range(1, n + 1)], np.uint8)
    launches = Many(ManyJob(n, 0), ManyArgs(buffers, slots, transients), 0, n, scalars, grids)
    return (1, 9, MANY, token_of(77, LAYOUT, launches.args), 5, b"", None, launches, 0, None)


def run(fake: FakeBackend, stream: Stream, *rows: Row) -> Completion:
    serial = next(serials)
    submission = fake.submit(stream.make_batch(list(rows), serial, "idle", 0))
    if submission.pending:
        assert fake.wait(submission, 1)
        fake.collect(submission)
    fake.retire(submission)
    stream.completed(serial)
    return submission.completion


def chain() -> Row:
    """Each launch reads the byte that the one before it wrote."""
    return many_row(Slot(0, column([0, 1, 2]), 1, True, False), Slot(0, column([1, 2, 3]), 1, False, True))


def test_launches_run_one_after_the_other(fake: FakeBackend) -> None:
    done = run(fake, Stream(4, 0, 0), create(1, 1, 4), create(2, 2, 4), chain(), read(3, 1, 4))
    assert done.errors == {} and done.results == {3: [bytes([0, 1, 3, 6])]}


def test_each_has_its_own_grid_and_data(fake: FakeBackend) -> None:
    rows = np.array([[10, 20], [30, 40], [50, 60]], np.uint8)
    grids = column([[2, 1, 1], [1, 1, 1], [0, 1, 1]], np.uint32)
    pieces = Slot(-1, column([0, 2, 4]), 2, True, False)
    row = many_row(pieces, Slot(1, column([0, 2, 4]), 2, False, True), grids=grids, transients=(("uniform", rows),))
    done = run(fake, Stream(4, 0, 0), create(1, 1, 4), create(2, 2, 8), row, read(3, 2, 8))
    assert done.results == {3: [bytes([11, 21, 32, 0, 0, 0, 0, 0])]}
    shared = many_row(Slot(-1, 0, 2, True, False), Slot(1, column([0, 2, 4]), 2, False, True),
                      transients=(("in", b"\1\2"),))  # fmt: skip
    assert run(fake, Stream(4, 0, 0), shared, read(3, 2, 8)).results == {1: [bytes([2, 21, 3, 0, 4, 0, 0, 0])]}


def test_what_is_not_there_fails_the_row_alone(fake: FakeBackend) -> None:
    slots = Slot(column([0, 1, 0], np.int32), 0, 4, True, False), Slot(0, column([0, 1, 2]), 1, False, True)
    gone = many_row(*slots, buffers=(1, 3))
    unknown = (*gone[:4], 6, *gone[5:])
    done = run(fake, Stream(4, 0, 0), create(1, 1, 4), create(2, 2, 4), gone, unknown, read(3, 1, 4))
    assert set(done.errors) == {2, 3} and set(done.results) == {4}


@pytest.mark.parametrize("barriers", [[], [1], [2]])
def test_the_contract_misses_no_barrier(fake: FakeBackend, barriers: list[int]) -> None:
    row = chain()
    made = Stream(4, 0, 0).make_batch([create(1, 1, 4), create(2, 2, 4), row], 1, "idle", 0)
    assert row[7].barriers == [1, 2]
    row[7].barriers = barriers
    with pytest.raises(ContractError, match=r"launch \d: no barrier: read after write"):
        fake.submit(made)


def test_the_contract_misses_no_range(fake: FakeBackend) -> None:
    row = chain()
    for read_, written in (({1: (0, 3)}, {1: (1, 3)}), ({1: (0, 1)}, {1: (2, 4)}), ({}, {})):
        wrong = (*row[:3], ManyToken(8, LAYOUT, (1, 2), read_, written), *row[4:])
        made = Stream(4, 0, 0).make_batch([create(1, 1, 4), create(2, 2, 4), wrong], next(serials), "idle", 0)
        with pytest.raises(ContractError, match="unannounced"):
            FakeBackend(kernels={"add": add}).submit(made)
