"""A connection is its process's own: in a forked child it is closed, and says so when used."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Connection(Protocol):
    """Something with a socket."""

    def after_fork(self) -> None:
        """In the child: close the descriptors, take no lock that was there before, fail whatever is under way."""


_connections: WeakSet[Connection] = WeakSet()


def watch(connection: Connection) -> None:
    """Have `connection.after_fork` called in each forked child."""
    _connections.add(connection)


def reason(owner: int) -> str:
    """What a child is told that uses the connection of process `owner`."""
    return (
        f"this connection belongs to process {owner}, of which this process ({os.getpid()}) is a fork; a fork does "
        f"not share connections: connect again here"
    )


def _in_child() -> None:
    for connection in list(_connections):
        connection.after_fork()


os.register_at_fork(after_in_child=_in_child)
