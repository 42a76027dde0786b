"""The kernels that random programs launch, and what each does, in NumPy.

Every binding is seen as words: its bytes from the start, without a rest of less than four.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Scalars = Sequence[int]

Place = tuple[int, int, int]
"""Of a buffer: (handle, offset, size)."""

_TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel.

    Attributes:
        bindings: what it does to each, in order: "r", "w" or "rw"; "u" reads a uniform block.
        array: the last so many bindings are one array of descriptors.
        scalars: how many words are pushed; `counts`: whether the first of them bounds the invocations.
        in_place: whether what it reads and what it writes may be the same memory.
        run: (words of each binding, scalars, number of invocations) to its effect.
    """

    name: str
    bindings: tuple[str, ...]
    run: Callable[[list[Words], Scalars, int], None]
    scalars: int = 0
    counts: bool = False
    in_place: bool = True
    array: int = 0

    @property
    def spirv(self) -> bytes:
        """The module."""
        paths = [_TESTS / folder / "kernels" / f"{self.name}.spv" for folder in ("gpu", "e2e")]
        return next(path for path in paths if path.exists()).read_bytes()


def _mix(views: list[Words], scalars: Scalars, invocations: int) -> None:
    x, y = views
    n = min(scalars[0], invocations)
    y[:n] = np.uint32(31) * y[:n] + x[:n] + np.uint32(scalars[1])


def _scale(views: list[Words], scalars: Scalars, invocations: int) -> None:
    source, target = views
    n = min(len(target), invocations)
    target[:n] = source[:n] * np.uint32(scalars[0])


def _add(views: list[Words], scalars: Scalars, invocations: int) -> None:
    a, b, c = views
    n = min(len(c), invocations)
    c[:n] = a[:n] + b[:n]


def _increment(views: list[Words], scalars: Scalars, invocations: int) -> None:
    views[0][:invocations] += np.uint32(1)


def _shift(views: list[Words], scalars: Scalars, invocations: int) -> None:
    views[0][:invocations] += np.uint32(scalars[0])


def _add_uniform(views: list[Words], scalars: Scalars, invocations: int) -> None:
    y, block = views
    n = min(int(block[1]), invocations)
    y[:n] = y[:n] * np.uint32(10) + block[0]


def _sets(views: list[Words], scalars: Scalars, invocations: int) -> None:
    source, block, sums, products = views
    n = min(len(source), invocations)
    sums[:n], products[:n] = source[:n] + block[0], source[:n] * block[0]


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("mix", ("r", "rw"), _mix, scalars=2, counts=True),
        Kernel("scale", ("r", "w"), _scale, scalars=1),
        Kernel("add", ("r", "r", "w"), _add),
        Kernel("increment", ("rw",), _increment),
        Kernel("shift", ("rw",), _shift, scalars=1),
        Kernel("add_uniform", ("rw", "u"), _add_uniform, in_place=False),
        Kernel("sets", ("r", "u", "w", "w"), _sets, in_place=False, array=2),
    )
}
LOCAL = 64
"""Invocations of a work group, of each of them."""

UNIFORM = 16
"""Bytes of a block of which 4 or 8 are used."""


def accesses() -> dict[str, tuple[str, ...]]:
    """What each kernel does to its descriptors, by the SHA-256 of its module; for `watch.Watch`."""
    return {
        hashlib.sha256(kernel.spirv).hexdigest(): tuple(a.replace("u", "r") for a in kernel.bindings)
        for kernel in KERNELS.values()
    }


def words(data: npt.NDArray[np.uint8]) -> Words:
    """Memory as a kernel sees it; writes go through."""
    whole: Any = data[: len(data) // 4 * 4].view(np.uint32)
    return whole


def launch(kernel: Kernel, memory: list[npt.NDArray[np.uint8]], scalars: Scalars, groups: int) -> None:
    """One launch on the memory of its bindings."""
    with np.errstate(over="ignore"):
        kernel.run([words(each) for each in memory], scalars, LOCAL * groups)


def pushed(scalars: Scalars) -> bytes:
    """Scalars as they are pushed."""
    return struct.pack(f"<{len(scalars)}I", *scalars)


def signed(value: int) -> int:
    """A word as an int32."""
    return value - (1 << 32) if value >> 31 else value


def may_be_bound(kernel: Kernel, places: list[Any]) -> bool:
    """Whether what one launch does to these does not hang on the order of its invocations."""
    ranges = [(place, access) for place, access in zip(places, kernel.bindings, strict=True) if len(place) == 3]
    for index, (place, access) in enumerate(ranges):
        for other, access_of_other in ranges[:index]:
            writers = ("w" in access) + ("w" in access_of_other)
            if not writers or not overlap(place, other):
                continue
            if place != other or writers == 2 or not kernel.in_place:
                return False
    return True


def overlap(one: Place, other: Place) -> bool:
    """Whether two places have a byte in common."""
    return one[0] == other[0] and one[1] < other[1] + other[2] and other[1] < one[1] + one[2]
