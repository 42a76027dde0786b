"""Copies between host data and mapped memory, over plain host memory."""

from __future__ import annotations

import ctypes

import pytest

from vkqueue.gpu.mapped import LARGE, Mapping

SIZE = 3 * LARGE


@pytest.fixture
def backing() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(b"\xaa" * SIZE, SIZE)


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE - 1, LARGE, 2 * LARGE + 3])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_written_is_read_and_nothing_beside_it(
    backing: ctypes.Array[ctypes.c_char], size: int, kind: type
) -> None:
    mapping = Mapping(ctypes.addressof(backing), SIZE)
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    mapping.write(17, kind(data))
    assert mapping.read(17, size) == data
    assert backing.raw[:17] == b"\xaa" * 17 and backing.raw[17 + size : 18 + size] == b"\xaa"
    mapping.zero(17, size)
    assert backing.raw[17 : 17 + size] == bytes(size)
    assert backing.raw[:17] == b"\xaa" * 17 and backing.raw[17 + size : 18 + size] == b"\xaa"


def test_a_large_copy_past_the_end_raises(backing: ctypes.Array[ctypes.c_char]) -> None:
    mapping = Mapping(ctypes.addressof(backing), SIZE)
    for call in (lambda: mapping.write(SIZE - LARGE + 1, bytes(LARGE)), lambda: mapping.read(SIZE, LARGE),
                 lambda: mapping.zero(SIZE - 1, LARGE)):  # fmt: skip
        with pytest.raises(IndexError):
            call()


def test_memory_that_is_not_coherent_is_flushed_once_and_invalidated_before_reads(
    backing: ctypes.Array[ctypes.c_char],
) -> None:
    log: list[object] = []

    class Cache:
        def flush(self, ranges: list[tuple[int, int]]) -> None:
            log.append(("flush", *ranges))

        def invalidate(self, start: int, end: int) -> None:
            log.append(("invalidate", start, end))

    mapping = Mapping(ctypes.addressof(backing), SIZE, Cache())
    mapping.write(10, b"abc")
    mapping.zero(64, 8)
    mapping.flush()
    mapping.flush()
    assert mapping.read(10, 3) == b"abc"
    assert log == [("flush", (10, 13), (64, 72)), ("invalidate", 10, 13)]
