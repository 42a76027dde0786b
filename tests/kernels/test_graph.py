"""Graphs as they are sent: what is checked, and what steps come out."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.graphs import ALIGN, Graphs, call

from vkqueue.errors import InvalidError, NotFoundError
from vkqueue.kernels.graph_plan import BUFFER, CONSTANT, GraphPlan, Step
from vkqueue.model import COPY, DISPATCH, FILL, WRITE

XY: dict[str, Any] = {"inputs": {"x": 64}, "outputs": {"y": 64}, "temporaries": {"t": 64}}


def late(step: Step, plan: GraphPlan, given: dict[str, Any]) -> tuple[Any, Any]:
    """What a launch has in place of a step's constants or data, and of its grid."""
    first, second = (None if n is None else n.resolve(given, plan.scalars) for n in (step.late, step.late_grid))
    return first, second


def test_names_ranges_and_handles() -> None:
    plan = Graphs(b7=256).check(
        call("map", "x", "t"), call("add", ["t", 0, 32], [7, 64, 32], "y"), inputs={"x": 64}, outputs={"y": 64},
        temporaries={"t": 64},
    )  # fmt: skip
    x, y, t, fixed = plan.places
    assert (fixed.role, fixed.handle, fixed.buffer.id) == (BUFFER, 7, 1007)
    first, second = (step.node for step in plan.steps)
    assert (first.op, first.entries, first.reads, first.writes) == (
        DISPATCH, ((0, 0, 64), (2, 0, 64)), ((0, 0, 64),), ((2, 0, 64),),
    )  # fmt: skip
    assert second.entries == ((2, 0, 32), (3, 64, 32), (1, 0, 64))
    assert second.reads == ((2, 0, 32), (3, 64, 96))
    assert (t.reads, t.writes, fixed.reads, y.reads) == ((0, 32), (0, 64), (64, 96), None)
    assert x.align == ALIGN


def test_copies_and_fills() -> None:
    plan = Graphs(b3=16).check(
        {"copy": ["x", "y"]}, {"fill": ["y", 8, 16], "value": 7}, {"copy": [3, ["y", 48, 16]]}, **XY
    )
    copy, fill, last = (step.node for step in plan.steps)
    assert (copy.op, copy.entries) == (COPY, ((0, 0, 64), (1, 0, 64)))
    assert (fill.op, fill.entries, fill.data, fill.writes) == (FILL, ((1, 8, 16),), 7, ((1, 8, 24),))
    assert last.reads == ((3, 0, 16),)


def test_scalars_and_grids_that_come_with_a_launch() -> None:
    plan = Graphs().check(
        call("scaled", "x", "y", scalars=[{"scalar": "n"}, 0.5]),
        call("scaled", "x", "y", scalars={"k": {"scalar": "k"}, "n": 9}, grid=[{"scalar": "n"}, 2]),
        {"fill": "y", "value": {"scalar": "k"}},
        scalars={"n": "uint32", "k": "float32"}, **XY,
    )  # fmt: skip
    given = {"n": 5, "k": 1.5}
    plan.check_scalars(given)
    first, second, third = plan.steps
    assert late(first, plan, given) == (struct.pack("<If", 5, 0.5), None)
    assert late(second, plan, given) == (struct.pack("<If", 9, 1.5), (5, 2, 1))
    assert late(third, plan, given) == (int.from_bytes(struct.pack("<f", 1.5), "little"), None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n": 5}, "k .float32. is missing"),
        ({"n": 5, "k": 1.0, "m": 1}, "none called 'm'"),
        ({"n": -1, "k": 1.0}, "outside uint32"),
        ({"n": 1.0, "k": 1.0}, "expected an integer"),
        ({"n": 1, "k": 1e39}, "overflows"),
    ],
)
def test_scalars_of_a_launch_are_checked(given: dict[str, Any], says: str) -> None:
    plan = Graphs().check(call("map", "x", "y"), scalars={"n": "uint32", "k": "float32"}, **XY)
    with pytest.raises(InvalidError, match=says):
        plan.check_scalars(given)


def test_a_scalar_may_be_right_by_itself_and_wrong_for_a_kernel() -> None:
    plan = Graphs().check(call("narrow", "x", scalars=[{"scalar": "n"}]), inputs={"x": 64}, scalars={"n": "uint32"})
    [step] = plan.steps
    assert late(step, plan, {"n": 255}) == (b"\xff\0\0\0", None)
    with pytest.raises(InvalidError, match="outside uint8"):
        late(step, plan, {"n": 256})


def test_data_of_a_node_is_put_in_place_by_a_step_of_its_own() -> None:
    plan = Graphs().check(call("add", {"in": bytes(range(6))}, "x", "y"), **XY)
    put, node = (step.node for step in plan.steps)
    place = plan.places[put.entries[0][0]]
    assert (put.op, put.data, place.role, place.size) == (WRITE, bytes(range(6)) + b"\0\0", CONSTANT, 6)
    assert node.entries[0] == (place.id - 1, 0, 6)
    assert (place.id - 1, 0, 6) in node.reads
    assert plan.nodes == 1


def test_uniform_blocks() -> None:
    plan = Graphs().check(call("uniform", "x", {"values": {"a": 2.0, "b": 3}}), inputs={"x": 64})
    assert [step.node.data for step in plan.steps] == [struct.pack("<fI", 2.0, 3), 0]


def test_a_tvm_kernel_takes_its_scalars_in_a_block_that_a_launch_may_change() -> None:
    plan = Graphs().check(
        {"kernel": "tvm", "args": ["y"], "scalars": [{"scalar": "n"}, 2.0], "launch": [3, 64]},
        outputs={"y": 64}, scalars={"n": "uint32"},
    )  # fmt: skip
    put, node = plan.steps
    assert (node.node.grid, node.node.constants, len(node.node.entries)) == ((3, 1, 1), b"", 2)
    assert late(put, plan, {"n": 77}) == (struct.pack("<If", 77, 2.0), None)
    assert node.late is None


def test_a_temporary_that_is_accumulated_into_begins_as_zeros() -> None:
    plan = Graphs().check(call("inplace", "t"), call("map", "t", "y"), **XY)
    zero = plan.steps[0].node
    assert (zero.op, zero.data, zero.entries) == (FILL, 0, ((2, 0, 64),))
    assert len(plan.steps) == 3


def test_descriptor_arrays() -> None:
    plan = Graphs().check(call("many", {"array": ["x", ["x", 0, 16]]}, "y"), **XY)
    assert plan.steps[0].node.entries == ((0, 0, 64), (0, 0, 16), (1, 0, 64))


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({}, "a node has one of"),
        ({"copy": ["x", "y"], "fill": "y"}, "a node has one of"),
        ({"fill": "y", "grid": [1]}, "takes no 'grid'"),
        (call("map", "x", "z"), "is called 'z'; there are x, y, t"),
        (call("map", ["x", 0, 65], "y"), "lies outside input 'x' of 64 bytes"),
        (call("map", ["x", 4, 8], "y"), "offset 4 is no multiple"),
        (call("map", "x"), "takes 2 entries"),
        (call("map", "t", "y"), "temporary 't' is read before any node writes it"),
        (call("map", "x", {"out": 64}), "no {'out'"),
        (call("map", {"in": bytes(65_537)}, "y"), "create buffers for it"),
        (call("scaled", "x", "y"), "none were given"),
        (call("scaled", "x", "y", scalars=[{"scalar": "k"}, 1.0]), "expected an integer"),
        (call("scaled", "x", "y", scalars=[{"scalar": "m"}, 1.0]), "no scalar 'm'"),
        (call("scaled", "x", "y", scalars=[{"scala": "k"}, 1.0]), "expected a number or"),
        (call("map", "x", "y", launch=[1]), "give one of grid and launch"),
        (call("map", "x", "y", grid=[-1]), "grid.0."),
        (call("map", "x", "y", label=3), "label"),
        ({"copy": ["x", ["y", 0, 8]]}, "64 bytes do not fit 8"),
        ({"copy": [["y", 0, 8], ["y", 4, 8]]}, "overlap"),
        ({"copy": "x"}, "expected .source, target."),
        ({"fill": ["y", 2, 4]}, "multiples of 4"),
        ({"fill": "y", "value": 2**32}, "expected a 32-bit word"),
        ({"fill": "y", "value": {"scalar": "d"}}, "a float64 has 8 bytes"),
    ],
)
def test_what_is_refused(node: dict[str, Any], says: str) -> None:
    good = call("map", "x", "y")
    with pytest.raises(InvalidError, match=says) as refused:
        Graphs().check(good, node, scalars={"k": "float32", "d": "float64"}, **XY)
    assert refused.value.message.startswith("nodes[1]: ")


@pytest.mark.parametrize("entry", [-1, 9, [-1, 0, 4], [9, 0, 4], {"array": [-1, -1]}])
def test_handles_that_are_none(entry: Any) -> None:
    kernel = "many" if type(entry) is dict else "map"
    with pytest.raises(NotFoundError, match="nodes.0.: .*no buffer"):
        Graphs().check(call(kernel, entry, "y"), **XY)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"inputs": {"x": 64}, "outputs": {"x": 64}}, "names one thing"),
        ({"inputs": {"": 64}}, "a name is not empty"),
        ({"outputs": {"y": 64, "z": 4}}, "no node writes 'z'"),
        ({"scalars": {"n": "uint31"}}, "no type 'uint31'"),
    ],
)
def test_names_that_are_refused(params: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidError, match=says):
        Graphs().check(call("map", "x", "y"), **{"inputs": {"x": 64}, "outputs": {"y": 64}, **params})


def test_a_graph_has_nodes() -> None:
    with pytest.raises(InvalidError, match="one node at least"):
        Graphs().check()
