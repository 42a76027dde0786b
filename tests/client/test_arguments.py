"""Values of a call to entries of `args`, and reflections to texts: pure, no connection."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import numpy as np
import pytest
from client.fake_kernels import FORMATS, KERNELS, read_scalars, reflection, scalar, storage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vkqueue.client.arguments import Rules, bind
from vkqueue.client.array import BaseDeviceArray, Handle, from_bytes, out
from vkqueue.client.scalars import ScalarPacker
from vkqueue.client.signature import Binding, Signature
from vkqueue.errors import InvalidError

RULES = Rules("here", storage_alignment=16, uniform_alignment=64)


def signature(name: str) -> Signature:
    return Signature.from_wire(name, KERNELS[name][0])


def entry(binding: Binding, value: Any, **options: Any) -> Any:
    [wire] = bind([binding], [value], RULES, **options).args
    return wire


def buffer(**fields: Any) -> Binding:
    return Binding(0, 0, **{"stride": 4, "name": "x", **fields})


def device_array(nbytes: int, dtype: str = "float32", owner: object = "here", offset: int = 0) -> BaseDeviceArray:
    kind = np.dtype(dtype)
    handle = Handle(owner, 7, 4096, ("buffer.free", "buffer"), deque())
    return BaseDeviceArray(handle, (nbytes // kind.itemsize,), kind, offset)


SPARSE = hnp.arrays(
    dtype=st.sampled_from([np.float32, ">f4", np.int16, np.uint8, np.bool_, np.float16, "<i4"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(SPARSE, st.booleans(), st.integers(1, 2))
def test_any_array_travels_as_its_values(array: Any, flip: bool, step: int) -> None:
    if flip:
        array = array.T
    if array.ndim:
        array = array[::step]
    wire = entry(buffer(access="read_write"), array)
    native = array.astype(array.dtype.newbyteorder("="))
    assert bytes(wire["inout"]) == native.tobytes()
    output = bind([buffer(access="read_write")], [array], RULES).hosts[0].output
    assert output is not None
    back = output.collect(bytes(wire["inout"]))
    assert back.flags.writeable
    assert (back.shape, back.dtype.isnative) == (array.shape, True)
    assert back.tobytes() == native.tobytes()


def test_an_array_that_fits_is_not_copied() -> None:
    array = np.arange(8, dtype=np.float32)
    wire = entry(buffer(access="read"), array)
    array[0] = 5
    assert struct.unpack_from("f", wire["in"]) == (5.0,)
    data = bytearray(array.tobytes())
    assert np.shares_memory(from_bytes(data, (8,), np.dtype("f4")), np.frombuffer(data, "u1"))


def test_device_arrays_go_by_their_handles() -> None:
    assert entry(buffer(), device_array(4096)) == 7
    assert entry(buffer(), device_array(64)) == [7, 0, 64]
    assert entry(buffer(), device_array(64, offset=32)) == [7, 32, 64]


class ArrayLike:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(2, np.float32)


def test_other_forms() -> None:
    assert bytes(entry(buffer(access="read"), ArrayLike())["in"]) == np.ones(2, "f4").tobytes()
    assert entry(buffer(access="none"), b"1234")["in"] == b"1234"
    assert entry(buffer(access="write"), np.int64(12)) == {"out": 12}
    assert entry(buffer(access="read_write"), out((2, 3), "f4")) == {"out": 24}
    assert entry(buffer(access="write"), np.ones(3, np.float32)) == {"out": 12}
    assert bytes(entry(buffer(access="write"), np.ones(1, "f4"), inplace=True)["inout"]) == np.ones(1, "f4").tobytes()
    assert repr(out(3, "f4")) == "vkqueue.out((3,), 'float32')"


def read_only() -> Any:
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("binding", "value", "text"),
    [
        (buffer(), np.ones(4), "have 4 bytes, those of a float64 array 8 .*use .astype.*view"),
        (buffer(), device_array(64, "float64"), "float64"),
        (buffer(stride=12), np.ones(3, np.int64), "12 bytes"),
        (buffer(size=16), np.ones(3, np.float32), "12 bytes are too few, .* at least 16"),
        (buffer(size=16), 8, "8 bytes are too few"),
        (buffer(size=16), device_array(12), "12 bytes are too few"),
        (buffer(), [1, 2, 3], "got .*numpy.array"),
        (buffer(), None, "got None"),
        (buffer(), True, "got True"),
        (buffer(), "text", "got 'text'"),
        (buffer(), np.array([{}]), "no fixed size"),
        (buffer(access="write"), -1, "got -1"),
        (buffer(access="read"), 16, "does not write it .read."),
        (buffer(access="none"), out(4, "f4"), "does not write it"),
        (buffer(), {"a": 1}, "a dict is for uniform"),
        (buffer(), device_array(64, owner="there"), "of another connection"),
        (buffer(), device_array(64, offset=4), "byte 4 .* multiples of 16 .minStorageBufferOffsetAlignment"),
        (buffer(kind="uniform"), device_array(64, offset=16), "multiples of 64 .minUniformBufferOffsetAlignment"),
        (buffer(count=3), [1, 2], "list of 3 arguments, got 2"),
        (buffer(count=3), np.ones(3), "list of 3 arguments, got a float64 array"),
        (signature("affine").bindings[0], {"scale": 1}, "'bounds' is missing"),
        (signature("affine").bindings[0], {"scal": 1}, "no member 'scal'.*Did you mean 'scale'"),
        (Binding(0, 3), np.ones(4, object), "no fixed size"),
        (Binding(1, 3, stride=2), np.ones(4, np.float32), "the argument of set 1, binding 3"),
    ],
)
def test_what_does_not_fit(binding: Binding, value: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        entry(binding, value)


@pytest.mark.parametrize("value", [read_only(), b"1234", ArrayLike()])
def test_inplace_needs_a_place(value: Any) -> None:
    with pytest.raises(InvalidError, match="inplace=True needs a writable NumPy array"):
        entry(buffer(), value, inplace=True)


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        (-1, "f4", "negative"),
        ("ab", "f4", "shape"),
        (1.5, "f4", "shape: expected"),
        (1, None, "dtype: expected one"),
        (1, "nope", "dtype"),
        (1, object, "no fixed size"),
        (1, "V0", "no fixed size"),
    ],
)
def test_wrong_forms_of_results(shape: Any, dtype: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        out(shape, dtype)


# Scalars.

TYPES = st.sampled_from(list(FORMATS))


def value_of(type_: str) -> st.SearchStrategy[Any]:
    if type_ == "bool32":
        return st.sampled_from([True, False, 0, 1, np.bool_(True)])
    if type_.startswith("float"):
        width = int(type_[5:])
        return st.floats(width=width, allow_nan=False)  # type: ignore[arg-type]
    bits = int(type_.lstrip("uint"))
    low, high = (0, 2**bits - 1) if type_[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(low, high)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Members in any order with gaps between them, and values for them."""
    members, values, at = [], [], draw(st.integers(0, 8))
    for index, type_ in enumerate(draw(st.lists(TYPES, max_size=5))):
        size = struct.calcsize(FORMATS[type_])
        at = -(-at // size) * size
        count = draw(st.sampled_from([None, None, 1, 3]))
        stride = size * draw(st.integers(1, 2))
        more = {} if count is None else {"count": count, "stride": stride}
        members.append(scalar(f"s{index}", type_, at, **more))
        one = value_of(type_)
        values.append(draw(one if count is None else st.lists(one, min_size=count, max_size=count)))
        at += (stride * (count or 1)) + draw(st.integers(0, 3))
    order = draw(st.permutations(range(len(members))))
    return [members[i] for i in order], [values[i] for i in order]


@given(blocks())
def test_scalars_travel_as_the_block(block: tuple[list[Any], list[Any]]) -> None:
    members, values = block
    kernel = Signature.from_wire("k", reflection([], members))
    packer = ScalarPacker(kernel)
    named = dict(zip(packer.names, values, strict=True))
    packed = packer.from_names(named)
    assert isinstance(packed, bytes)
    assert len(packed) == kernel.push_constant_bytes
    assert read_scalars(members, packed) == named
    assert packer.from_values(values) == packed
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    assert packer.from_values(flat) == packed
    assert packer.from_values(packed) == packed
    if packer.pack_named is not None:
        assert packer.pack_named(named) == packed


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs the scalar big: int64"),
        ({"big": 1.5}, "'big' is int64|big is int64: expected an integer, got 1.5"),
        ({"big": 2**63}, "outside -9223372036854775808"),
        ({"small": -1}, "small is uint8: -1 is outside 0 to 255"),
        ({"small": 1 << 20_000}, "small is uint8: an integer of 20001 bits is outside 0 to 255"),
        ({"on": 2}, "bool32: expected True"),
        ({"on": 1.0}, "bool32"),
        ({"h": "1"}, "float16: expected a number, got '1'"),
        ({"h": 1e6}, "1000000.0 overflows float16"),
        ({"h": 1 << 20_000}, "an integer of 20001 bits overflows float16"),
        ({"v": [1, 2]}, r"v: int32\[3\]: expected 3 values"),
        ({"v": [1, 2, None]}, r"v\[2\] is int32: expected an integer, got None"),
        ({"v": "abc"}, "expected 3 values"),
        ({"u": 1}, "no scalar 'u'; its scalars are"),
        ({"bigg": 1}, "Did you mean 'big'"),
    ],
)
def test_scalars_that_do_not_fit(given: dict[str, Any], text: str) -> None:
    packer = ScalarPacker(signature("mixed"))
    good = {"big": 1, "on": True, "v": [1, 2, 3], "h": 1.0, "small": 1} if given else {}
    with pytest.raises(InvalidError, match=text):
        packer.from_names(good | given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1, 2], r"takes 7 values \(.*\), got 2"),
        ("abc", "expected a dict by name, a list or bytes"),
        (5, "expected a dict"),
    ],
)
def test_lists_of_scalars_that_do_not_fit(given: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        ScalarPacker(signature("mixed")).from_values(given)


def test_a_type_of_a_newer_daemon_is_its_business() -> None:
    wire = reflection([], [])
    wire["scalars"] = [{"name": "n", "type": "bfloat16", "offset": 0, "size": 2}]
    assert ScalarPacker(Signature.from_wire("k", wire)).from_names({"n": 1.5}) == [1.5]


# Texts.


def test_a_signature_tells_how_to_call_it() -> None:
    text = signature("affine").describe()
    assert text.splitlines()[0] == "affine(params, y, grid=(x, y, z) | elements=(x, y, z))"
    assert "params: read uniform, at least 12 B" in text
    assert "not on this device" in signature("refused").describe()
    assert "list of 4" in signature("pick").describe()
    assert "specialization block: uint32 = 64" in signature("sized").describe()
    scalars = [scalar("a.b", "uint8", 0), scalar("k", "uint8", 1)]
    wire = reflection([storage(1, "write"), storage(2, "read", "in")], scalars)
    unnamed = Signature.from_wire("k", wire)
    assert unnamed.call() == "k(b0_1, in, a.b=uint8, k=uint8, grid=(x, y, z) | elements=(x, y, z))"
    assert list(unnamed.python_signature().parameters)[:4] == ["b0_1", "b0_2", "k", "grid"]
