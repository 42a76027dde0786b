"""A model's configuration, checked: what it takes and gives, and the graph that it runs.

map (a config.toml, or of `model.load`) → Definition → … instantiate.py: a graph for each shape
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vkqueue.errors import brief
from vkqueue.models.nodes import WEIGHTS, Node, NodeReader, Number
from vkqueue.models.policy import BatchingPolicy, batching_policy
from vkqueue.models.reading import Numbers, Table, shown
from vkqueue.models.tensors import Dimension, Tensor, read_tensors

MAX_BATCH_SIZE = 65_536
"""Arbitrary."""
MAX_INSTANCES = 16
"""Of batches in flight of one model. Arbitrary: as many on one device do not make it faster, and each takes memory."""
DEFAULT_INSTANCES = 2
"""One runs while the next is gathered."""
_MAX_NODES = 65_536
_MAX_WARMUPS = 256

_KEYS = (
    "name", "max_batch_size", "max_batch_gpu_ms", "version_policy", "dynamic_batching", "instance_group", "dimensions",
    "input", "output", "weights", "kernel", "temporary", "node", "ensemble_scheduling", "model_warmup",
)  # fmt: skip
_NOT_OF_ENSEMBLES = ("weights", "kernel", "temporary", "node")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A module that nodes launch, by its name; `file` and `entry` are empty where they are left out."""

    name: str
    file: str = ""
    entry: str = ""

    def to_map(self) -> dict[str, Any]:
        """As the configuration has it."""
        found = {"name": self.name, "file": self.file, "entry": self.entry}
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an ensemble; maps from the member's names to those of the ensemble's tensors."""

    model_name: str
    model_version: int
    input_map: dict[str, str]
    output_map: dict[str, str]

    def to_map(self) -> dict[str, Any]:
        """As the configuration has it."""
        return {
            "model_name": self.model_name,
            "model_version": self.model_version,
            "input_map": dict(self.input_map),
            "output_map": dict(self.output_map),
        }


@dataclass(frozen=True, slots=True)
class Warmup:
    """A shape that is run before the model is ready; dimensions that are left out are the smallest."""

    batch_size: int
    dimensions: dict[str, int]

    def to_map(self) -> dict[str, Any]:
        """As the configuration has it."""
        return {"batch_size": self.batch_size, "dimensions": dict(self.dimensions)}


@dataclass(frozen=True, slots=True)
class Definition:
    """A model.

    Attributes:
        max_batch_size: samples of a launch; 0 where tensors have no batch dimension.
        max_batch_gpu_ms: how long a batch may take on the device, as far as predicted; 0 for no bound.
        batching: None: each request is a launch of its own.
        instances: batches in flight at most.
        version_policy: as the configuration has it, its defaults filled in. What is loaded by it `repository` decides,
            which reads it by itself, before the rest is known to be right.
        temporaries: name → bytes.
        steps: of an ensemble, which has no nodes before it is flattened (ensemble.py).
        warmup: None where the configuration leaves it out.
    """

    name: str
    max_batch_size: int
    max_batch_gpu_ms: float
    version_policy: dict[str, Any]
    batching: BatchingPolicy | None
    instances: int
    dimensions: dict[str, Dimension]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    temporaries: dict[str, Number] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    weights_file: str = ""
    steps: tuple[Step, ...] = ()
    warmup: tuple[Warmup, ...] | None = None

    @classmethod
    def from_map(cls, config: Any, name: str = "") -> Definition:
        """Check a configuration.

        Args:
            name: what the model is called; the configuration may leave its name out then.

        Raises:
            InvalidError: with the key, what was expected and what came.
        """
        table = Table(config, "", _KEYS)
        called = table.text("name", name) if name or "name" in table else table.text("name")
        if name and called != name:
            raise table.error("name", f"{brief(called)}, but the model is loaded as {brief(name)}")
        batch = table.integer("max_batch_size", 0, 0, MAX_BATCH_SIZE)
        ensemble = "ensemble_scheduling" in table
        dimensions = {key: Dimension.read(key, item) for key, item in table.map("dimensions", {}).items()}
        known = None if ensemble else dimensions
        inputs = read_tensors(table.get("input"), "input", known, batch > 0)
        outputs = read_tensors(table.get("output"), "output", known, batch > 0)
        both = inputs.keys() & outputs.keys()
        if both:
            raise table.error("output", f"{brief(min(both))} is an input as well; names are of one thing only")
        group = Table(table.get("instance_group", {}), "instance_group", ("count",))
        body = _ensemble(table) if ensemble else _graph(table, dimensions, inputs, outputs)
        return cls(
            name=called,
            max_batch_size=batch,
            max_batch_gpu_ms=_milliseconds(table),
            version_policy=_version_policy(table),
            batching=_batching(table, batch),
            instances=group.integer("count", DEFAULT_INSTANCES, 1, MAX_INSTANCES),
            dimensions=dimensions,
            inputs=inputs,
            outputs=outputs,
            warmup=_warmup(table, batch, known),
            **body,
        )

    @property
    def batched(self) -> bool:
        """Whether tensors have a batch dimension."""
        return self.max_batch_size > 0

    def to_map(self) -> dict[str, Any]:
        """The configuration with what was left out filled in."""
        found: dict[str, Any] = {
            "name": self.name,
            "max_batch_size": self.max_batch_size,
            "max_batch_gpu_ms": self.max_batch_gpu_ms,
            "version_policy": self.version_policy,
            "instance_group": {"count": self.instances},
            "dimensions": {name: dimension.to_map() for name, dimension in self.dimensions.items()},
            "input": [tensor.to_map(output=False) for tensor in self.inputs.values()],
            "output": [tensor.to_map(output=True) for tensor in self.outputs.values()],
        }
        if self.batching is not None:
            found["dynamic_batching"] = self.batching.to_map()
        if self.warmup is not None:
            found["model_warmup"] = [item.to_map() for item in self.warmup]
        if self.steps:
            return found | {"ensemble_scheduling": {"step": [step.to_map() for step in self.steps]}}
        if self.weights_file:
            found["weights"] = {"file": self.weights_file}
        temporaries = [{"name": name, "size": shown(size)} for name, size in self.temporaries.items()]
        return found | {
            "kernel": [kernel.to_map() for kernel in self.kernels.values()],
            "temporary": temporaries,
            "node": [node.to_map() for node in self.nodes],
        }


def _milliseconds(table: Table) -> float:
    value = table.get("max_batch_gpu_ms", 0)
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise table.error("max_batch_gpu_ms", f"expected a number of milliseconds, 0 for no bound, got {brief(value)}")
    return float(value)


def _version_policy(table: Table) -> dict[str, Any]:
    given = Table(table.get("version_policy", {"latest": {}}), "version_policy", ("latest", "all", "specific"))
    forms = [key for key in ("latest", "all", "specific") if key in given]
    if len(forms) != 1:
        raise given.error("", f"expected one of latest, all and specific, got {', '.join(forms) or 'none'}")
    if forms == ["latest"]:
        latest = Table(given.get("latest"), "version_policy.latest", ("num_versions",))
        return {"latest": {"num_versions": latest.integer("num_versions", 1, 1)}}
    if forms == ["all"]:
        Table(given.get("all"), "version_policy.all", ())
        return {"all": {}}
    specific = Table(given.get("specific"), "version_policy.specific", ("versions",))
    versions = specific.list("versions")
    if not versions or any(type(v) is not int or v < 1 for v in versions):
        raise specific.error("versions", f"expected positive integers, got {brief(versions)}")
    return {"specific": {"versions": versions}}


def _batching(table: Table, max_batch_size: int) -> BatchingPolicy | None:
    if "dynamic_batching" not in table:
        return None
    if not max_batch_size:
        raise table.error("dynamic_batching", "needs max_batch_size of at least 1: without it nothing is batched")
    return batching_policy(table.map("dynamic_batching"), max_batch_size, "config: dynamic_batching")


def _warmup(table: Table, batch: int, dimensions: Mapping[str, Dimension] | None) -> tuple[Warmup, ...] | None:
    if "model_warmup" not in table:
        return None
    found = []
    for index, item in enumerate(table.list("model_warmup", most=_MAX_WARMUPS)):
        each = Table(item, f"model_warmup[{index}]", ("batch_size", "dimensions"))
        sizes = each.map("dimensions", {})
        for name, size in sizes.items():
            if dimensions is not None and name not in dimensions:
                raise each.error("dimensions", f"no dimension is called {brief(name)}")
            if type(size) is not int or (dimensions is not None and dimensions[name].bucket(size) is None):
                allowed = "an integer" if dimensions is None else dimensions[name].allowed
                raise each.error("dimensions", f"{name}: expected {allowed}, got {brief(size)}")
        found.append(Warmup(each.integer("batch_size", 1, 1, batch or 1), sizes))
    return tuple(found)


def _ensemble(table: Table) -> dict[str, Any]:
    for key in _NOT_OF_ENSEMBLES:
        if key in table:
            raise table.error(key, "an ensemble has none: its steps are other models")
    scheduling = Table(table.get("ensemble_scheduling"), "ensemble_scheduling", ("step",))
    steps = []
    for index, item in enumerate(scheduling.list("step", most=256)):
        path = f"ensemble_scheduling.step[{index}]"
        step = Table(item, path, ("model_name", "model_version", "input_map", "output_map"))
        maps = []
        for key in ("input_map", "output_map"):
            names = step.map(key)
            wrong = next((v for v in names.values() if type(v) is not str or not v), None)
            if wrong is not None:
                raise step.error(key, f"expected names of the ensemble's tensors, got {brief(wrong)}")
            maps.append(names)
        version = step.integer("model_version", -1, -1)
        if version == 0:
            raise step.error("model_version", "expected a version, from 1 on, or -1 for the latest, got 0")
        steps.append(Step(step.text("model_name"), version, *maps))
    if not steps:
        raise scheduling.error("step", "an ensemble has one step at least")
    return {"steps": tuple(steps)}


def _graph(
    table: Table, dimensions: Mapping[str, Dimension], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> dict[str, Any]:
    asked = {d for tensor in inputs.values() for d in tensor.dims}
    for name in dimensions:
        if name not in asked:
            raise table.error(f"dimensions.{name}", "no input has it, so no request says how long it is")
    kernels = _kernels(table)
    numbers = Numbers({*dimensions, "batch"})
    temporaries: dict[str, Number] = {}
    for index, item in enumerate(table.list("temporary", [])):
        each = Table(item, f"temporary[{index}]", ("name", "size"))
        name = each.text("name")
        if name in temporaries or name in inputs or name in outputs or name.startswith(WEIGHTS):
            raise each.error("name", f"{brief(name)}: a name is of one thing only, and not of weights")
        temporaries[name] = numbers.read(each.get("size"), each.where("size"))
    reader = NodeReader(numbers, kernels, {**inputs, **outputs, **temporaries})
    nodes = tuple(reader.read(item, f"node[{i}]") for i, item in enumerate(table.list("node", most=_MAX_NODES)))
    if not nodes:
        raise table.error("node", "a model has one node at least")
    weights = Table(table.get("weights", {}), "weights", ("file",))
    return {
        "kernels": kernels,
        "temporaries": temporaries,
        "nodes": nodes,
        "weights_file": weights.text("file", ""),
    }


def _kernels(table: Table) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for index, item in enumerate(table.list("kernel", [])):
        each = Table(item, f"kernel[{index}]", ("name", "file", "entry"))
        kernel = Kernel(each.text("name"), each.text("file", ""), each.text("entry", ""))
        if kernel.name in found:
            raise each.error("name", f"{brief(kernel.name)} is there twice")
        found[kernel.name] = kernel
    return found


__all__ = ["MAX_BATCH_SIZE", "MAX_INSTANCES", "Definition", "Kernel", "Step", "Warmup"]
