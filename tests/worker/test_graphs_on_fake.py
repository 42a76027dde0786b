"""Graphs through the stream on a device that works as late as it may, and the contract that graphs have to keep."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import ALIGN, KERNELS, PIPELINES, Graphs, call
from support.rows import create, read, token, write

from vkqueue.errors import NotFoundError
from vkqueue.gpu.contract import ContractError
from vkqueue.gpu.fake import FakeBackend
from vkqueue.gpu.fake_info import fake_info
from vkqueue.jobs.graph import Bindings, Template
from vkqueue.jobs.stream import Stream
from vkqueue.kernels.plan import LayoutTable, Plan
from vkqueue.model import GRAPH, GraphInstance, Pieces, PipelineSpec, Release, Row, Token

SIZE = 64
ARENA, INLINE = 900, 901


def add(bound: list[memoryview], constants: bytes, grid: tuple[int, int, int]) -> None:
    """The last += all others + 1, byte for byte."""
    target = bound[-1]
    for i in range(len(target)):
        target[i] = (sum(memory[i] for memory in bound) + 1) & 255


class Rig:
    """A fake with pipelines for the kernels, and two buffers, 1 and 2."""

    def __init__(self) -> None:
        self.fake = FakeBackend(fake_info(max_push_descriptors=32), kernels={"add": add})
        self.stream = Stream(32, 0, 0)
        self.serial = 0
        self._ids = iter(range(10_000, 20_000))
        layouts = LayoutTable()
        for name, id in PIPELINES.items():
            plan = Plan(name, KERNELS[name], fake_info().limits, layouts)
            self.fake.compile(PipelineSpec(id, plan.layout, b"", "add"))
        self.run(create(1, 1, SIZE, bytes(range(SIZE))), create(2, 2, SIZE))

    def run(self, *rows: Row) -> Any:
        self.serial += 1
        submission: Any = self.fake.submit(self.stream.make_batch(list(rows), self.serial, "", 0))
        assert self.fake.wait(submission, 1)
        completion = self.fake.collect(submission)
        self.stream.completed(self.serial)
        self.fake.retire(submission)
        return completion

    def bind(self, template: Template, **ends: Any) -> tuple[GraphInstance, Token]:
        names = {place.name: place.id - 1 for place in template.plan.places}
        inline = tuple((names[name], end) for name, end in ends.items() if isinstance(end, str))
        buffers = {names[name]: (end, 0) for name, end in ends.items() if isinstance(end, int)}
        return template.bind(Bindings(buffers, inline, ARENA, INLINE), {}, next(self._ids), next(self._ids))


def launch(bound: tuple[GraphInstance, Token], payload: Any = None) -> Row:
    return (1, 7, GRAPH, bound[1], bound[0], b"", None, payload, 0, None)


def template(*nodes: dict[str, Any], **params: Any) -> Template:
    return Template(Graphs().check(*nodes, **params), PIPELINES, ALIGN)


def chain() -> Template:
    return template(
        call("map", "x", "t"), call("map", "t", "u"), call("add", "t", "u", "y"),
        inputs={"x": SIZE}, outputs={"y": SIZE}, temporaries={"t": SIZE, "u": SIZE},
    )  # fmt: skip


def test_rows_round_a_graph_see_it_and_are_seen_by_it() -> None:
    rig = Rig()
    bound = rig.bind(chain(), x=1, y=2)
    completion = rig.run(
        write(1, 1, b"\5" * SIZE), launch(bound), read(3, 2, SIZE), write(4, 1, b"\6" * SIZE), launch(bound),
        read(6, 2, SIZE),
    )  # fmt: skip
    assert completion.errors == {}
    first, second = (completion.results[i][0][0] for i in (2, 5))
    assert first != second
    assert rig.fake.violations == []
    rig.fake.release(Release(buffers=(1, 2, ARENA)))
    assert rig.fake.memory()["buffers"] == 0


def test_data_that_comes_and_leaves() -> None:
    rig = Rig()
    graph = template(call("map", "x", "y"), inputs={"x": SIZE}, outputs={"y": SIZE})
    bound = rig.bind(graph, x="inout", y="out")
    payload = (("inout", b"\2" * SIZE), ("out", SIZE))
    completion = rig.run(launch(bound, payload), launch(bound, payload))
    assert completion.results == dict.fromkeys((0, 1), [b"\2" * SIZE, b"\3" * SIZE])


def test_what_is_not_there() -> None:
    rig = Rig()
    bound = rig.bind(chain(), x=1, y=3)
    assert isinstance(rig.run(launch(bound)).errors[0], NotFoundError)
    rig.fake.release(Release(pipelines=(PIPELINES["add"],)))
    assert isinstance(rig.run(launch(rig.bind(chain(), x=1, y=2))).errors[0], NotFoundError)


def test_a_missing_barrier_and_an_unannounced_range_break_the_contract() -> None:
    rig = Rig()
    instance, own = rig.bind(chain(), x=1, y=2)
    without = replace(instance, nodes=tuple(replace(node, barrier=False) for node in instance.nodes))
    with pytest.raises(ContractError, match="node 1 .map.: no barrier: read after write on buffer 900"):
        rig.run(launch((without, own)))
    for reads, writes in (((), own.writes), (own.reads, own.writes[:1])):
        with pytest.raises(ContractError, match="unannounced"):
            Rig().run(launch((instance, token(reads, writes))))
    fixed = replace(instance, fixed=frozenset({1}))  # nothing writes x, so it needs no announcing
    assert Rig().run(launch((fixed, token((), own.writes)))).errors == {}


def test_pieces_come_as_one_value() -> None:
    rig = Rig()
    graph = template(call("map", "x", "y"), inputs={"x": SIZE}, outputs={"y": SIZE})
    bound = rig.bind(graph, x="in", y="out")
    pieces = Pieces([b"\2" * (SIZE // 2), memoryview(b"\2" * (SIZE - SIZE // 2))])
    whole, split = (rig.run(launch(bound, (("in", value), ("out", SIZE)))) for value in (b"\2" * SIZE, pieces))
    assert split.errors == {}
    assert split.results == whole.results


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_keep_the_contract(seed: int) -> None:
    """In any order of launches with buffers apart and together; the results are those of a barrier at each node."""
    rng = random.Random(seed)
    for _ in range(20):
        names = ["x", "y", "t", "u", "v"]
        written = ["x", "y"]
        nodes = []
        for _ in range(rng.randint(1, 12)):
            kernel = rng.choice(("map", "add", "inplace"))
            arity = {"map": 1, "add": 2, "inplace": 0}[kernel]
            target = rng.choice(names)
            nodes.append(call(kernel, *rng.choices(written, k=arity), target))
            written = list({*written, target})
        found = []
        ends: dict[str, Any] = {"inputs": {"x": SIZE, "y": SIZE}, "temporaries": dict.fromkeys("tuv", SIZE)}
        binding = {"x": 1, "y": rng.choice((1, 2))}
        for every in (False, True):
            rig = Rig()
            graph = Template(Graphs().check(*nodes, **ends), PIPELINES, ALIGN, every=every)
            bound = rig.bind(graph, **binding)
            completion = rig.run(launch(bound), launch(bound))
            assert completion.errors == {}
            found.append((rig.fake.buffer(1), rig.fake.buffer(2)))
        assert found[0] == found[1]
