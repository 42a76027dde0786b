"""Scalars: push constants in every form and type, to the bit and to the edge; specialization constants."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from support.e2e import create, device, kernel, limit, load, refused
from support.rawclient import RawClient

pytestmark = pytest.mark.gpu

LAYOUT = struct.Struct("<bBhH2xiIqQe2xfd3f3i")
NAMES = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "v", "a")
ZERO: dict[str, Any] = dict.fromkeys(NAMES[:11], 0) | {"v": [0, 0, 0], "a": [0, 0, 0]}
INTEGERS = {
    "i8": (-(2**7), 2**7 - 1),
    "u8": (0, 2**8 - 1),
    "i16": (-(2**15), 2**15 - 1),
    "u16": (0, 2**16 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
}
LARGEST = {"f16": 65504.0, "f32": float(np.finfo(np.float32).max), "f64": float(np.finfo(np.float64).max)}


@pytest.fixture
def echo(any_client: RawClient) -> Any:
    """Launches the kernel that writes its push constants; what it saw, in the order of their members."""
    features = device(any_client)["features"]
    for need in ("storagePushConstant8", "storagePushConstant16", "shaderFloat64", "shaderInt64"):
        if not features.get(need):
            pytest.skip(f"the device lacks {need}")
    module = load(any_client, "scalars")

    def launch(scalars: Any) -> tuple[Any, ...]:
        answer = any_client.call("dispatch", module=module, args=[{"out": 72}], scalars=scalars, grid=[1])
        return LAYOUT.unpack(answer["outputs"][0])

    launch.refused = lambda scalars: refused(  # type: ignore[attr-defined]
        any_client, "dispatch", module=module, args=[{"out": 72}], scalars=scalars, grid=[1]
    )
    return launch


def flat(**values: Any) -> list[Any]:
    """The list form."""
    given = {**ZERO, **values}
    return [given[name] for name in NAMES[:11]] + list(given["v"]) + list(given["a"])


def test_reflection_says_where_each_lies(any_client: RawClient) -> None:
    spirv = kernel("scalars")
    loaded = any_client.call("module.load", spirv=spirv)["kernels"]["main"]
    assert loaded["push_constant_bytes"] == 72
    assert [s["name"] for s in loaded["scalars"]] == list(NAMES)
    assert [s["offset"] for s in loaded["scalars"]] == [0, 1, 2, 4, 8, 12, 16, 24, 32, 36, 40, 48, 60]
    assert [s["type"] for s in loaded["scalars"]] == [
        "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
        "float32", "int32",
    ]  # fmt: skip
    assert [s.get("count") for s in loaded["scalars"]] == [None] * 11 + [3, 3]
    assert {s["where"] for s in loaded["scalars"]} == {"push"}


@pytest.mark.parametrize("form", ["list", "map", "bin"])
def test_all_forms_mean_the_same(echo: Any, form: str) -> None:
    values = {
        "i8": -1, "u8": 200, "i16": -300, "u16": 60000, "i32": -70000, "u32": 4_000_000_000, "i64": -(2**40),
        "u64": 2**63 + 1, "f16": 0.5, "f32": 1.5, "f64": math.pi, "v": [1.0, -2.0, 3.0], "a": [7, -8, 9],
    }  # fmt: skip
    scalars = {"list": flat(**values), "map": values, "bin": LAYOUT.pack(*flat(**values))}[form]
    assert list(echo(scalars)) == flat(**values)


def test_a_map_may_come_in_any_order(echo: Any) -> None:
    values = {**ZERO, "i32": 5}
    assert echo(dict(reversed(values.items()))) == tuple(flat(i32=5))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_to_the_edge_of_their_range(echo: Any, name: str) -> None:
    low, high = INTEGERS[name]
    for value in (low, high, 0, high // 3):
        assert echo(flat(**{name: value}))[NAMES.index(name)] == value
        assert echo({**ZERO, name: value})[NAMES.index(name)] == value
    for value in (low - 1, high + 1):
        if -(2**63) <= value < 2**64:
            error = echo.refused(flat(**{name: value}))
            assert error.code == "invalid"
            assert name in error.message
            assert echo.refused({**ZERO, name: value}).code == "invalid"


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1.0, 0.5, True, False, "1", None, b"1", [1], math.nan], ids=repr)
def test_an_integer_takes_nothing_but_integers(echo: Any, name: str, value: Any) -> None:
    assert echo.refused(flat(**{name: value})).code == "invalid"
    assert echo.refused({**ZERO, name: value}).code == "invalid"


@pytest.mark.parametrize("name", LARGEST)
def test_floats_take_numbers_nan_and_infinities(echo: Any, name: str) -> None:
    place = NAMES.index(name)
    most = LARGEST[name]
    for value in (0.0, -0.0, 1.0, -1.5, most, -most, math.inf, -math.inf, 7, -7, 0):
        seen = echo(flat(**{name: value}))[place]
        assert seen == value
        assert math.copysign(1, seen) == math.copysign(1, value)
    assert math.isnan(echo(flat(**{name: math.nan}))[place])
    assert math.isnan(echo({**ZERO, name: math.nan})[place])


@pytest.mark.parametrize(("name", "value"), [("f16", 65520.0), ("f16", 1e6), ("f32", 3.5e38), ("f32", -1e300)])
def test_a_finite_number_that_overflows_is_invalid(echo: Any, name: str, value: float) -> None:
    error = echo.refused(flat(**{name: value}))
    assert error.code == "invalid"
    assert name in error.message
    assert echo.refused({**ZERO, name: value}).code == "invalid"


def test_large_integers_as_floats(echo: Any) -> None:
    assert echo(flat(f64=2**64 - 1))[10] == float(2**64 - 1)
    assert echo(flat(f32=2**64 - 1))[9] == np.float32(2**64 - 1)
    assert echo(flat(f16=65504))[8] == 65504.0
    assert echo.refused(flat(f16=2**17)).code == "invalid"


def test_numbers_are_rounded_to_the_nearest_of_the_type(echo: Any) -> None:
    assert echo(flat(f32=0.1))[9] == float(np.float32(0.1))
    assert echo(flat(f16=0.1))[8] == float(np.float16(0.1))
    assert echo(flat(f32=1e-50))[9] == 0.0


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("value", [True, False, "1", None, b"1", [1.0]], ids=repr)
def test_a_float_takes_nothing_but_numbers(echo: Any, name: str, value: Any) -> None:
    assert echo.refused(flat(**{name: value})).code == "invalid"


@pytest.mark.parametrize("place", [0, 5, 11, 16])
def test_a_wrong_value_after_many_right_ones_of_the_same_types(echo: Any, place: int) -> None:
    """The combination of types is known to be good by then; the value is still looked at."""
    good = flat()
    for _ in range(3):
        echo(good)
    bad = list(good)
    bad[place] = 2**64 - 1 if place != 11 else 1e300
    assert echo.refused(bad).code == "invalid"
    bad[place] = True
    assert echo.refused(bad).code == "invalid"
    assert echo(good) == tuple(good)


@pytest.mark.parametrize(
    "scalars",
    [
        None, [], flat()[:-1], [*flat(), 0], {}, {**ZERO, "other": 1}, {k: v for k, v in ZERO.items() if k != "i8"},
        {**ZERO, "v": [1, 2]}, {**ZERO, "v": [1, 2, 3, 4]}, {**ZERO, "v": 1.0}, {**ZERO, "a": [1, 2, 3.5]},
        bytes(71), bytes(73), bytes(76), b"", [flat()],
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_every_member_must_be_given_and_no_other(echo: Any, scalars: Any) -> None:
    assert echo.refused(scalars).code == "invalid"


@pytest.mark.parametrize("scalars", [5, "abc", True, 1.5], ids=repr)
def test_scalars_are_a_list_a_map_or_a_bin(echo: Any, scalars: Any) -> None:
    assert echo.refused(scalars).code == "invalid"


def test_rule_14_a_bin_has_exactly_the_bytes_of_the_block(any_client: RawClient) -> None:
    """The error has both numbers."""
    module = load(any_client, "mix")
    x = create(any_client, 256)
    for size in (0, 4, 7, 9, 12):
        error = refused(any_client, "dispatch", module=module, args=[x, x], scalars=bytes(size), grid=[1])
        assert error.code == "invalid"
        assert error.data == {"expected": 8, "got": size}


def test_a_kernel_without_scalars_takes_none_or_empty_ones(any_client: RawClient) -> None:
    module = load(any_client, "measure")
    params: dict[str, Any] = {"module": module, "args": [{"in": b""}, {"out": 4}], "grid": [1]}
    for empty in ({}, {"scalars": []}, {"scalars": {}}, {"scalars": b""}, {"scalars": None}):
        assert any_client.call("dispatch", **params, **empty)["outputs"]
    for wrong in ([1], {"n": 1}, b"1234"):
        assert refused(any_client, "dispatch", **params, scalars=wrong).code == "invalid"


# Specialization

CONSTANTS = struct.Struct("<iIfI q d I 4x")
DEFAULTS = (-5, 5, 0.5, 0, -5, 0.25, 1)


def constants(client: RawClient, specialization: dict[str, Any] | None) -> tuple[Any, ...]:
    module = load(client, "constants")
    params = {} if specialization is None else {"specialization": specialization}
    answer = client.call("dispatch", module=module, args=[{"out": CONSTANTS.size}], grid=[1], **params)
    return CONSTANTS.unpack(answer["outputs"][0])


def test_constants_have_their_defaults(client: RawClient) -> None:
    assert constants(client, None) == constants(client, {}) == DEFAULTS
    reflected = client.call("module.load", spirv=kernel("constants"))["kernels"]["main"]["specialization"]
    assert [(c["id"], c["name"], c["type"], c["default"]) for c in reflected] == [
        (0, "whole", "int32", -5),
        (1, "natural", "uint32", 5),
        (2, "real", "float32", 0.5),
        (3, "flag", "bool32", False),
        (4, "large", "int64", -5),
        (5, "fine", "float64", 0.25),
        (9, reflected[-1]["name"], "uint32", 1),
    ]


@pytest.mark.parametrize("by", ["id", "name"])
def test_S5_constants_by_id_and_by_name(client: RawClient, by: str) -> None:
    values = {"whole": -(2**31), "natural": 2**32 - 1, "real": 1.5, "flag": True, "large": 2**63 - 1, "fine": -0.5}
    if by == "id":
        values = {str(place): value for place, value in enumerate(values.values())}
    values["9"] = 4
    assert constants(client, values) == (-(2**31), 2**32 - 1, 1.5, 1, 2**63 - 1, -0.5, 4)
    assert constants(client, {"2": 7, "fine": 8}) == (-5, 5, 7.0, 0, -5, 8.0, 1)


@pytest.mark.parametrize("value", [True, 1])
def test_bool32_takes_booleans_0_and_1(any_client: RawClient, value: Any) -> None:
    assert constants(any_client, {"flag": value})[3] == 1
    assert constants(any_client, {"flag": type(value)(0)})[3] == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flag", 2), ("flag", -1), ("flag", 1.0), ("flag", 0.0),
        ("whole", 2**31), ("whole", -(2**31) - 1), ("whole", 1.0), ("whole", True),
        ("natural", -1), ("natural", 2**32), ("large", 2**63), ("real", 1e300), ("real", True), ("fine", False),
        ("whole", "1"), ("whole", None), ("whole", [1]),
        ("nobody", 1), ("7", 1), ("", 1), ("-1", 1), ("0x0", 1), (" 0", 1), ("²", 1), ("٣", 1), ("1" * 5000, 1),
        ("0.0", 1), ("Whole", 1),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_wrong_constant_is_invalid(any_client: RawClient, key: str, value: Any) -> None:
    module = load(any_client, "constants")
    error = refused(
        any_client, "dispatch", module=module, args=[{"out": 40}], grid=[1], specialization={key: value}
    )
    assert error.code == "invalid"
    assert "specialization" in error.message


def test_a_constant_is_given_once(any_client: RawClient) -> None:
    module = load(any_client, "constants")
    error = refused(
        any_client, "dispatch", module=module, args=[{"out": 40}], grid=[1], specialization={"0": 1, "whole": 1}
    )
    assert error.code == "invalid"


def test_nan_and_infinities_as_constants(any_client: RawClient) -> None:
    real, fine = (constants(any_client, {"real": math.inf, "fine": -math.inf})[place] for place in (2, 5))
    assert (real, fine) == (math.inf, -math.inf)
    assert math.isnan(constants(any_client, {"real": math.nan})[2])


def test_a_specialized_work_group_over_the_limit_is_refused_with_both_numbers(any_client: RawClient) -> None:
    most = limit(any_client, "maxComputeWorkGroupInvocations")
    module = load(any_client, "constants")
    error = refused(
        any_client, "dispatch", module=module, args=[{"out": 40}], grid=[1], specialization={"9": 2**20}
    )
    assert error.code in ("invalid", "unsupported")
    assert str(2**20) in error.message.replace(",", "")
    assert str(most) in error.message or "maxComputeWorkGroupSize" in error.message


# Grids


@pytest.mark.parametrize("grid", [[3], [3, 2], [1, 1, 5], [2, 3, 4]])
def test_grids_of_one_to_three_dimensions(client: RawClient, grid: list[int]) -> None:
    module = load(client, "fill")
    answer = client.call("dispatch", module=module, args=[{"out": 64 * 4 * grid[0]}], scalars=[1], grid=grid)
    assert (np.frombuffer(answer["outputs"][0], np.uint32) == np.arange(1, 1 + 64 * grid[0])).all()


@pytest.mark.parametrize("grid", [[0], [0, 5], [5, 0], [5, 5, 0], [0, 0, 0]])
def test_a_0_means_no_work(client: RawClient, grid: list[int]) -> None:
    module = load(client, "fill")
    y = create(client, b"\xee" * 256)
    assert client.call("dispatch", module=module, args=[y], scalars=[1], grid=grid) == {"outputs": []}
    assert client.call("buffer.read", buffer=y)["data"] == b"\xee" * 256


def test_S4_a_grid_over_the_devices_limit_is_invalid_with_both_numbers(any_client: RawClient) -> None:
    most = device(any_client)["limits"]["maxComputeWorkGroupCount"]
    module = load(any_client, "fill")
    for axis in range(3):
        grid = [0, 0, 0]
        grid[axis] = most[axis]
        assert any_client.call("dispatch", module=module, args=[{"out": 4}], scalars=[1], grid=grid)
        if most[axis] < 2**32 - 1:
            grid[axis] += 1
            error = refused(any_client, "dispatch", module=module, args=[{"out": 4}], scalars=[1], grid=grid)
            assert error.code == "invalid"
            assert error.data == {"value": most[axis] + 1, "limit": most[axis]}
            assert f"maxComputeWorkGroupCount[{axis}]" in error.message


@pytest.mark.parametrize(
    "grid", [None, [], [1, 1, 1, 1], [-1], [1.0], ["1"], [True], [None], [2**32], [2**64 - 1], 1, "1", {}, b"\x01"],
    ids=repr,
)  # fmt: skip
def test_a_grid_is_one_to_three_whole_numbers(any_client: RawClient, grid: Any) -> None:
    module = load(any_client, "fill")
    for _ in range(2):
        error = refused(any_client, "dispatch", module=module, args=[{"out": 4}], scalars=[1], grid=grid)
        assert error.code == "invalid"
    y = create(any_client, 256)
    params = {"module": module, "args": [y], "scalars": [1]}
    any_client.call("dispatch", **params, grid=[1])
    assert refused(any_client, "dispatch", **params, grid=grid).code == "invalid"  # also on the short way


def test_launch_is_for_kernels_of_tvm(any_client: RawClient) -> None:
    module = load(any_client, "fill")
    params = {"module": module, "args": [{"out": 4}], "scalars": [1]}
    assert refused(any_client, "dispatch", **params, launch=[1]).code == "invalid"
    assert refused(any_client, "dispatch", **params, launch=[1], grid=[1]).code == "invalid"
    assert refused(any_client, "dispatch", **params).code == "invalid"
