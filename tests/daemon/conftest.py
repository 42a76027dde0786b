"""Services in the test's own process, whose accounts are looked at when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from support.inprocess import Rig


@pytest.fixture
async def make_rig() -> AsyncIterator[Callable[..., Rig]]:
    """Makes services with scripted devices, all open. Afterwards nothing may be left on any account, and everything
    that was made on a device must have been released."""
    rigs: list[Rig] = []

    def make(**options: object) -> Rig:
        rigs.append(Rig(**options).start())  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.finish()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A service with one device and the default settings."""
    return make_rig()
