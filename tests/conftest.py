"""What holds for every test: the event loop's thread must never block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.fixture(autouse=True)
def loop_never_blocks() -> Iterator[BlockBuster]:
    """Fail any test in which code of vkqueue makes a blocking call on a thread that runs an event loop.

    Calls of tests themselves are let through. Calls into C (cffi, ctypes) are not seen: `gpu.binding` asserts its
    threads by itself.
    """
    with blockbuster_ctx("vkqueue") as detector:
        yield detector
