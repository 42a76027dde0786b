"""What the daemon keeps of one graph of a connection: its template, memory for launches at once, instances."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from vkqueue.jobs.graph import Template
from vkqueue.kernels.graph_plan import INPUT, OUTPUT
from vkqueue.model import GraphInstance, Token

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.modules import DeviceKernel
    from vkqueue.daemon.session import Buffer

# Instances kept for each graph: the longest unused one makes room. Arbitrary; with a cap on the device beside it.
_MAX_INSTANCES = 32


class Lane:
    """Memory of a launch: launches in one lane follow each other, those in two may overlap.

    Attributes:
        arena: for temporaries, None where there are none; inline: for data that comes and leaves with launches, None
            before there was any.
    """

    __slots__ = ("arena", "inline")

    def __init__(self, arena: Buffer | None) -> None:
        self.arena = arena
        self.inline: Buffer | None = None


class Graph:
    """A graph as its connection sees it.

    Attributes:
        kernels: those that it keeps alive.
        building: of them, those whose pipelines are being built: until then its creation is not answered, and
            launches wait.
        ends: inputs and outputs by name, as (place index, Place).
        turn: counts lanes given out.
    """

    __slots__ = (
        "building", "device", "ends", "fixed", "generation", "handle", "instances", "kernels", "lanes", "msgid",
        "template", "turn",
    )  # fmt: skip

    def __init__(
        self, handle: int, msgid: int, device: Device, template: Template, kernels: tuple[DeviceKernel, ...]
    ) -> None:
        self.handle = handle
        self.msgid = msgid
        self.device = device
        self.generation = device.generation
        self.template = template
        self.kernels = kernels
        self.building = {kernel for kernel in kernels if not kernel.ready}
        places = [(place.id - 1, place) for place in template.plan.places]
        self.ends = {place.name: (number, place) for number, place in places if place.role in (INPUT, OUTPUT)}
        self.fixed = [(number, place.handle) for number, place in places if place.buffer is not None]
        self.lanes: list[Lane] = []
        self.turn = 0
        self.instances: OrderedDict[Any, tuple[GraphInstance, Token]] = OrderedDict()

    @property
    def buffers(self) -> list[Buffer]:
        """Its memory on the device."""
        return [buffer for lane in self.lanes for buffer in (lane.arena, lane.inline) if buffer is not None]

    def instance(self, key: Any) -> tuple[GraphInstance, Token] | None:
        """The instance of a launch that binds what `key` stands for."""
        found = self.instances.get(key)
        if found is not None:
            self.instances.move_to_end(key)
        return found

    def keep(self, key: Any, instance: GraphInstance, token: Token) -> list[int]:
        """Remember an instance; ids of those that made room."""
        self.instances[key] = (instance, token)
        gone = []
        while len(self.instances) > _MAX_INSTANCES:
            _, (oldest, _) = self.instances.popitem(last=False)
            gone.append(oldest.id)
        return gone
