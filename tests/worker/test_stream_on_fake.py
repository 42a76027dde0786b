"""The stream's decisions on a device that works as late as it may: the bytes are those of one job after another."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.rows import copy, create, dispatch, fill, layout, read, token, write

from vkqueue.gpu.fake import FakeBackend
from vkqueue.gpu.fake_info import fake_info
from vkqueue.jobs.stream import Stream
from vkqueue.model import Batch, Completion, PipelineSpec, Release, Row

SIZE, COUNT = 64, 4


def add(bound: list[memoryview], constants: bytes, grid: tuple[int, int, int]) -> None:
    """The second range += the first."""
    source, target = bound
    for i in range(len(target)):
        target[i] = (target[i] + source[i]) & 255


class Model:
    """Buffers on which each row is done before the next."""

    def __init__(self) -> None:
        self.buffers = {id: bytearray(SIZE) for id in range(1, COUNT + 1)}

    def part(self, where: tuple[int, int, int]) -> memoryview:
        id, start, end = where
        return memoryview(self.buffers[id])[start:end]


def make_row(rng: random.Random, msgid: int, model: Model, tokens: list[Any]) -> tuple[Row, bytes | None]:
    """(a row, what it must read), done on the model."""
    kind = rng.choice(("read", "write", "fill", "copy", "add", "add", "add"))
    buffer, start = rng.randint(1, COUNT), 4 * rng.randrange(SIZE // 8)
    size = 4 * rng.randint(1, SIZE // 8)
    where = (buffer, start, start + size)
    if kind == "read":
        return read(msgid, buffer, size, start), bytes(model.part(where))
    if kind == "write":
        data = rng.randbytes(size)
        model.part(where)[:] = data
        return write(msgid, buffer, data, start), None
    if kind == "fill":
        word = rng.getrandbits(32)
        model.part(where)[:] = word.to_bytes(4, "little") * (size // 4)
        return fill(msgid, buffer, size, word, start), None
    if kind == "copy":
        source = (buffer % COUNT + 1, start, start + size)
        model.part(where)[:] = bytes(model.part(source))
        return copy(msgid, source, where), None
    use = rng.choice(tokens)
    add([model.part(r) for r in (use.reads[0], use.writes[0])], b"", (1, 1, 1))
    return dispatch(msgid, use.layout.id, use), None


def make_tokens(rng: random.Random, shapes: list[Any]) -> list[Any]:
    tokens = []
    for _ in range(12):
        source, start = rng.randint(1, COUNT), 4 * rng.randrange(SIZE // 8)
        target = source % COUNT + 1
        ranges = ((source, start, start + 16), (target, start, start + 16))
        entries = tuple((id, low, high - low) for id, low, high in ranges)
        tokens.append(token(ranges, ranges[1:], rng.choice(shapes), entries))
    return tokens


class Run:
    """Batches through a stream and a fake whose fences come when the test says so."""

    def __init__(self, seed: int, push: int, direct: int) -> None:
        self.rng = random.Random(seed)
        info = fake_info(max_push_descriptors=push, direct_write_max=direct, direct_read_max=direct)
        self.fake = FakeBackend(info, kernels={"add": add}, automatic=False)
        self.stream = Stream(push, direct, direct)
        self.in_flight: list[Any] = []
        self.wanted: dict[int, bytes] = {}
        self.got: dict[int, bytes] = {}
        self.serial = 0

    def submit(self, rows: list[Row]) -> None:
        self.serial += 1
        submission: Any = self.fake.submit(self.stream.make_batch(rows, self.serial, "", 0))
        if submission.pending:
            self.in_flight.append(submission)
        else:
            self.note(submission.completion)
            self.in_flight.append(submission)

    def finish_first(self) -> None:
        submission = self.in_flight.pop(0)
        if submission.pending:
            self.fake.complete(submission.batch.serial)
            assert self.fake.wait(submission, 1)
            self.note(self.fake.collect(submission))
        self.fake.retire(submission)

    def note(self, completion: Completion) -> None:
        assert completion.errors == {}
        batch: Batch = completion.batch
        self.got.update({batch.rows[i][1]: result[0] for i, result in completion.results.items()})
        self.stream.completed(batch.serial)


@pytest.mark.parametrize("direct", [0, 16, 1 << 30])
@pytest.mark.parametrize("push", [0, 2, 32])
@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_of_one_job_after_another(seed: int, push: int, direct: int):
    run, model = Run(seed, push, direct), Model()
    shapes = [layout(2), layout(2), layout(1, sets=(0, 1))]
    for shape in shapes:
        run.fake.compile(PipelineSpec(shape.id, shape, b"", "add"))
    tokens = make_tokens(run.rng, shapes)
    run.submit([create(id, id, SIZE) for id in range(1, COUNT + 1)])
    msgid = COUNT
    for _ in range(60):
        rows = []
        for _ in range(run.rng.randint(1, 8)):
            msgid += 1
            row, expected = make_row(run.rng, msgid, model, tokens)
            rows.append(row)
            if expected is not None:
                run.wanted[msgid] = expected
        run.submit(rows)
        while len(run.in_flight) > run.rng.randint(0, 2):
            run.finish_first()
    while run.in_flight:
        run.finish_first()
    assert run.got == run.wanted
    assert {id: run.fake.buffer(id) for id in model.buffers} == model.buffers
    run.fake.release(Release(buffers=tuple(model.buffers)))
    assert run.fake.memory()["buffers"] == 0
