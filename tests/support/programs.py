"""Random programs: what a connection may send over few buffers, and what it must do, by `reference`.

Every kind of request that touches a buffer, with ranges that overlap in part, small and large (see `vkqueue.large`),
pipelined: launches one by one, many at once and as graphs, transfers, creations and frees, cancels, priorities,
`after`, deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.effects import KERNELS, LOCAL, UNIFORM, Kernel, launch, may_be_bound, pushed, signed
from support.random_buffers import MIB, BufferProgram, Mixture
from support.random_graphs import RandomGraph
from support.random_many import random_many
from support.rawclient import RawClient
from support.reference import Bytes, Memory, Sent

# On their way, of one connection: less than what the daemon stops reading at, and than its queue takes.
_MOST_BYTES = 96 * MIB
_MOST_REQUESTS = 600


class Program(BufferProgram):
    """One connection's requests."""

    def __init__(self, client: RawClient, seed: int, mixture: Mixture) -> None:
        super().__init__(client, seed, mixture)
        self.graphs: dict[int, RandomGraph] = {}
        self.modules = {name: self._load(kernel) for name, kernel in KERNELS.items()}
        for _ in range(4 if self.most < 10 else 30):
            self.create()
        self._weights: dict[Callable[[], None], int] = {
            self.dispatch: 30, self.many: 10, self.graph: 14, self.write: 12, self.read: 12, self.copy: 10,
            self.create: 3, self.free: 3, self.repeat: 8, self.cancel: 3 if mixture.disturb else 0,
            self.make_graph: 2, self.share_memory: 2 if mixture.share else 0, self.vain: 2 if mixture.disturb else 0,
        }  # fmt: skip

    def _load(self, kernel: Kernel) -> int:
        self.handle += 1
        self.client.call("module.load", spirv=kernel.spirv, **{"as": self.handle})
        return self.handle

    def burst(self, count: int) -> None:
        """Send so many requests, without waiting; half of the bursts are of a few kinds only, which then meet."""
        acts = list(self._weights)
        if self.rng.random() < 0.5:
            acts = [*self.rng.sample(acts, 3), self.repeat]
        for _ in range(count):
            if self.bytes > _MOST_BYTES or len(self.reference.waiting) > _MOST_REQUESTS:
                self.settle()
            [act] = self.rng.choices(acts, [self._weights[act] + 0.01 for act in acts])
            act()
            self.drain()

    def settle(self) -> None:
        super().settle()
        for handle in list(self.graphs):
            if any(fixed not in self.sizes for fixed in self.graphs[handle].fixed) and self.rng.random() < 0.5:
                self._free_graph(handle)

    def options(self) -> dict[str, Any]:
        """The rarer parameters of a launch."""
        rng, params = self.rng, {}
        act = rng.random()
        if act < 0.08:
            params["priority"] = rng.randint(-100, 100)
        elif act < 0.12 and self.reference.waiting:
            params["after"] = [rng.choice(self.reference.waiting[-40:]).msgid for _ in range(rng.randrange(1, 4))]
        elif act < 0.15 and self.mixture.disturb:
            params["deadline_ms"] = rng.choice([1, 3, 10_000])
        elif act < 0.2:
            params["timing"] = True
        elif act < 0.22:
            params["label"] = "some"
        return params

    def cancel(self) -> None:
        """One of the last requests, or one that is long over."""
        waiting = self.reference.waiting
        if not waiting:
            return
        sent = self.rng.choice(waiting[-30:])
        if sent.creates and sent.creates not in self.sizes:
            return
        if sent.what.startswith(("buffer.free", "graph.create", "graph.free")):
            return  # what comes behind counts on it
        self.cancel_it(sent)

    def cancel_it(self, sent: Sent) -> None:
        if sent.msgid not in self.reference.cancels.values():
            self.reference.cancels[self.client.send("cancel", msgid=sent.msgid)] = sent.msgid

    def vain(self) -> None:
        """Launches with a buffer that may never come to be."""
        handle = self.handle + 1
        self.create()
        creation = self.reference.waiting[-1]
        if creation.creates != handle:
            return
        for _ in range(self.rng.choice([1, 3, 6])):
            self.rng.choice([self.dispatch, self.many, self.copy])()
        if handle in self.sizes:
            self.cancel_it(creation)

    # Launches

    def dispatch(self) -> None:
        kernel = self.rng.choice(list(KERNELS.values()))
        made = self.arguments(kernel)
        if made is None:
            return
        params, effect, needs = made
        self.run("dispatch", params, effect, needs)

    def run(self, method: str, params: dict[str, Any], effect: Callable[[Memory], Any], needs: tuple[int, ...]) -> None:
        """A launch, that may come again."""
        options = self.options()
        self.send(method, effect, needs, **params, **options)
        if not options and len(self.again) < 50 and params.get("count", 1) <= 200:
            self.again.append(lambda: void(self.send(method, effect, needs, **params)))

    def repeat(self) -> None:
        """Launches that were there before, byte for byte."""
        if self.again:
            for again in self.rng.choices(self.again, k=self.rng.choice([1, 1, 2])):
                for _ in range(self.rng.choice([1, 2, 7, 40]) if self.bytes < _MOST_BYTES // 8 else 1):
                    again()

    def arguments(self, kernel: Kernel) -> Any:
        """(parameters of a dispatch, its effect, buffers that it needs); None if no place was found."""
        size = self.bound_size()
        found = [self.entry(access, UNIFORM if access == "u" else size) for access in kernel.bindings]
        entries, places = [entry for entry, _ in found], [place for _, place in found]
        if None in entries or not may_be_bound(kernel, places):
            return None
        scalars, groups = self.numbers(kernel, size)
        if kernel.array:
            entries[-kernel.array :] = [{"array": entries[-kernel.array :]}]
        params: dict[str, Any] = {"module": self.modules[kernel.name], "args": entries, "grid": [groups]}
        if scalars:
            listed = scalars if kernel.counts else [signed(scalar) for scalar in scalars]
            params["scalars"] = pushed(scalars) if self.rng.random() < 0.5 else listed
        return params, _dispatched(kernel, places, scalars, groups), tuple({p[0] for p in places if len(p) == 3})

    def numbers(self, kernel: Kernel, size: int) -> tuple[list[int], int]:
        """Scalars and work groups for bindings of a size."""
        rng = self.rng
        # Where a block bounds the invocations that may be anything, so the grid has to.
        whole = size // 4 // LOCAL if "u" in kernel.bindings else -(-size // 4 // LOCAL)
        scalars = [rng.randrange(1 << 32) for _ in range(kernel.scalars)]
        if kernel.counts:
            scalars[0] = rng.choice([size // 4, rng.randint(0, size // 4)])
        return scalars, rng.choice([whole, whole, whole // 2])

    def bound_size(self) -> int:
        """Bytes of what a launch works on."""
        rng = self.rng
        if rng.random() < self.mixture.large / 2:
            return rng.choice([MIB, MIB + 4, MIB + rng.randrange(100_000), rng.randrange(MIB, 4 * MIB)])
        return rng.choice([0, 4, 256, 1024, 1027, 4096, rng.randrange(1, 40_000)])

    def entry(self, access: str, size: int) -> tuple[Any, Any]:
        """An entry of `args`, and what it stands for; (None, None) if there is no room."""
        rng = self.rng
        act = rng.random()
        if act < 0.7 and (place := self.place(size)) is not None:
            whole = place[1] == 0 and size == self.sizes[place[0]]
            return place[0] if whole and rng.random() < 0.5 else list(place), place
        if size and act > 0.93 and access in ("r", "u") and (place := self.place(size)) is not None:
            return list(place), place
        if act < 0.7 and rng.random() < 0.5:
            return None, None
        self.bytes += size
        if "w" in access:
            if rng.random() < 0.5:
                self.bytes += size
                return {"out": size}, ("out", np.zeros(size, np.uint8))
            data = self.bytes_of(size)
            return {"inout": data}, ("inout", np.frombuffer(data, np.uint8))
        data = self.bytes_of(size)
        return {"in": data}, ("in", np.frombuffer(data, np.uint8))

    def many(self) -> None:
        made = random_many(self)
        if made is not None:
            params, effect, needs = made
            self.run("dispatch_many", params, effect, needs)

    # Graphs

    def make_graph(self) -> None:
        if len(self.graphs) > 5:
            self._free_graph(self.rng.choice(list(self.graphs)))
        graph = RandomGraph(self)
        self.handle += 1
        handle = self.handle
        count = len(graph.nodes)

        def effect(memory: Memory) -> Any:
            return {"graph": handle, "nodes": count}

        self.settle()  # to know that its buffers are there
        if any(fixed not in self.sizes for fixed in graph.fixed):
            return
        self.send("graph.create", effect, **graph.definition(), **{"as": handle})
        self.graphs[handle] = graph

    def _free_graph(self, handle: int) -> None:
        del self.graphs[handle]
        self.again.clear()
        self.send("graph.free", lambda memory: {}, graph=handle)

    def graph(self) -> None:
        if not self.graphs:
            self.make_graph()
            return
        handle = self.rng.choice(list(self.graphs))
        bound = self.graphs[handle].bind(self)
        if bound is None:
            return
        params, effect, needs = bound
        self.run("graph.launch", {"graph": handle, **params}, effect, needs)


def _dispatched(kernel: Kernel, places: list[Any], scalars: list[int], groups: int) -> Callable[[Memory], Any]:
    """The effect of a dispatch."""

    def effect(memory: Memory) -> Any:
        views: list[Bytes] = []
        results = []
        for place in places:
            if len(place) == 3:
                handle, first, length = place
                views.append(memory[handle][first : first + length] if length else np.zeros(0, np.uint8))
            else:
                views.append(place[1].copy())
                if place[0] in ("out", "inout"):
                    results.append(views[-1])
        launch(kernel, views, scalars, groups)
        return {"outputs": results}

    return effect


def void(_: object) -> None:
    """For a lambda."""
