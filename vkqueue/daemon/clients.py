"""Everybody who is connected: who is let in, how many, and what happens when the last one has left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

import anyio

from vkqueue.config import Config
from vkqueue.daemon.access import AccessList, peer_of
from vkqueue.daemon.connection import ClientService, Connection, HangUps, error_notice
from vkqueue.daemon.session import Peer
from vkqueue.errors import DeniedError, OverloadedError, VkqueueError

log = logging.getLogger("vkqueue.daemon")


class Clients:
    """The open connections. Lives on the loop thread.

    Args:
        most: connections that there are file descriptors for; `daemon.max_clients` is cut to it.
        on_idle: called when nobody has been connected for `daemon.idle_exit_s`; never while that is 0.

    Attributes:
        refusal: given, every new client is refused with it.
    """

    def __init__(
        self, service: ClientService, config: Config, access: AccessList, *, most: int, on_idle: Callable[[], object]
    ) -> None:
        self._service = service
        self._most = most
        self._on_idle = on_idle
        self._connections: set[Connection] = set()
        self._hang_ups = HangUps()
        self._idle_timer: asyncio.TimerHandle | None = None
        self.refusal: VkqueueError | None = None
        self.configure(config, access)

    def __len__(self) -> int:
        return len(self._connections)

    def configure(self, config: Config, access: AccessList) -> None:
        """Take other settings; they hold for whoever connects from now on."""
        self._daemon = config.daemon
        self._max_output_bytes = config.limits.max_output_bytes
        self._access = access
        self._max_clients = min(config.daemon.max_clients, self._most)
        self._watch_idle()

    def admit(self, client: socket.socket) -> None:
        """Take a client that has connected, or refuse it with a reason. Never raises."""
        try:
            peer = peer_of(client)
            self._check(client, peer)
            connection = Connection(
                client,
                peer,
                self._service,
                max_output_bytes=self._max_output_bytes,
                write_timeout_s=self._daemon.write_timeout_s,
                hang_ups=self._hang_ups,
                on_closed=self._closed,
            )
        except VkqueueError as error:
            refuse(client, error)
            return
        except Exception:
            log.exception("a new client met a fault of the daemon")
            client.close()
            return
        self._connections.add(connection)
        self._watch_idle()
        log.debug("session %d: pid %d, uid %d, gid %d", connection.session_id, peer.pid, peer.uid, peer.gid)

    def refuse_starved(self, client: socket.socket) -> None:
        """Refuse a client for which there is no file descriptor."""
        refuse(client, OverloadedError("the daemon is out of file descriptors; try again when clients have left"))

    async def finish(self, timeout_s: float) -> None:
        """Close every connection once it has taken its answers, and those that do not within the time."""
        for connection in list(self._connections):
            connection.finish()
        with anyio.move_on_after(timeout_s):
            for connection in list(self._connections):
                await connection.flushed()
        for connection in list(self._connections):
            connection.close("the daemon stops")

    def close(self) -> None:
        """Release what is shared by the connections, which are closed by now."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._hang_ups.close()

    def _check(self, client: socket.socket, peer: Peer) -> None:
        if self.refusal is not None:
            raise self.refusal
        if not self._access.admits(client, peer):
            log.warning("pid %d is refused: uid %d is on no list of who may connect", peer.pid, peer.uid)
            raise DeniedError(
                f"user {peer.uid} may not use this daemon; its allow_users and allow_groups say who may",
                {"uid": peer.uid, "gid": peer.gid},
            )
        if len(self._connections) >= self._max_clients:
            log.warning("pid %d is refused: %d clients are connected, the most there may be", peer.pid, len(self))
            raise OverloadedError(
                f"the daemon serves its most clients ({self._max_clients}); try again when one has left",
                {"limit": "max_clients", "max_clients": self._max_clients},
            )

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._watch_idle()

    def _watch_idle(self) -> None:
        """Run the idle clock exactly while nobody is connected."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._connections and self._daemon.idle_exit_s:
            self._idle_timer = asyncio.get_running_loop().call_later(self._daemon.idle_exit_s, self._on_idle)


def refuse(client: socket.socket, error: VkqueueError) -> None:
    """Tell a client that has just connected why it is not served, and close. Its socket's buffer is empty."""
    with contextlib.suppress(OSError), client:
        client.send(error_notice(error))
