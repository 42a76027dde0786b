"""Device arrays as far as they need no connection."""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vkqueue.client.array import BaseDeviceArray, Handle, host_array
from vkqueue.errors import InvalidError, QuotaError


def make(shape: tuple[int, ...], dtype: str = "float32") -> tuple[BaseDeviceArray, Any]:
    host = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    handle = Handle("here", 3, host.nbytes, ("buffer.free", "buffer"), deque())
    return BaseDeviceArray(handle, shape, host.dtype), host


KEYS = st.one_of(
    st.integers(-6, 6),
    st.builds(slice, st.none() | st.integers(-6, 6), st.none() | st.integers(-6, 6)),
)


@given(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5), st.lists(KEYS, max_size=3))
def test_views_are_where_numpys_are(shape: tuple[int, ...], keys: list[Any]) -> None:
    device, host = make(shape)
    whole = host
    for key in keys:
        try:
            host = host[key]
        except IndexError:
            with pytest.raises(IndexError):
                device.geometry(key)
            return
        view, offset = device.geometry(key)
        device = BaseDeviceArray(device.handle, view, device.dtype, offset)
        host = np.asarray(host)
        assert view == host.shape
        if host.size:
            start = host.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
            # A row of an array is a NumPy scalar, without an address in it.
            assert offset == start or host.ndim == 0
            assert whole.tobytes()[offset : offset + device.nbytes] == host.tobytes()


@pytest.mark.parametrize("key", [slice(0, 4, 2), "x", (1, 2), None, 1.5])
def test_keys_that_no_view_has(key: Any) -> None:
    with pytest.raises(InvalidError):
        make((8,))[0].geometry(key)


def test_no_axis() -> None:
    array, _ = make(())
    with pytest.raises(IndexError):
        array.geometry(0)
    with pytest.raises(TypeError):
        len(array)
    assert array.size == 1


def test_other_forms_of_the_same_bytes() -> None:
    array, _ = make((4, 6))
    assert array.reshaped((2, -1), None) == ((2, 12), np.dtype("f4"))
    assert array.reshaped(-1, np.uint8) == ((96,), np.dtype("u1"))
    assert array.reshaped(24, None) == ((24,), np.dtype("f4"))
    for shape, dtype in (((5, -1), None), ((5, 5), None), ((-1, -1), None), ((-2, -12), None), (-1, "V7")):
        with pytest.raises(InvalidError, match="cannot be seen as"):
            array.reshaped(shape, dtype)


def test_host_arrays() -> None:
    assert host_array([1, 2], "f4").dtype == np.float32
    assert host_array(np.ones(3, ">i4")).dtype.isnative
    assert host_array(5).shape == ()
    with pytest.raises(InvalidError):
        host_array([object()])


def test_a_handle_is_noted_for_freeing_once_nothing_uses_it() -> None:
    graveyard: deque[Any] = deque()
    handle = Handle("here", 3, 16, ("buffer.free", "buffer"), graveyard)
    base = BaseDeviceArray(handle, (4,), np.dtype("f4"))
    view = BaseDeviceArray(handle, (2,), np.dtype("f4"), 8)
    del base, handle
    gc.collect()
    assert not graveyard
    assert view.wire() == [3, 8, 8]
    view.handle.bury()
    view.handle.bury()
    assert list(graveyard) == [("buffer.free", "buffer", 3)]
    del view
    gc.collect()
    assert len(graveyard) == 1


def test_the_first_failure_counts() -> None:
    handle = make((1,))[0].handle
    handle.failed(QuotaError("first"))
    handle.failed(QuotaError("second"))
    assert not handle.usable
    with pytest.raises(QuotaError, match="first"):
        handle.check("it")
