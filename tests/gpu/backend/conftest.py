"""Backends over the test device, also with the memory of other kinds of device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.gpu_rig import Rig, disguise

from vkqueue.gpu.backend import Backend
from vkqueue.gpu.device import Device
from vkqueue.gpu.payload import Tuning
from vkqueue.gpu.vulkan import VulkanBackend


@pytest.fixture
def open_rig(open_test_device: Callable[..., Device]) -> Iterator[Callable[..., Rig]]:
    """Opens rigs: `open_rig(memory="discrete", tuning=Tuning(...), naive=True, descriptors="sets", ...)`."""
    backends = []

    def open_it(
        *, memory: str = "unified", tuning: Tuning | None = None, naive: bool = False, **options: Any
    ) -> Rig:
        device = open_test_device(**options)
        disguise(device, memory)
        backend = VulkanBackend(device, tuning)
        _: Backend = backend  # for mypy to see that it is one
        backends.append(backend)
        return Rig(backend, naive=naive)

    yield open_it
    for backend in backends:
        backend.close()


@pytest.fixture(params=["push", "sets"])
def rig(request: pytest.FixtureRequest, open_rig: Callable[..., Rig]) -> Rig:
    """Default memory, with descriptors pushed and with rings of sets (rule 13)."""
    return open_rig(descriptors="auto" if request.param == "push" else "sets")
