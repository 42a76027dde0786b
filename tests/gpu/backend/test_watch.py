"""The watch that random programs run under sees what it is there for: work that is not ordered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.effects import accesses
from support.gpu_rig import Rig, disguise, ints
from support.watch import watching

from vkqueue.gpu.commands import Commands
from vkqueue.gpu.device import Device
from vkqueue.gpu.vulkan import VulkanBackend

pytestmark = pytest.mark.gpu

N = 64


class Watched(Rig):
    """A rig under watch."""

    def __init__(self, backend: VulkanBackend, faults: list[str], *, naive: bool) -> None:
        super().__init__(backend, naive=naive)
        self.faults = faults


@pytest.fixture
def open_watched(open_test_device: Callable[..., Device]) -> Iterator[Callable[..., Watched]]:
    faults: list[str] = []
    backends = []
    with watching(accesses(), faults.append) as watch:

        def open_it(*, naive: bool = True, memory: str = "unified", **options: str) -> Watched:
            device = open_test_device(**options)
            disguise(device, memory)
            watch(device)
            backends.append(VulkanBackend(device))
            return Watched(backends[-1], faults, naive=naive)

        yield open_it
        for backend in backends:
            backend.close()


@pytest.fixture
def unordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Barriers between rows are not recorded."""
    monkeypatch.setattr(Commands, "barrier", lambda self, command: None)
    monkeypatch.setattr(Commands, "barrier_of_launches", lambda self, command: None)


def chain(rig: Rig) -> None:
    """Launches and copies that depend on each other, in one batch and in two that are in flight together."""
    x, y, z = rig.buffer(ints(*range(N))), rig.buffer(4 * N), rig.buffer(4 * N)
    flying = [
        rig.submit(rig.dispatch("scale", (x, y), ints(2)), rig.dispatch("scale", (y, z), ints(3))),
        rig.submit(rig.dispatch("increment", (z,))),
        rig.submit(rig.copy(z, 0, x, 0, 4 * N), rig.read(x)),
    ]
    for submission in flying:
        assert not rig.finish(submission).errors


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
@pytest.mark.parametrize("memory", ["unified", "discrete"])
def test_it_has_nothing_to_say_of_what_is_ordered(
    open_watched: Callable[..., Watched], descriptors: str, memory: str
) -> None:
    rig = open_watched(descriptors=descriptors, memory=memory)
    chain(rig)
    assert rig.faults == []


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_it_sees_what_no_barrier_orders(
    open_watched: Callable[..., Watched], unordered: None, descriptors: str, vulkan: object
) -> None:
    rig = open_watched(descriptors=descriptors)
    chain(rig)
    vulkan.messages.clear()  # type: ignore[attr-defined]  # the layers see some of it as well
    text = "\n".join(rig.faults)
    assert "which reads what was written" in text, "in one batch"
    assert "scale (" in text and "increment (" in text and "a copy (" in text, "and from one to the next"


def test_it_sees_writes_of_launches_to_the_same(
    open_watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which synchronization validation does not."""
    rig = open_watched()
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    batch = rig.batch([rig.dispatch("scale", (x, y), ints(k)) for k in (2, 3)])
    batch.flags = [flag & ~1 for flag in batch.flags]
    assert not rig.finish(rig.backend.submit(batch)).errors
    assert len(rig.faults) == 1 and "which writes what was written" in rig.faults[0]


def test_it_sees_a_narrow_barrier_before_a_copy(
    open_watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch, vulkan: object
) -> None:
    monkeypatch.setattr(Commands, "barrier", Commands.barrier_of_launches)
    rig = open_watched()
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    rig.faults.clear()
    assert not rig.run(rig.dispatch("increment", (x,)), rig.copy(x, 0, y, 0, 4 * N)).errors
    vulkan.messages.clear()  # type: ignore[attr-defined]
    assert any("a copy (" in fault for fault in rig.faults)


def test_it_sees_the_host_at_what_the_device_uses(open_watched: Callable[..., Watched]) -> None:
    rig = open_watched(naive=False)
    if not rig.backend.info.direct_write_max:
        pytest.skip("the host does not see this device's buffers")
    x = rig.buffer(ints(*range(N)))
    flying = rig.submit(rig.dispatch("increment", (x,)))
    batch = rig.batch([rig.write(x, ints(7))])
    batch.flags = [4]
    rig.finish(rig.backend.submit(batch))
    assert len(rig.faults) == 1 and rig.faults[0].startswith("the host's write")
    rig.finish(flying)
    rig.run(rig.write(x, ints(8)))
    assert len(rig.faults) == 1
