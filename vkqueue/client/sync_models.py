"""The blocking client's models: a shell around `model` and `model_source`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from vkqueue.client.array import BaseDeviceArray, Handle
from vkqueue.client.core import Core
from vkqueue.client.link import Link
from vkqueue.client.model import BaseModel, ModelInfo, latest, which
from vkqueue.client.model_source import KernelCode, LoadPlan, WeightData, plan

if TYPE_CHECKING:
    from vkqueue.client.future import Future


class Model(BaseModel):
    """A model of the daemon's, to be called: `model.infer(input_ids=ids)`.

    Inputs are NumPy arrays of the model's dtypes, or device arrays of this connection. Shapes are those of the
    configuration, with the batch dimension. Requests of all clients share batches; each gets its own samples back.
    """

    def infer(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Mapping[str, BaseDeviceArray] | Iterable[str] | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        timing: bool = False,
        **named: Any,
    ) -> Any:
        """Run it, and wait for the result: the output as an array if one comes back, a dict of them if several do.

        Args:
            inputs, named: arrays by the inputs' names, either way; in a dict also those whose names are no keywords.
            outputs: names of those to be returned, else all; or a dict of device arrays that are to have them, which
                are not returned then.
            priority: level from 1, the first to be served, to the model's `priority_levels`.
            timeout: seconds that it may wait for its batch, where the model lets requests say so.
            timing: return `Inferred(value, timing)`.

        Raises:
            InvalidError: an input is missing, unknown or does not fit; an array is not of the model's dtype or shape.
            OverloadedError: the model's queue is full.
            JobExpiredError: it waited longer than it may.
            TimeoutError: no answer within the client's `timeout`; it is cancelled.
            VkqueueError: it failed.
        """
        options: dict[str, Any] = {"outputs": outputs, "priority": priority, "timeout": timeout, "timing": timing}
        return self._client._finish(self.submit(inputs, **options, **named))

    def submit(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Mapping[str, BaseDeviceArray] | Iterable[str] | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        timing: bool = False,
        **named: Any,
    ) -> Future[Any]:
        """Start it; see `infer`. Arrays are sent when this returns, and may change. Device arrays must not be written
        before the result is there; what uses them at the moment is waited for first.
        """
        client = self._client
        ready = self._prepare({**(inputs or {}), **named}, outputs, priority, timeout, timing)
        if ready.read or ready.written:
            client._settle(ready.read, [array.handle for array in ready.written])
        future = client.link.start(client.core.request, "model.infer", ready.params, ready.decode, ready.uses)
        return cast("Future[Any]", future)

    def statistics(self) -> dict[str, Any]:
        """What it has done, by the names of Triton's model statistics; without a version of the one that `infer` calls:
        the latest that is ready.
        """
        return latest(self._client.model_statistics(self.name, self.version))


class Models:
    """The part of a client that knows models."""

    core: Core
    link: Link
    _call: Callable[..., Any]

    def model(self, name: str, version: int | None = None) -> Model:
        """A model that the daemon has.

        Args:
            version: else the latest that is ready at each call.

        Raises:
            NotFoundError: it has none of that name or version.
        """
        return Model(self, name, version, self._call(self.core.control, "model.config", which(name, version), dict))

    def models(self) -> list[ModelInfo]:
        """All versions of all models, also those that could not be loaded, with the reason."""
        found: list[ModelInfo] = self._call(
            self.core.control, "model.list", {}, lambda result: [ModelInfo.from_wire(one) for one in result]
        )
        return found

    def model_statistics(self, name: str | None = None, version: int | None = None) -> list[dict[str, Any]]:
        """What models have done, one entry for each version, by the names of Triton's model statistics."""
        params = {key: value for key, value in (("name", name), ("version", version)) if value is not None}
        found: list[dict[str, Any]] = self._call(self.core.control, "model.statistics", params, list)
        return found

    def load_model(
        self,
        name: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        *,
        kernels: Mapping[str, KernelCode] | None = None,
        weights: Mapping[str, WeightData] | None = None,
        version: int | None = None,
        device: int | None = None,
    ) -> Model:
        """Load a model into the daemon, for all its clients, and wait until it is ready.

            gpu.load_model("minilm")              # from the daemon's repository; again: its files are read anew
            gpu.load_model("./models/minilm")     # a folder of yours, with a config.toml; what has a "/" is a path
            gpu.load_model("scale", config, kernels={"scale": module}, weights={"w": array})

        A version that is loaded is replaced: requests that it has taken are still answered by it. A model outlives the
        connection.

        Args:
            config: the map that a config.toml is.
            kernels: by the names in the configuration: a module, or what `load` takes.
            weights: by name: arrays, bytes, or device arrays (which are copied).
            version: of a folder or repository the one to load, else the latest; with a config its number, else 1.

        Returns:
            The version that was loaded, of several from the repository the highest. `model(name)` is of the latest
            at each call, which may be another one.

        Raises:
            InvalidError: the configuration or the folder is wrong; the message says where.
            NotFoundError: no such folder, file, or model in the repository.
            CompileError: a kernel does not compile.
            QuotaError, OutOfDeviceMemoryError: it does not fit.
        """
        ready = plan(name, config, kernels, weights, version, device, self.core.payload)
        return self.model(ready.name, send(self, ready, device))

    def unload_model(self, name: str, version: int | None = None) -> None:
        """Unload a model, or one version of it, for all clients; returns once the requests that it has taken are done.

        Raises:
            NotFoundError: the daemon has no such model.
        """
        self._call(self.core.request, "model.unload", which(name, version))

    def _settle(self, read: list[Handle], written: Sequence[Handle] = ()) -> None:
        """Wait for what was started and is in the way (see `Requests.settling`); raise why one could not be made."""
        for call in self.link.start(self.core.settling, read, written):
            if not self.link.wait(call, self.link.timeout):
                raise TimeoutError(f"what uses a device array is not done within {self.link.timeout} s")
        for handle in (*read, *written):
            handle.check("the device array")


def send(client: Models, ready: LoadPlan, device: int | None) -> int:
    """Bring to the daemon what `plan` made of a model, and wait until it is ready there. Raises as `load_model`.

    Args:
        device: where to upload weights; None: the connection's.

    Returns:
        The number of the version that was loaded, of several the highest.
    """
    buffers: list[Handle] = []
    try:
        for chunk in ready.chunks:
            buffers.append(client.link.start(client.core.upload, chunk.size, chunk.parts, device))
            client._settle(buffers[-1:])  # one at a time, so that no more than one waits to be sent
        client._settle([*ready.modules, *(array.handle for array in ready.arrays.values())])
        loaded = client._call(client.core.request, "model.load", ready.message(buffers), dict, ready.arrays.values())
        return int(loaded["version"])
    finally:
        if client.core.lost is None:
            for handle in buffers:
                client.link.start(client.core.release, handle)
