"""Launches checked as columns come to the same as those checked one by one: the same descriptors, the same errors."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.errors import InvalidError, NotFoundError, VkqueueError
from vkqueue.kernels.launches import Many
from vkqueue.kernels.many import Checker, token_of
from vkqueue.kernels.plan import LayoutTable, Plan

LIMITS = {
    "minUniformBufferOffsetAlignment": 64,
    "minStorageBufferOffsetAlignment": 16,
    "maxUniformBufferRange": 256,
    "maxStorageBufferRange": 512,
    "maxComputeWorkGroupCount": [100, 10, 5],
}
SIZES = {1: 0, 2: 16, 3: 64, 4: 256, 5: 256, 6: 512, 7: 1024, 2**31 - 5: 256}
"""Buffers by handle: an empty one, some too small or too large, and one that the client gave a high handle."""


class Buffer:
    def __init__(self, handle: int) -> None:
        self.id = handle % 1000 + 1000
        self.size = SIZES[handle]


BUFFERS = {handle: Buffer(handle) for handle in SIZES}


def find(handle: Any, label: str) -> Buffer:
    if type(handle) is not int:
        raise InvalidError(f"{label}: a handle is an integer, not {handle!r}")
    if handle not in BUFFERS:
        raise NotFoundError(f"{label}: no buffer {handle}")
    return BUFFERS[handle]


def find_all(handles: list[int]) -> list[Any]:
    return [BUFFERS.get(handle) for handle in handles]


def binding(number: int, access: str, kind: str = "storage", count: int = 1, size: int = 0) -> dict[str, Any]:
    return {
        "set": 0, "binding": number, "kind": kind, "access": access, "name": f"b{number}", "count": count,
        "size": size, "stride": 4,
    }  # fmt: skip


SCALARS = [
    {"name": "n", "type": "uint32", "offset": 0, "size": 4},
    {"name": "on", "type": "bool32", "offset": 4, "size": 4},
    {"name": "v", "type": "float32", "offset": 16, "size": 12, "count": 3, "stride": 4},
    {"name": "s", "type": "int8", "offset": 28, "size": 1},
]
KERNEL = {
    "bindings": [
        binding(0, "read"),
        binding(1, "read_write", size=16),
        binding(2, "write", count=2),
        binding(3, "read", "uniform", size=32),
        binding(4, "none"),
    ],
    "local_size": [64, 1, 1],
    "push_constant_bytes": 29,
    "scalars": SCALARS,
}
PLAN = Plan("k", KERNEL, LIMITS, LayoutTable())
ROW = struct.Struct("<II8x3fb3x")


def check(plan: Plan = PLAN, **params: Any) -> Many:
    return Checker(plan, params, find, find_all).check()


def words(values: list[int], code: str = "I") -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def nth(entry: Any, i: int) -> Any:
    """The entry of one launch, as `dispatch` takes it."""
    if type(entry) is not dict or not {"handles", "buffer"} & entry.keys():
        return entry
    handle = struct.unpack_from("<I", entry["handles"], 4 * i)[0] if "handles" in entry else entry["buffer"]
    if "offsets" not in entry:
        return handle
    size = entry["size"]
    size = size if type(size) is int else struct.unpack_from("<Q", size, 8 * i)[0]
    return [handle, struct.unpack_from("<Q", entry["offsets"], 8 * i)[0], size]


def launch_of(plan: Plan, p: dict[str, Any], i: int) -> tuple[Any, ...]:
    """One launch, the way of `dispatch`: its descriptors, reads, writes, constants, grid."""
    grid = p["grid"]
    grid = plan.grid(list(struct.unpack_from("<3I", grid["grids"], 12 * i)) if type(grid) is dict else grid)
    scalars = p["scalars"]
    if type(scalars) is dict and scalars.keys() == {"packed"}:
        constants = scalars["packed"][32 * i : 32 * i + 32]
    else:
        if type(scalars) is dict:
            c = scalars["columns"]
            scalars = [
                struct.unpack_from("<I", c["n"], 4 * i)[0],
                struct.unpack_from("<I", c["on"], 4 * i)[0],
                *struct.unpack_from("<3f", c["v"], 12 * i),
                struct.unpack_from("<b", c["s"], i)[0],
            ]
        constants = plan.scalars.pack(scalars)
    args = [{"array": [nth(e, i) for e in a["array"]]} if type(a) is dict and "array" in a else nth(a, i)
            for a in p["args"]]  # fmt: skip
    bound = plan.bind(args, find)
    return tuple(bound.entries), sorted(bound.reads), sorted(bound.writes), constants, grid


def one_by_one(p: dict[str, Any]) -> list[Any]:
    launches = []
    for i in range(p["count"]):
        try:
            launches.append(launch_of(PLAN, p, i))
        except VkqueueError as error:
            raise type(error)(f"launch {i}: {error.message}", {**(error.data or {}), "launch": i}) from None
    return launches


def all_at_once(p: dict[str, Any]) -> list[Any]:
    many = check(**p)
    launches = []
    for i in range(many.count):
        reads, writes = many.touched(i)
        launches.append((many.entries(i), sorted(reads), sorted(writes), many.constants_of(i), many.grid_of(i)))
    return launches


GOOD = [4, 5, 6, 2**31 - 5]  # fit every storage binding
FEW_FAULTS = st.integers(0, 20).map(lambda n: n == 0)


@st.composite
def entries(draw: st.DrawFn, n: int, uniform: bool = False) -> Any:
    align, most = (64, 256) if uniform else (16, 512)
    fault = draw(st.sampled_from([""] * 12 + ["handle", "outside", "align", "size", "fixed"]))
    handles = [h for h in GOOD if SIZES[h] <= most]
    some = st.sampled_from([*SIZES, 99, 2**32 - 1] if fault == "handle" else handles)
    form = draw(st.sampled_from(["handle", "range", "handles", "handles+", "buffer+"]))
    many = draw(st.lists(some, min_size=n, max_size=n))
    offsets = {
        "outside": st.sampled_from([0, 192, 256, 512, 2**63, 2**64 - 64]),
        "align": st.sampled_from([0, 8, 16, 32, 64, 96]),
    }.get(fault, st.integers(0, 192 // align).map(lambda k: k * align))
    sizes = {"size": st.integers(200, 600), "fixed": st.integers(0, 64)}.get(fault, st.integers(32, 64))
    offset = draw(st.lists(offsets, min_size=n, max_size=n))
    each = draw(st.none() | st.lists(sizes, min_size=n, max_size=n))
    size: Any = draw(sizes) if each is None else words(each, "Q")
    if form == "handle":
        return draw(st.sampled_from(handles))
    if form == "range":
        return [draw(st.sampled_from(handles)), align, 64]
    if form == "handles":
        return {"handles": words(many)}
    if form == "handles+":
        return {"handles": words(many), "offsets": words(offset, "Q"), "size": size}
    return {"buffer": draw(st.sampled_from(handles)), "offsets": words(offset, "Q"), "size": size}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 9))
    args = [draw(entries(n)), draw(entries(n)), {"array": [draw(entries(n)), draw(entries(n))]},
            draw(entries(n, uniform=True)), draw(entries(n))]  # fmt: skip
    high = 6 if draw(FEW_FAULTS) else 5
    grids = draw(st.lists(st.integers(0, high), min_size=3 * n, max_size=3 * n))
    bools = draw(st.lists(st.integers(0, 2 if draw(FEW_FAULTS) else 1), min_size=n, max_size=n))
    numbers = draw(st.lists(st.integers(-128, 127), min_size=n, max_size=n))
    floats = [float(v) for v in numbers for _ in range(3)]
    scalars = draw(
        st.sampled_from(
            [
                [7, True, 1.0, 2.0, 3.0, -1],
                {"packed": b"".join(ROW.pack(i, 1, i, 2, 3, -i) for i in range(n))},
                {"columns": {"n": words(list(range(n))), "on": words(bools), "v": struct.pack(f"<{3 * n}f", *floats),
                             "s": struct.pack(f"<{n}b", *numbers)}},
            ]
        )
    )  # fmt: skip
    grid = draw(st.sampled_from([[1], [100, 10, 5], {"grids": words(grids)}]))
    return {"count": n, "args": args, "scalars": scalars, "grid": grid}


@given(requests())
def test_columns_mean_what_their_launches_mean(p: dict[str, Any]) -> None:
    try:
        expected: Any = one_by_one(p)
    except VkqueueError as error:
        with pytest.raises(type(error)) as caught:
            check(**p)
        assert (caught.value.message, caught.value.data) == (error.message, error.data)
    else:
        assert all_at_once(p) == expected


@settings(max_examples=40)
@given(requests())
def test_the_token_covers_every_launch(p: dict[str, Any]) -> None:
    try:
        launches = one_by_one(p)
    except VkqueueError:
        return
    many = check(**p)
    token = token_of(1, PLAN.layout, many.args)
    assert set(token.buffers) == {id for launch in launches for id, _, _ in launch[0]}
    for place, touched in ((1, token.read), (2, token.written)):
        ranges = [r for launch in launches for r in launch[place]]
        assert {id for id, _, _ in ranges} <= touched.keys()
        assert all(touched[id][0] <= first and end <= touched[id][1] for id, first, end in ranges)
    assert sorted(token.reads) == sorted((id, *bounds) for id, bounds in token.read.items())


@settings(max_examples=40)
@given(requests(), st.data())
def test_a_part_has_its_own_launches(p: dict[str, Any], data: st.DataObject) -> None:
    try:
        launches = one_by_one(p)
    except VkqueueError:
        return
    if len(launches) > 1:
        at = data.draw(st.integers(1, len(launches) - 1))
        first, rest = check(**p).cut(at)
        assert (first.first, first.count, first.last) == (0, at, False)
        assert (rest.first, rest.count, rest.last) == (at, len(launches) - at, True)
        assert [first.entries(i) for i in range(at)] + [rest.entries(i) for i in range(rest.count)] == [
            launch[0] for launch in launches
        ]
        assert rest.constants_of(0) == launches[at][3] and rest.grid_of(0) == launches[at][4]


def test_halves_of_a_buffer_are_apart() -> None:
    plan = axpy()
    halves = [
        token_of(1, plan.layout, check(plan, count=2, args=[
            4, {"buffer": 6, "offsets": words([at, at + 64], "Q"), "size": 64}], scalars=[], grid=[1]).args)
        for at in (0, 256)
    ]  # fmt: skip
    assert [half.writes for half in halves] == [((1006, 0, 128),), ((1006, 256, 384),)]


def axpy() -> Plan:
    kernel = {**KERNEL, "bindings": KERNEL["bindings"][:2], "scalars": [], "push_constant_bytes": 0}
    return Plan("axpy", kernel, LIMITS, LayoutTable())


@pytest.mark.parametrize(
    ("handles", "offsets", "sizes", "says"),
    [
        ([4, 99], [0, 0], [64, 64], "no buffer 99"),
        ([4, 2**32 - 1], [0, 0], [64, 64], "no buffer 4294967295"),
        ([4, 4], [0, 8], [64, 64], "offset 8 is no multiple"),
        ([4, 4], [192, 208], [64, 64], "range 208 + 64 lies outside buffer 4"),
        ([4, 4], [0, 2**64 - 64], [64, 64], "lies outside buffer 4"),
        ([4, 4], [0, 0], [64, 2**64 - 1], "lies outside buffer 4"),
        ([7, 7], [0, 0], [64, 513], "over the device's maxStorageBufferRange of 512"),
        ([4, 4], [0, 0], [64, 15], "needs at least 16"),
    ],
)
def test_the_first_wrong_launch_is_named(handles: Any, offsets: Any, sizes: Any, says: str) -> None:
    entry = {"handles": words(handles), "offsets": words(offsets, "Q"), "size": words(sizes, "Q")}
    with pytest.raises(VkqueueError) as caught:
        check(axpy(), count=2, args=[4, entry], scalars=[], grid=[1])
    assert caught.value.message.startswith("launch 1: ") and says in caught.value.message
    assert caught.value.data is not None and caught.value.data["launch"] == 1


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"out": 64}, "no outputs"),
        ({"inout": bytes(64)}, "no outputs"),
        ({"in": bytes(64)}, "cannot share one 'in'"),
        ({"handles": bytes(4)}, "expected a bin of 8 bytes (4 for each of 2 launches), got 4 bytes"),
        ({"handles": [4, 5]}, "handles: expected a bin of 8 bytes"),
        ({"handles": bytes(8), "size": 4}, "got a map of handles, size"),
        ({"buffer": 4, "handles": bytes(8), "offsets": bytes(16), "size": 4}, "differs from launch to launch is"),
        ({"buffer": 4, "offsets": bytes(16), "size": -1}, "size: expected an integer of at least 0"),
        ({"buffer": 4, "offsets": bytes(16), "size": True}, "size: expected an integer of at least 0"),
        ({"buffer": "4", "offsets": bytes(16), "size": 4}, "a handle is an integer"),
    ],
)
def test_an_entry_of_no_form_is_refused(entry: Any, says: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check(axpy(), count=2, args=[4, entry], scalars=[], grid=[1])
    assert says in caught.value.message and "b1" in caught.value.message


@pytest.mark.parametrize(
    ("scalars", "says"),
    [
        ({"packed": bytes(63)}, "packed: expected a bin of 64 bytes (32 for each of 2 launches)"),
        ({"columns": {"n": bytes(8)}}, "member on (bool32) is missing"),
        ({"columns": {"n": bytes(4), "on": bytes(8), "v": bytes(24), "s": bytes(2)}}, "n (uint32): expected a bin"),
        ({"columns": {"n": bytes(8), "on": bytes(8), "v": bytes(24), "s": bytes(2), "w": b""}}, "no member is called"),
        ({"packed": 4}, "member n (uint32) is missing"),
        (None, "none were given"),
    ],
)
def test_scalars_of_no_form_are_refused(scalars: Any, says: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check(count=2, args=[4, 5, {"array": [4, 5]}, 4, 4], scalars=scalars, grid=[1])
    assert says in caught.value.message


@pytest.mark.parametrize("grid", [{"grids": bytes(23)}, {"grid": bytes(24)}, {}, [1, 2, 3, 4], [101]])
def test_grids_of_no_form_are_refused(grid: Any) -> None:
    with pytest.raises(InvalidError, match="grid"):
        check(axpy(), count=2, args=[4, 5], scalars=[], grid=grid)


def test_the_number_of_entries_is_that_of_the_bindings() -> None:
    with pytest.raises(InvalidError, match="takes 2 entries"):
        check(axpy(), count=2, args=[{"handles": bytes(8)}], scalars=[], grid=[1])


def test_shared_data_is_one_transient_for_all() -> None:
    many = check(axpy(), count=3, args=[{"in": bytes(64)}, {"handles": words([4, 5, 6])}], scalars=[], grid=[1])
    assert many.transients == (("in", bytes(64)),)
    assert [many.entries(i) for i in range(3)] == [((0, 0, 64), (1000 + h, 0, SIZES[h])) for h in (4, 5, 6)]
    assert many.cut(1)[1].transients == many.transients
    assert many.job.nbytes >= 64 + 12


def test_scalars_in_a_uniform_buffer_are_a_piece_for_each_launch() -> None:
    kernel = {**KERNEL, "bindings": KERNEL["bindings"][:1], "tvm": {"uniform": 1}}
    plan = Plan("tvm", kernel, LIMITS, LayoutTable())
    rows = [ROW.pack(i, 1, i, 2, 3, -i) for i in range(3)]
    many = check(plan, count=3, args=[4], scalars={"packed": b"".join(rows)}, grid=[1])
    [(kind, data)] = many.transients
    assert kind == "uniform" and many.constants == b"" and many.slots[1].size == 32
    assert [data[i].tobytes()[:32] for i in range(3)] == rows
    assert many.slots[1].offset.tolist() == [0, 256, 512]
    rest = many.cut(1)[1]
    assert rest.slots[1].offset.tolist() == [0, 256] and rest.transients[0][1].tobytes()[256 : 256 + 32] == rows[2]
    shared = check(plan, count=3, args=[4], scalars={"n": 1, "on": True, "v": [1, 2, 3], "s": 0}, grid=[1])
    assert shared.slots[1].offset == 0 and shared.transients == (("uniform", ROW.pack(1, 1, 1, 2, 3, 0)),)
