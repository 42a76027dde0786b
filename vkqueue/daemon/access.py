"""Who may connect: a client's credentials from the kernel, and the lists that they are held against."""

from __future__ import annotations

import grp
import pwd
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from vkqueue.config import ConfigError, DaemonConfig
from vkqueue.daemon.session import Peer

# linux/socket.h; Python has no name for it. Since Linux 4.13.
SO_PEERGROUPS = 59
_MAX_GROUPS = 65_536  # NGROUPS_MAX


def peer_of(client: socket.socket) -> Peer:
    """Who was at the other end when it connected."""
    return Peer(*struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def groups_of(client: socket.socket, peer: Peer) -> set[int]:
    """The peer's groups, supplementary ones included.

    They come from the kernel, as the peer had them when it connected: a look-up by name could wait for a
    directory server, and the event loop with it.
    """
    try:
        packed = client.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * 64)
    except OSError:  # more groups than that
        try:
            packed = client.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * _MAX_GROUPS)
        except OSError:
            packed = b""
    return {peer.gid, *struct.unpack(f"{len(packed) // 4}I", packed)}


@dataclass(frozen=True, slots=True)
class AccessList:
    """Uids and gids that may connect; both empty let everybody in whom the socket's mode does."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()

    @classmethod
    def from_config(cls, config: DaemonConfig) -> AccessList:
        """Look the names up; may wait for a directory server, so not on the event loop.

        Raises:
            ConfigError: names that are no user or group here.
        """
        problems: list[str] = []
        users = _numbers("daemon.allow_users", config.allow_users, problems)
        groups = _numbers("daemon.allow_groups", config.allow_groups, problems)
        if problems:
            raise ConfigError("settings", problems)
        return cls(users, groups)

    def admits(self, client: socket.socket, peer: Peer) -> bool:
        """Whether the peer is one of the users, or in one of the groups."""
        if not self.users and not self.groups:
            return True
        return peer.uid in self.users or (bool(self.groups) and not self.groups.isdisjoint(groups_of(client, peer)))


def group_id(name: str) -> int:
    """Raises KeyError for a name that is no group; a number stands for itself."""
    return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid


def _user_id(name: str) -> int:
    return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid


def _numbers(setting: str, names: Iterable[str], problems: list[str]) -> frozenset[int]:
    look_up = _user_id if setting.endswith("users") else group_id
    found = set()
    for name in names:
        try:
            found.add(look_up(name))
        except KeyError:
            problems.append(f"{setting}: there is no {name!r} on this machine")
    return frozenset(found)
