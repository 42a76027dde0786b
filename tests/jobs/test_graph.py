"""Graphs: levels, barriers, where temporaries lie; and instances of them."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import ALIGN, PIPELINES, Graphs, call

from vkqueue.errors import InvalidError
from vkqueue.jobs.graph import Bindings, Template, barriers, levels, place
from vkqueue.kernels.graph_plan import GraphPlan
from vkqueue.model import COPY, FILL, GraphInstance, GraphNode, Token


def template(plan: GraphPlan, **options: Any) -> Template:
    return Template(plan, PIPELINES, ALIGN, **options)


def bind(graph: Template, bound: dict[int, tuple[int, int]], **scalars: Any) -> tuple[GraphInstance, Token]:
    return graph.bind(Bindings(bound, arena=1), scalars, 77, 78)


def shape(graph: Template, bound: dict[int, tuple[int, int]], **scalars: Any) -> list[tuple[str, bool]]:
    """(label, whether a barrier stands before it) of an instance's nodes."""
    instance, _ = bind(graph, bound, **scalars)
    return [(node.label, node.barrier) for node in instance.nodes]


def step(reads: Any = (), writes: Any = ()) -> GraphNode:
    reads, writes = tuple(reads), tuple(writes)
    return GraphNode(COPY, reads + writes, reads, writes)


def test_two_chains_share_their_barriers() -> None:
    """Sent one behind the other, they run side by side: as many barriers as one chain has."""
    plan = Graphs().check(
        *(call("map", "x", "a", label=f"a{i}") if i == 0 else call("inplace", "a", label=f"a{i}") for i in range(3)),
        *(call("map", "x", "b", label=f"b{i}") if i == 0 else call("inplace", "b", label=f"b{i}") for i in range(3)),
        inputs={"x": 64}, outputs={"a": 64, "b": 64},
    )  # fmt: skip
    graph = template(plan)
    assert graph.barrier_count == 2
    assert shape(graph, {0: (11, 0), 1: (12, 0), 2: (13, 0)}) == [
        ("a0", False), ("b0", False), ("a1", True), ("b1", False), ("a2", True), ("b2", False),
    ]  # fmt: skip


def test_independent_nodes_have_no_barrier_unless_asked_for() -> None:
    names = [f"y{i}" for i in range(5)]
    plan = Graphs().check(*(call("map", "x", y) for y in names), inputs={"x": 64}, outputs=dict.fromkeys(names, 64))
    assert template(plan).barrier_count == 0
    assert template(plan, every=True).barrier_count == 4


def test_temporaries_of_a_chain_share_two_places() -> None:
    chain = ["x", "a", "b", "c", "d", "y"]
    plan = Graphs().check(
        *(call("map", i, o) for i, o in zip(chain, chain[1:], strict=False)),
        inputs={"x": 1024}, outputs={"y": 1024}, temporaries=dict.fromkeys("abcd", 1024),
    )  # fmt: skip
    graph = template(plan)
    assert graph.arena_bytes == 2048
    assert graph.barrier_count == 4
    instance, token = bind(graph, {0: (11, 0), 1: (12, 256)})
    assert instance.arenas == ((1, 2048),)
    assert (token.reads, token.writes) == (((11, 0, 1024),), ((1, 0, 2048), (12, 256, 1280)))
    assert instance.places == ((11, 0), (12, 256), (1, 0), (1, 1024), (1, 0), (1, 1024))


def test_levels_that_need_far_more_memory_are_given_up() -> None:
    """A hundred chains side by side would need as many temporaries; one after the other they share two."""
    size = 64 << 20
    nodes = []
    for i in range(20):
        nodes += [call("map", "x", f"t{i}"), call("map", f"t{i}", f"y{i}")]
    plan = Graphs().check(
        *nodes, inputs={"x": size}, outputs={f"y{i}": size for i in range(20)},
        temporaries={f"t{i}": size for i in range(20)},
    )  # fmt: skip
    graph = template(plan)
    assert graph.arena_bytes <= 3 * size
    assert graph.barrier_count >= 10


def test_zeros_and_constants_go_first() -> None:
    plan = Graphs().check(
        call("map", "x", "y", label="one"), call("inplace", "y", label="two"),
        call("add", "t", {"in": b"abcd"}, "t", label="sum"),
        inputs={"x": 64}, outputs={"y": 64}, temporaries={"t": 64},
    )  # fmt: skip
    assert shape(template(plan), {0: (11, 0), 1: (12, 0)}) == [
        ("one", False), ("constants", False), ("zero t", False), ("two", True), ("sum", False),
    ]  # fmt: skip


def test_overlapping_memory_runs_in_the_order_sent() -> None:
    """b0 is moved before a1 only while they are not of one memory."""
    plan = Graphs().check(
        call("map", "x", "a", label="a0"), call("inplace", "a", label="a1"), call("map", "x", "b", label="b0"),
        inputs={"x": 64}, outputs={"a": 64, "b": 64},
    )  # fmt: skip
    graph = template(plan)
    apart = [("a0", False), ("b0", False), ("a1", True)]
    in_order = [("a0", False), ("a1", True), ("b0", True)]
    assert shape(graph, {0: (11, 0), 1: (12, 0), 2: (12, 64)}) == apart
    assert shape(graph, {0: (11, 0), 1: (12, 0), 2: (12, 0)}) == in_order
    assert shape(graph, {0: (11, 0), 1: (12, 256), 2: (12, 288)}) == in_order
    assert shape(graph, {0: (12, 0), 1: (12, 0), 2: (13, 0)}) == [("a0", False), ("a1", True), ("b0", True)]


def test_two_names_that_are_only_read_may_be_one() -> None:
    plan = Graphs().check(call("add", "x", "y", "z"), inputs={"x": 64, "y": 64}, outputs={"z": 64})
    assert shape(template(plan), {0: (11, 0), 1: (11, 0), 2: (12, 0)}) == [("add", False)]


def test_a_copy_onto_itself_is_refused_when_it_is_bound() -> None:
    plan = Graphs().check({"copy": ["x", "y"]}, inputs={"x": 64}, outputs={"y": 64})
    graph = template(plan)
    assert shape(graph, {0: (11, 0), 1: (11, 64)}) == [("copy", False)]
    with pytest.raises(InvalidError, match="same memory"):
        bind(graph, {0: (11, 0), 1: (11, 32)})


def test_nodes_are_shared_and_equal_numbers_are_worked_out_once() -> None:
    plan = Graphs().check(
        call("map", "x", "y"), *[call("scaled", "x", "z", scalars=[{"scalar": "n"}, 1.0])] * 5,
        call("scaled", "x", "z", scalars=[{"scalar": "n"}, 2.0], grid=[{"scalar": "n"}]),
        inputs={"x": 64}, outputs={"y": 64, "z": 64}, scalars={"n": "uint32"},
    )  # fmt: skip
    graph = template(plan)
    bound = {0: (11, 0), 1: (12, 0), 2: (13, 0)}
    one, two = (bind(graph, bound, n=n)[0] for n in (1, 2))
    assert one.nodes is two.nodes
    assert len(one.numbers) == 3
    first, second, *_, last = one.nodes
    assert [node.pipeline for node in (first, second)] == [PIPELINES["map"], PIPELINES["scaled"]]
    for instance, n in ((one, 1), (two, 2)):
        assert instance.constants(second) == struct.pack("<If", n, 1.0)
        assert (instance.constants(last), instance.grid(last)) == (struct.pack("<If", n, 2.0), (n, 1, 1))
    assert (one.constants(first), one.grid(first)) == (b"", (1, 1, 1))


def test_what_a_launch_touches() -> None:
    plan = Graphs().check(
        call("map", ["x", 256, 64], ["y", 0, 64]), call("map", ["x", 1024, 64], ["y", 512, 64]),
        inputs={"x": 2048}, outputs={"y": 1024},
    )  # fmt: skip
    _, token = bind(template(plan), {0: (11, 512), 1: (12, 0)})
    assert (token.reads, token.writes) == (((11, 768, 1600),), ((12, 0, 576),))


def test_a_buffer_that_is_bound_by_nothing_is_in_the_token_all_the_same() -> None:
    plan = Graphs().check(call("map", "x", "y"), inputs={"x": 0}, outputs={"y": 64})
    _, token = bind(template(plan), {0: (11, 0), 1: (12, 0)})
    assert set(token.buffers) == {11, 12}


def test_what_comes_with_a_launch_lies_in_an_arena_of_its_own() -> None:
    plan = Graphs().check(call("map", "x", "y"), call("inplace", "z"), inputs={"x": 64, "z": 32}, outputs={"y": 100})
    graph = template(plan)
    instance, token = graph.bind(Bindings({1: (11, 0)}, ((0, "in"), (2, "out")), 1, 2), {}, 77, 78)
    assert instance.arenas == ((2, graph.inline_bytes),)
    assert instance.transients == ((0, 64), (2, 100))
    assert instance.results == ("y",)
    (x_in, x), z, (y_in, y) = instance.places
    assert (x_in, y_in, z) == (2, 2, (11, 0))
    assert x + 64 <= y or y + 100 <= x
    assert token.writes == ((2, 0, graph.inline_bytes), (11, 0, 32))


def test_more_ranges_than_are_told_apart_cost_a_level_and_no_order() -> None:
    far = [step(writes=[(0, 8 * i, 8 * i + 4)]) for i in range(200)]
    assert set(levels(far)) <= {0, 1, 2, 3}
    last = step(reads=[(0, 0, 4)])
    assert levels([*far, last])[-1] > 0


def test_things_that_are_needed_at_once_lie_apart() -> None:
    offsets, size = place({1: 100, 2: 50, 3: 100}, {1: (0, 1), 2: (1, 2), 3: (2, 3)}, 64)
    assert offsets == {1: 0, 3: 0, 2: 128}
    assert size == 192


PLACES = range(4)
RANGES = st.lists(
    st.tuples(st.sampled_from(PLACES), st.integers(0, 3), st.integers(1, 2)).map(lambda r: (r[0], r[1], r[1] + r[2])),
    max_size=2,
)
STEPS = st.lists(st.builds(step, RANGES, RANGES), max_size=12)


def depends(early: GraphNode, late: GraphNode) -> bool:
    """Whether `late` must see what `early` did, or the other way round."""
    return any(
        a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
        for one, other in ((early.writes, late.reads), (early.writes, late.writes), (early.reads, late.writes))
        for a in one
        for b in other
    )


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_levels_keep_dependent_steps_apart_and_are_as_few_as_can_be(steps: list[GraphNode]) -> None:
    found = levels(steps)
    longest = [0] * len(steps)
    for i, j in combinations(range(len(steps)), 2):
        if depends(steps[i], steps[j]):
            longest[j] = max(longest[j], longest[i] + 1)
    assert found == longest


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_barrier_stands_between_dependent_steps(steps: list[GraphNode]) -> None:
    places = [(n + 1, 0) for n in PLACES]
    before = barriers(steps, places)
    for i, j in combinations(range(len(steps)), 2):
        if depends(steps[i], steps[j]):
            assert any(before[i + 1 : j + 1])


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(0, 3))))
def test_placement(things: dict[int, tuple[int, int, int]]) -> None:
    sizes = {key: size for key, (size, _, _) in things.items()}
    spans = {key: (first, first + more) for key, (_, first, more) in things.items()}
    offsets, total = place(sizes, spans, 64)
    for a, b in combinations(things, 2):
        together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
        apart = offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
        assert apart or not together or not sizes[a] or not sizes[b]
    assert all(offsets[key] % 64 == 0 and offsets[key] + sizes[key] <= total for key in things)


NAMES = ["x", "y", "t", "u", "v"]
NODES = st.lists(
    st.one_of(
        st.tuples(st.just("map"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("add"), *[st.sampled_from(NAMES)] * 3),
        st.tuples(st.just("inplace"), st.sampled_from(NAMES)),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


def run(nodes: Any, places: Any, memory: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """What each place holds afterwards: every step makes a number of what it reads. Between two barriers steps run
    in the opposite order."""
    pieces: list[list[GraphNode]] = [[]]
    for node in nodes:
        if node.barrier:
            pieces.append([])
        pieces[-1].append(node)
    for piece in pieces:
        for node in reversed(piece):
            got = [memory.get(places[p], -1) for p, _, _ in node.reads]
            for p, _, _ in node.writes:
                memory[places[p]] = 0 if node.op == FILL else hash((node.pipeline, *got))
    return memory


@settings(max_examples=150, deadline=None)
@given(NODES, st.booleans())
def test_any_graph_computes_what_its_nodes_do_one_after_the_other(nodes: Any, aliased: bool) -> None:
    try:
        plan = Graphs().check(
            *(call(*node) for node in nodes), inputs={"x": 64, "y": 64}, temporaries={"t": 64, "u": 64, "v": 64}
        )
    except InvalidError:
        return  # a temporary is read before it is written
    bound = {0: (11, 0), 1: (11, 0) if aliased else (12, 0)}
    start = {bound[0]: 1, bound[1]: 2}
    instance, _ = bind(template(plan), bound)
    found = run(instance.nodes, instance.places, dict(start))
    alone = [bound.get(n, (100 + n, 0)) for n in range(len(plan.places))]
    as_sent = [
        replace(s.node, barrier=True, pipeline=PIPELINES[s.kernel] if s.kernel else 0) for s in plan.steps
    ]
    expected = run(as_sent, alone, dict(start))
    assert [found[where] for where in bound.values()] == [expected[where] for where in bound.values()]
