"""Tells the service manager how the daemon is: systemd's sd_notify protocol, one datagram for each message."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("vkqueue.daemon")


class Notifier:
    """Messages to `$NOTIFY_SOCKET`; all of them do nothing when there is none.

    Attributes:
        watchdog_s: how often `watchdog` wants to be called (half of what systemd waits), 0 for never.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # systemd writes an abstract socket's leading NUL so
            self._address = "\0" + self._address[1:]
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self.watchdog_s = self._watchdog_interval(environ) if self._address else 0.0

    @staticmethod
    def _watchdog_interval(environ: Mapping[str, str]) -> float:
        microseconds = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return int(microseconds) / 2_000_000 if ours and microseconds.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """The daemon serves (also: it does so again after `reloading`)."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Settings are being read again; `ready` must follow."""
        # Type=notify-reload compares the time with that of its signal, so it must be CLOCK_MONOTONIC's.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        """The daemon is on its way out."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def watchdog(self) -> None:
        """The event loop is alive."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Later messages do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError as exc:  # a manager that is gone or busy is no reason to stop serving
            log.warning("cannot notify the service manager at %r: %s", self._address, exc)
