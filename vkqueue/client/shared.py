"""Memory that this process has in common with the daemon."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.client.array import Array, BaseDeviceArray
from vkqueue.client.outbox import Descriptor
from vkqueue.mapping import map_shared

Memory: TypeAlias = npt.NDArray[np.uint8]


def new_memory(shape: tuple[int, ...], dtype: np.dtype[Any], data: Array | None) -> tuple[Memory, Descriptor]:
    """Memory for an array, of at least one byte, with its data or zero; and the file that it is, to be passed on. It is
    there until both are gone, here and wherever the file went; nothing of it has a name.

    Raises:
        OSError: too many files are open, or there is no memory.
    """
    file = Descriptor(os.memfd_create("vkqueue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    size = max(math.prod(shape) * dtype.itemsize, 1)
    length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    os.ftruncate(file.number, length)
    # Nobody can take pages away that another has mapped.
    fcntl.fcntl(file.number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    memory = np.frombuffer(map_shared(file.number, length), np.uint8)[:size]
    if data is not None:
        memory[: data.nbytes] = data.reshape(-1).view(np.uint8)
    return memory, file


def part(memory: Memory, array: BaseDeviceArray) -> Array:
    """An array's part of memory that is shared, in its form. It keeps the memory."""
    piece: Array = memory[array.offset : array.offset + array.nbytes].view(array.dtype).reshape(array.shape)
    return piece


def as_array(contents: Array, dtype: npt.DTypeLike | None, copy: bool | None) -> Array:
    """`__array__` of memory that can be had without a copy.

    Raises:
        ValueError: only a copy has this dtype, and none is wanted.
    """
    wanted: np.dtype[Any] = contents.dtype if dtype is None else np.dtype(dtype)
    if copy is False and wanted != contents.dtype:
        raise ValueError(f"an array of {contents.dtype} becomes one of {wanted} only as a copy")
    return contents.astype(wanted, copy=bool(copy))
