"""Memory to share, as any client would make it: a sealed memfd, and a mapping of it."""

from __future__ import annotations

import fcntl
import mmap
import os

SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
F_SEAL_FUTURE_WRITE = 0x10  # from linux/fcntl.h


class SharedMemory:
    """A memfd of whole pages; `view` is its mapping. Closed at the end of a `with`."""

    def __init__(self, size: int, seals: int = SEALED, length: int | None = None) -> None:
        self.size = size
        self.file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE if length is None else length
        os.ftruncate(self.file, length)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, seals)
        writable = not seals & (fcntl.F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)
        self._map = mmap.mmap(self.file, length) if length and writable else None
        self.view = memoryview(self._map if self._map is not None else b"")

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.view.release()
        if self._map is not None:
            self._map.close()
        os.close(self.file)
