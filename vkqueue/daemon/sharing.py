"""Memory that a client shares: a memfd that came over the socket, checked and mapped.

Nothing has a name: the file is the client's to make, and comes as a descriptor (SCM_RIGHTS). It must be sealed against
shrinking and growing, since pages that vanish under a mapping would kill the daemon, and must not be sealed against
writing, since kernels write.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from vkqueue.errors import InvalidError

_REQUIRED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_FORBIDDEN = fcntl.F_SEAL_WRITE | getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)


def shared_pages(file: int, size: int) -> mmap.mmap:
    """Map a client's file, whole, for a buffer of `size` bytes.

    Raises:
        InvalidError: it is no memfd, is not sealed as it must be, is too small, or does not end with a page.
    """
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        raise InvalidError("buffer.share: the descriptor is no memfd (memfd_create with MFD_ALLOW_SEALING)") from None
    if seals & _REQUIRED != _REQUIRED or seals & _FORBIDDEN:
        raise InvalidError(
            "buffer.share: the memfd must be sealed with F_SEAL_SHRINK and F_SEAL_GROW, and not against writing; its "
            f"seals are {seals:#x}",
            {"seals": seals},
        )
    length = os.fstat(file).st_size
    if not size:
        raise InvalidError("size: shared memory has at least one byte")
    if length < size or length % mmap.PAGESIZE:
        raise InvalidError(
            f"buffer.share: the memfd has {length} bytes; it must have at least {size}, in whole pages of "
            f"{mmap.PAGESIZE}",
            {"file_size": length, "size": size, "page_size": mmap.PAGESIZE},
        )
    try:
        return mmap.mmap(file, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise InvalidError(f"buffer.share: the memfd cannot be mapped: {error}") from error
