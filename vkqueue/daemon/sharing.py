"""Memory that a client shares: a memfd that came over the socket, checked and mapped.

Nothing has a name: the file is the client's to make, and comes as a descriptor (SCM_RIGHTS). It must be sealed against
shrinking and growing, since pages that vanish under a mapping would kill the daemon, and must not be sealed against
writing, since kernels write.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from typing import TYPE_CHECKING

from vkqueue.errors import InvalidError, OutOfDeviceMemoryError, QuotaError, VkqueueError
from vkqueue.mapping import map_shared
from vkqueue.model import Shared

if TYPE_CHECKING:
    from vkqueue.daemon.session import Session

_MOST_ALIGNMENT = 64 * 1024
"""No device is known that imports host memory in coarser pieces."""

_MOST_MAPPINGS = 16_384
"""A quarter of what a process may have by Linux' default (vm.max_map_count)."""

_live: weakref.WeakSet[Shared] = weakref.WeakSet()

_REQUIRED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_FORBIDDEN = fcntl.F_SEAL_WRITE | getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)


def receive_share(session: Session, msgid: int, size: object, most: int) -> None:
    """On receipt of a request, whenever its turn comes: map its file, so that the descriptor need not be kept. The
    memory, or what is wrong with the file, is in `session.shares` then, if one came.

    Args:
        size: as it came; the check of the parameters says if it is none.
        most: mappings of one connection.
    """
    file = session.conn.files_of.pop(msgid, None)
    if file is None:
        return
    try:
        if len(session.shared) >= most:
            raise QuotaError(
                f"max_shared_buffers: this connection shares {len(session.shared)} buffers, its limit; free some and "
                "wait for their last use",
                {"quota": "max_shared_buffers", "limit": most},
            )
        if type(size) is int:
            session.shares[msgid] = shared = shared_memory(file, size)
            session.shared.add(shared)
    except VkqueueError as error:
        session.shares[msgid] = error
    finally:
        os.close(file)


def shared_memory(file: int, size: int) -> Shared:
    """Map as much of a client's file as a buffer of `size` bytes takes.

    Raises:
        OutOfDeviceMemoryError: too many are mapped.
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
    if size < 1:
        raise InvalidError("size: shared memory has at least one byte")
    if length < size or length % mmap.PAGESIZE:
        raise InvalidError(
            f"buffer.share: the memfd has {length} bytes; it must have at least {size}, in whole pages of "
            f"{mmap.PAGESIZE}",
            {"file_size": length, "size": size, "page_size": mmap.PAGESIZE},
        )
    if os.fstatvfs(file).f_bsize != mmap.PAGESIZE:
        # A hole punched into huge pages may find no page later, which would kill whoever touches it.
        raise InvalidError("buffer.share: the memfd must have ordinary pages (no MFD_HUGETLB)")
    if len(_live) >= _MOST_MAPPINGS:
        raise OutOfDeviceMemoryError(
            f"buffer.share: the daemon has {_MOST_MAPPINGS} shared buffers, the most it maps at once; free some",
            {"limit": _MOST_MAPPINGS},
        )
    # Not more than is counted: importing pins it. Devices want multiples of a page, or of a few.
    length = min(length, -(-size // _MOST_ALIGNMENT) * _MOST_ALIGNMENT)
    try:
        shared = Shared(map_shared(file, length))
    except OSError as error:
        raise InvalidError(f"buffer.share: the memfd cannot be mapped: {error.strerror}") from error
    _live.add(shared)
    return shared
