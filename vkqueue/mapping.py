"""Files mapped to memory that two processes share, without a descriptor that stays open.

Python's own mmap keeps a duplicate of the descriptor for as long as it lives, of which a process has few.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def map_shared(file: int, length: int) -> Any:
    """The first `length` bytes of a file as a ctypes array, to read and to write. Who drops the last reference to it,
    or to a view of it, unmaps it.

    Raises:
        OSError
    """
    address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    pages = (ctypes.c_char * length).from_address(address)
    weakref.finalize(pages, _libc.munmap, address, length).atexit = False
    return pages
