"""Calls to the parameters of `dispatch`: pure, no connection."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from client.fake_kernels import KERNELS, reflection, scalar, storage
from hypothesis import given
from hypothesis import strategies as st

from vkqueue.client.arguments import HostEntry, Rules
from vkqueue.client.array import BaseDeviceArray, Handle
from vkqueue.client.launch import LaunchPlan, extents, spill
from vkqueue.client.signature import Signature
from vkqueue.client.transfer import payload_bytes, pieces
from vkqueue.errors import InvalidError, QuotaError
from vkqueue.wire.codec import unpack

F32 = np.dtype("float32")
X = np.zeros(4, F32)


def handle(number: int = 1) -> Handle:
    return Handle("here", number, 16, ("buffer.free", "buffer"), deque())


def plan(name: str, max_bytes: int = 1 << 20) -> LaunchPlan:
    return LaunchPlan(Signature.from_wire(name, KERNELS[name][0]), handle(), Rules("here"), max_bytes)


def plan_of(wire: dict[str, Any]) -> LaunchPlan:
    return LaunchPlan(Signature.from_wire("k", wire), handle(), Rules("here"), 1 << 20)


def arrays(count: int) -> list[BaseDeviceArray]:
    return [BaseDeviceArray(handle(10 + i), (4,), F32) for i in range(count)]


CALLS = st.tuples(
    st.lists(st.integers(0, 2), min_size=2, max_size=2),
    st.fixed_dictionaries({"n": st.integers(-1, 2**32), "a": st.one_of(st.floats(), st.integers(), st.none())}),
    st.sampled_from(["grid", "elements"]),
    st.one_of(st.integers(-1, 70), st.tuples(st.integers(0, 99)), st.lists(st.integers(0, 99), min_size=1, max_size=4)),
)


@given(st.lists(CALLS, max_size=8))
def test_the_short_way_and_the_long_way_agree(calls: list[Any]) -> None:
    axpy, buffers = plan("axpy"), arrays(3)
    fresh = plan("axpy")
    for chosen, scalars, option, extent in calls:
        args = [buffers[i] for i in chosen]
        keywords = {**scalars, option: extent}
        packed = axpy.packed(args, keywords)
        try:
            params = fresh.prepare(args, keywords).params
        except InvalidError:
            assert packed is None
            with pytest.raises(InvalidError):
                axpy.prepare(args, keywords)
            continue
        if packed is None:
            assert axpy.prepare(args, keywords).params == params
            packed = axpy.packed(args, keywords)
        # A list as extent cannot be a key of the short way's table.
        assert packed is not None or isinstance(extent, list)
        if packed is not None:
            assert unpack(packed) == params


def test_the_short_way_is_left_when_something_is_new() -> None:
    axpy, (x, y, z) = plan("axpy"), arrays(3)
    keywords = {"n": 4, "a": 1.0, "grid": 1}
    axpy.prepare([x, y], keywords)
    assert axpy.packed([x, y], keywords) is not None
    assert axpy.packed([x, y], {**keywords, "a": 2}) is not None
    for args, more in (
        ([x, z], {}), ([x], {}), ([x, X], {}), ([x, y], {"label": "l"}), ([x, y], {"a": "1"}), ([x, y], {"grid": 2}),
    ):  # fmt: skip
        assert axpy.packed(args, {**keywords, **more}) is None
    y.handle.bury()
    assert axpy.packed([x, y], keywords) is None
    with pytest.raises(InvalidError, match="freed"):
        axpy.prepare([x, y], keywords)
    x.handle.failed(QuotaError("full"))
    assert axpy.packed([x, z], keywords) is None
    with pytest.raises(QuotaError):
        axpy.prepare([x, z], keywords)


def test_the_tables_of_the_short_way_are_bounded() -> None:
    fill = plan("fill")
    for i in range(1000):
        [array] = arrays(1)
        fill.prepare([array], {"value": 0, "grid": i})
    assert len(fill._args) <= 256
    assert len(fill._grids["grid"]) <= 256


def test_a_kernel_without_scalars_takes_the_short_way_too() -> None:
    nothing = plan("nothing")
    params = nothing.prepare([], {"grid": (2, 3)}).params
    packed = nothing.packed([], {"grid": (2, 3)})
    assert packed is not None
    assert unpack(packed) == params == {"module": 1, "kernel": "nothing", "args": [], "grid": [2, 3]}


@pytest.mark.parametrize(
    ("elements", "groups"), [(0, [0]), (1, [1]), (64, [1]), (65, [2]), ((130, 5, 7), [3, 5, 7]), ([np.int32(64)], [1])]
)
def test_elements_are_rounded_up_to_groups(elements: Any, groups: list[int]) -> None:
    assert plan("nothing").prepare([], {"elements": elements}).params["grid"] == groups


@pytest.mark.parametrize(
    ("args", "keywords", "text"),
    [
        ([X, X, X], {}, "takes 2 arguments, got 3; scalars go by keyword"),
        ([X], {}, r"argument 'y' .* is missing. Call the kernel as axpy\(x, y"),
        ([X, X], {"y": X}, "argument 'y' is given twice"),
        ([X, X], {"m": 5}, "takes no 'm'"),
        ([X, X], {"element": 5}, "Did you mean 'elements'"),
        ([X, X], {"grid": 1}, "got grid and elements"),
        ([X, X], {"elements": None}, "got neither"),
        ([X, X], {"elements": -1}, "elements: expected one to 3 integers of at least 0, got -1"),
        ([X, X], {"elements": (1, 2, 3, 4)}, "one to 3"),
        ([X, X], {"elements": "12"}, "got '12'"),
        ([X, X], {"elements": 1.5}, "got 1.5"),
        ([X, X], {"scalars": [1, 2]}, "not both"),
        ([X, X], {"deadline": 0}, "deadline: expected seconds above 0, got 0"),
        ([X, X], {"deadline": float("nan")}, "deadline"),
        ([X, X], {"after": 3}, "after"),
        ([X, X], {"specialization": [1]}, "specialization: expected a dict"),
        ([X, X], {"specialization": {"k": 1}}, "elements=… counts in work groups"),
    ],
)
def test_calls_that_are_wrong(args: list[Any], keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        plan("axpy").prepare(args, {"n": 4, "a": 1, "elements": 4, **keywords})


def test_names_that_clash() -> None:
    """An option keeps its name, a scalar comes before a binding; the others are still reached another way."""
    wire = reflection([storage(0, "read", "n"), storage(1, "read", "n")], [scalar("grid", "uint32", 0)])
    clash = plan_of(wire)
    launch = clash.prepare([X, X], {"grid": 1, "scalars": {"grid": 5}})
    assert launch.params["scalars"] == (5).to_bytes(4, "little")
    wire = reflection([storage(0, "read", "n")], [scalar("n", "uint32", 0)])
    assert plan_of(wire).prepare([X], {"grid": 1, "n": 5}).params["scalars"] == (5).to_bytes(4, "little")
    with pytest.raises(InvalidError, match="is missing"):
        plan_of(wire).prepare([], {"grid": 1, "n": X})


def test_specialized_sizes() -> None:
    sized = plan("sized")
    with pytest.raises(InvalidError, match="no invocations"):
        sized.prepare([16], {"elements": 5, "specialization": {"block": 0}})
    assert sized.prepare([16], {"grid": 5, "specialization": {"block": 0}}).params["grid"] == [5]


@given(
    st.lists(st.tuples(st.sampled_from(["in", "inout", "out"]), st.integers(0, 100)), max_size=6),
    st.integers(1, 150),
)
def test_spilled_is_what_a_message_cannot_hold(entries: list[tuple[str, int]], limit: int) -> None:
    hosts = [
        HostEntry([], 0, kind, None if kind == "out" else b"", size, None if kind == "in" else Any)  # type: ignore[arg-type]
        for kind, size in entries
    ]
    spilled = spill(hosts, limit)
    kept = [h for h in hosts if h not in spilled]
    sent = sum(h.nbytes for h in hosts if h.kind != "out")
    returned = sum(h.nbytes for h in hosts if h.kind != "in")
    assert sum(h.nbytes for h in kept if h.kind != "out") <= limit
    assert sum(h.nbytes for h in kept if h.kind != "in") <= limit
    assert bool(spilled) == (sent > limit or returned > limit)


@given(st.integers(0, 10_000), st.integers(1, 5_000))
def test_pieces_cover_everything_once(size: int, piece: int) -> None:
    parts = list(pieces(size, piece))
    assert [offset for offset, _ in parts] == list(range(0, max(size, 1), piece))
    assert sum(n for _, n in parts) == size
    assert all(n <= piece for _, n in parts)


@given(st.integers(64, 1 << 40))
def test_a_message_holds_its_payload_and_more(limit: int) -> None:
    payload = payload_bytes(limit)
    assert 0 < payload <= limit - min(16 * 1024, limit // 4)
    assert payload % 4096 == 0 or payload < 4096


def test_extents() -> None:
    assert extents((1, np.uint8(2)), "grid") == [1, 2]
    assert extents(np.int64(3), "grid") == [3]
    with pytest.raises(InvalidError):
        extents((), "grid")


def test_sizes_that_no_constant_changes() -> None:
    wire = reflection([], specialization=[{"id": 1, "name": "k", "type": "uint32", "default": 1}])
    for varies in (True, None):
        with pytest.raises(InvalidError, match="give grid="):
            plan_of({**wire, "local_size_spec": varies}).prepare([], {"elements": 65, "specialization": {"k": 1}})
    fixed = plan_of({**wire, "local_size_spec": False})
    assert fixed.prepare([], {"elements": 65, "specialization": {"k": 1}}).params["grid"] == [2]
