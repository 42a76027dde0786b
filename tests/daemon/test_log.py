"""Log formats."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from support.inprocess import Rig

from vkqueue import log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger("vkqueue")
    before = (root.handlers[:], root.level, root.propagate, logging.raiseExceptions)
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])
    logging.raiseExceptions = before[3]


def written(level: str, format: str, journal: bool = False) -> str:
    stream = io.StringIO()
    log.setup(level, format, journal=journal, stream=stream)
    logger = logging.getLogger("vkqueue.daemon")
    logger.debug("details")
    logger.warning("client %s came", "a\nb\x1b[31m\x9b")
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("failed")
    return stream.getvalue()


def test_plain_lines_carry_time_level_and_layer() -> None:
    text = written("warning", "plain")
    assert "details" not in text
    assert " WARNING vkqueue.daemon: client a\\x0ab\\x1b[31m\\x9b came\n" in text
    assert text.endswith("ValueError: inner\n")
    assert "details" in written("debug", "plain")


def test_journal_lines_all_carry_their_priority() -> None:
    text = written("debug", "auto", journal=True)
    assert "<7>vkqueue.daemon: details\n<4>vkqueue.daemon: client a\\x0ab" in text
    assert all(line.startswith("<3>") for line in text.splitlines()[2:])
    assert not written("debug", "auto", journal=False).startswith("<")


def test_setup_replaces_what_was_set_up() -> None:
    written("debug", "plain")
    text = written("debug", "journald")
    assert text.count("details") == 1
    assert len(logging.getLogger("vkqueue").handlers) == 1


async def test_clients_and_their_modules_stand_in_it_by_name(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "vkqueue.daemon")
    client = rig.client(hello=False)
    client.call("hello", protocol=1, client="a painter")
    module = client.load(name="brush")
    session = client.session.id
    lines = [message for message in caplog.messages if message.startswith(f"session {session}: ")]
    assert lines[0] == f"session {session}: a painter"
    assert lines[1].startswith(f"session {session}: module {module} brush is ")
