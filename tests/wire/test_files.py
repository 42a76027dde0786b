"""Descriptors that come beside the bytes: each request that takes one gets its own, whatever becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.streams import HELLO, encode, feed, ready

from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ServerConnection

SHARE = {"size": 4096}


@pytest.fixture
def files() -> Iterator[Callable[[], int]]:
    """Makes descriptors; those still open at the end are closed."""
    made: list[int] = []

    def make() -> int:
        made.append(os.open("/dev/null", os.O_RDONLY))
        return made[-1]

    yield make
    for file in made:
        if is_open(file):
            os.close(file)


def is_open(file: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{file}")


def test_each_share_takes_the_oldest(files: Callable[[], int]) -> None:
    connection, own = ready(), [files(), files()]
    connection.files.extend(own)
    dispatch: dict[str, Any] = {"module": 1, "args": [], "grid": [1]}
    came = feed(
        connection,
        [
            encode(
                [0, 2, "dispatch", [dispatch]],
                [0, 3, "buffer.share", [SHARE]],
                [2, "buffer.share", [SHARE]],  # a notification, which nobody answers
                [0, 4, "buffer.share", [SHARE]],
                [0, 5, "buffer.share", [SHARE]],
            )
        ],
    )
    assert [(msgid, method) for msgid, method, _ in came] == [
        (2, "dispatch"), (3, "buffer.share"), (4, "buffer.share"), (5, "buffer.share"),
    ]  # fmt: skip
    assert connection.files_of == dict(zip((3, 4), own, strict=True))
    assert not connection.files


def test_a_request_in_pieces_takes_the_one_that_came_with_its_first_byte(files: Callable[[], int]) -> None:
    connection, own = ready(), [files(), files()]
    data = encode([0, 2, "buffer.share", [SHARE]])
    connection.files.append(own[0])
    assert not connection.receive_data(data[:9])
    connection.files.append(own[1])  # with the next one, which comes in the same read as this one's end
    connection.receive_data(data[9:] + encode([0, 3, "buffer.share", [SHARE]]))
    assert connection.files_of == {2: own[0], 3: own[1]}


@pytest.mark.parametrize("params", [[1], [SHARE, SHARE], "no list", [[]]], ids=str)
def test_one_that_is_refused_here_takes_its_own_along(files: Callable[[], int], params: Any) -> None:
    connection, wrong, right = ready(), files(), files()
    connection.files.extend([wrong, right])
    connection.receive_data(encode([0, 2, "buffer.share", params], [0, 3, "buffer.share", [SHARE]]))
    assert connection.files_of == {3: right}
    assert not is_open(wrong)
    assert connection.take_refused() == [2]


def test_so_does_one_before_hello(files: Callable[[], int]) -> None:
    connection, wrong, right = ServerConnection(Limits()), files(), files()
    connection.files.extend([wrong, right])
    greeted = connection.receive_data(encode([0, 1, "buffer.share", [SHARE]], [0, 2, "hello", [HELLO]]))
    assert not is_open(wrong)
    assert [method for _, method, _ in greeted] == ["hello"]
    connection.receive_data(encode([0, 9, "buffer.share", [SHARE]]))  # waits for the answer to hello
    assert list(connection.files) == [right]
    connection.ready()
    assert connection.files_of == {9: right}
