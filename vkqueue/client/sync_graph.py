"""The blocking client's graphs: a shell around `graph`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from vkqueue.client.array import BaseDeviceArray
from vkqueue.client.graph import BaseGraph

if TYPE_CHECKING:
    from vkqueue.client.future import Future


class Graph(BaseGraph):
    """Calls of kernels, recorded once and run together as often as wanted.

        with gpu.graph() as g:
            x, y = g.input("x", (n,), "float32"), g.output("y", (n,), "float32")
            t = g.temporary((n,), "float32")
            square(x, t, n=n, elements=n)
            scale(t, y, k=g.scalar("k", "float32"), n=n, elements=n)
        y = g(x=x, k=2.0)

    Calls that do not depend on each other run at the same time, whatever their order. Inside the block they return
    None.

    Calling it gives arrays for its inputs by name (NumPy's, which are sent along, or device arrays), numbers for its
    scalars, and device arrays for those outputs that are not to be returned. It returns the other outputs, and NumPy
    arrays given for inputs that kernels write, in the order in which they were named: None, one array, or a tuple.

    A graph of `gpu.capture()` is called without them; `g({x: other})` puts other arrays in the places of captured ones.

    Further keywords are `priority`, `deadline`, `after`, `timing` and `label`, as of kernels.
    """

    def __enter__(self) -> Graph:
        self._recording.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        self._recording.end()
        if kind is None:
            client, recording = self._client, self._recording
            client._call(client.core.create_graph, recording.params(), self._made, recording.fixed)

    def __call__(self, replace: Mapping[BaseDeviceArray, Any] | None = None, /, **values: Any) -> Any:
        """Run it, and wait for its results.

        Raises:
            InvalidError: a value is wrong.
            TimeoutError: not done within the client's `timeout`; it is cancelled.
            VkqueueError: it failed.
        """
        return self._client._finish(self.submit(replace, **values))

    def submit(self, replace: Mapping[BaseDeviceArray, Any] | None = None, /, **values: Any) -> Future[Any]:
        """Start it. Values are sent when this returns, and may change."""
        client, table = self._client, self._ready()
        if not replace:
            packed = table.packed(values)
            if packed is not None:
                uses = table.captured or [*values.values()]
                return cast("Future[Any]", client.link.start(client.core.dispatch, packed, uses, "graph.launch"))
        return cast("Future[Any]", client.link.start(client.core.launch, table.prepare(replace or {}, values)))

    def free(self) -> None:
        """Free it now; launches that were started still run."""
        self._client.link.start(self._client.core.release, self._ready().handle)
