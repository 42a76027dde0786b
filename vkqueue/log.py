"""Logging of the daemon: one handler on the root of our loggers, in a format for people or for the journal.

Loggers are named by layer: vkqueue.wire, vkqueue.gpu, vkqueue.worker, vkqueue.daemon. (kernels and jobs only return and
raise.)
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""Python's levels as syslog's, which systemd reads from a line's `<N>` prefix."""

# Names and labels come from clients: a control character in one must not forge a line or drive a terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}


class PlainFormatter(logging.Formatter):
    """`time LEVEL layer: message`, with control characters of the message escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_ESCAPES)
        return super().formatMessage(record)


class JournalFormatter(PlainFormatter):
    """Without time (the journal has its own), and with a priority before each line, a traceback's included."""

    def __init__(self) -> None:
        super().__init__()
        self._style = logging.PercentStyle("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def setup(level: str, format: str, *, journal: bool = False, stream: TextIO | None = None) -> None:
    """Send the log to `stream` (stderr). May be called again, to change level or format.

    Args:
        level: debug, info, warning or error.
        format: plain, journald, or auto: journald if `journal`.
        journal: whether stderr is the journal (see `is_journal`).
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    journald = format == "journald" or (format == "auto" and journal)
    handler.setFormatter(JournalFormatter() if journald else PlainFormatter())
    root = logging.getLogger("vkqueue")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    # A log that cannot be written (a closed pipe) is no reason to fail, nor to print about it to the same pipe.
    logging.raiseExceptions = False


def is_journal(journal_stream: str) -> bool:
    """Whether stderr is the journal: systemd gives `$JOURNAL_STREAM` its device and inode."""
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"
