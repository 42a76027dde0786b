"""Reflection: what a client has to know of a kernel to launch it, and what a device must have to run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.access import BOTH, NAMES, WRITE, Access, Use, narrowed
from vkqueue.kernels.constants import Constants
from vkqueue.kernels.grammar import enumerant
from vkqueue.kernels.layout import Layouts
from vkqueue.kernels.module import GL_COMPUTE, Decoration, EntryPoint, Module, Op, Storage, Variable
from vkqueue.kernels.rules import layout_feature
from vkqueue.kernels.spirv import parse
from vkqueue.model import STORAGE, UNIFORM

MAX_ENTRIES = 200_000
"""Bindings and members in one answer. Arbitrary; a few megabytes."""
MAX_PRIVATE = 512 << 10
"""Bytes of local and Private variables. GPUs give an invocation some hundred KiB; drivers hang on gigabytes."""
MAX_INLINED = 1 << 20
"""Instructions of a kernel with its calls expanded. Thirty functions that call the next one twice make a billion."""
MAX_SPREAD = 1 << 22
"""Scalars in all results and constants that are arrays or structures; drivers keep each apart."""
MAX_BINDING = 65535
"""Largest binding number. Drivers allocate by it; DXC's shifted registers reach a few thousand."""
_WORKGROUP_SIZE = 25  # BuiltIn
_LARGEST_BLOCK = 1 << 32

_HANDLES = {
    Op.TYPE_IMAGE: "an image",
    Op.TYPE_SAMPLER: "a sampler",
    Op.TYPE_SAMPLED_IMAGE: "a sampled image",
}
_BUFFER_IMAGE, _SUBPASS_IMAGE = 5, 6  # Dim


def analyse(spirv: bytes, specialization: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """Everything the daemon wants to know of a module, as plain JSON-able values.

    Args:
        specialization: values by constant id; sizes and work-group sizes in the result are those with them.

    Returns:
        {spirv_version, generator, capabilities, extensions, entry_points: [{name, stage}], kernels: {name:
        reflection of docs/protocol.md, plus `needs` for `requirements.unsupported`}}.

    Raises:
        InvalidError: the module is broken, or a specialization value does not fit.
        UnsupportedError: well formed, and without a compute kernel that Vulkan could run.
    """
    module = parse(spirv)
    compute = [entry for entry in module.entry_points if entry.model == GL_COMPUTE]
    if not compute:
        raise _no_kernel(module)
    reflector = _Reflector(module, specialization)
    return {
        "spirv_version": list(module.version),
        "generator": module.generator,
        "capabilities": reflector.capabilities,
        "extensions": module.extensions,
        "entry_points": [
            {"name": entry.name, "stage": enumerant("ExecutionModel", entry.model)} for entry in module.entry_points
        ],
        "kernels": {entry.name: reflector.kernel(entry) for entry in compute},
    }


def _no_kernel(module: Module) -> UnsupportedError:
    if "Kernel" in (enumerant("Capability", number) for number in module.capabilities):
        return UnsupportedError(
            "the module is written for OpenCL (capability Kernel); Vulkan needs entry points of the execution model "
            "GLCompute, as clspv makes them from OpenCL C",
            {"capability": "Kernel"},
        )
    stages = sorted({enumerant("ExecutionModel", entry.model) for entry in module.entry_points})
    found = f"its entry points are of {', '.join(stages)}" if stages else "it has no entry points"
    return UnsupportedError(f"the module has no compute kernel (execution model GLCompute); {found}")


class _Reflector:
    """One module under one specialization; entry points share what is worked out here."""

    def __init__(self, module: Module, specialization: Mapping[int, Any] | None) -> None:
        self._module = module
        self._constants = Constants(module, specialization)
        self._layouts = Layouts(module, self._constants)
        self._access = Access(module, self._constants)
        self.capabilities = sorted(enumerant("Capability", number) for number in module.capabilities)
        self._built_in_size = self._find_built_in_size()
        self._blocks: dict[tuple[int, bool], dict[str, Any]] = {}
        self._entries = 0
        self._refused_module = self._find_refused()

    def _find_built_in_size(self) -> int | None:
        """The constant decorated as WorkgroupSize, which overrides the execution modes of all entry points."""
        for id in self._module.constants:
            if self._module.decoration(id, Decoration.BUILT_IN) == _WORKGROUP_SIZE:
                return id
        return None

    def _spend(self, entries: int) -> None:
        self._entries += entries
        if self._entries > MAX_ENTRIES:
            raise UnsupportedError(f"the module has more than {MAX_ENTRIES} bindings and members over all kernels")

    def kernel(self, entry: EntryPoint) -> dict[str, Any]:
        use = self._access.of(entry.function)
        local_size, parts, varies = self._local_size(entry)
        needs: dict[str, Any] = {
            "shared_bytes": 0,
            "shared_spec": False,
            "spirv_version": list(self._module.version),
            "extensions": self._module.extensions,
            "refuse": [*self._refused_module, *self._refused_sizes(entry, use)],
            "dynamic_descriptors": use.dynamic,
            "local_size_spec": varies,
            "features": ["maintenance4"] if entry.local_size_ids is not None else [],
            "limits": {},
        }
        kernel: dict[str, Any] = {
            "local_size": local_size,
            "bindings": [],
            "scalars": [],
            "push_constant_bytes": 0,
            "specialization": self._constants.specialization,
            "capabilities": self.capabilities,
            "needs": needs,
        }
        sizes = self._constants.plain(parts)
        if sizes is not None:
            kernel["local_size_ids"] = sizes
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for id in sorted(use.variables):
            variable = self._module.variables[id]
            if variable.storage == Storage.WORKGROUP:
                needs["shared_bytes"] += self._layouts.shared(variable.type)
                needs["shared_spec"] = needs["shared_spec"] or self._layouts.varies(variable.type)
            elif variable.storage == Storage.PUSH_CONSTANT:
                self._push_constants(kernel, variable)
            elif variable.storage in (Storage.UNIFORM, Storage.STORAGE_BUFFER):
                self._binding(found, variable, use.variables[id], needs)
            elif variable.storage == Storage.UNIFORM_CONSTANT or variable.storage > 4096:
                needs["refuse"].append(self._refused_variable(variable))
        kernel["bindings"] = [found[key] for key in sorted(found)]
        self._spend(len(found) + len(kernel["specialization"]) + len(self.capabilities) + len(self._module.extensions))
        self._count(kernel, needs)
        return kernel

    def _count(self, kernel: dict[str, Any], needs: dict[str, Any]) -> None:
        """The limits that the bindings run into."""
        bindings = kernel["bindings"]
        needs["limits"] = {
            "storage_buffers": sum(b["count"] for b in bindings if b["kind"] == STORAGE),
            "uniform_buffers": sum(b["count"] for b in bindings if b["kind"] == UNIFORM),
            "sets": 1 + max((b["set"] for b in bindings), default=-1),
        }
        needs["features"] = sorted(set(needs["features"]))

    # Work-group size

    def _local_size(self, entry: EntryPoint) -> tuple[list[int], list[int], bool]:
        """The size, the constants that it is written with (0 for a literal), and whether a specialization can change
        it."""
        constants = self._constants
        parts = [0] * 3
        if self._built_in_size is not None:
            size = constants.integers(self._built_in_size)
            varies = self._built_in_size in constants.varying
            parts = constants.parts(self._built_in_size) or [self._built_in_size] * 3
        elif entry.local_size_ids is not None:
            size = [constants.integer(id) for id in entry.local_size_ids]
            varies = not constants.varying.isdisjoint(entry.local_size_ids)
            parts = list(entry.local_size_ids)
        elif entry.local_size is not None:
            size, varies = list(entry.local_size), False
        else:
            raise InvalidError(
                f"entry point {entry.name[:80]!r} has no work-group size: no LocalSize, LocalSizeId or WorkgroupSize",
                {"entry": entry.name[:80]},
            )
        known = [value for value in size if value is not None]
        if len(known) != 3 or min(known) < 1:
            text = " x ".join("?" if value is None else str(value) for value in size)
            raise InvalidError(
                f"entry point {entry.name[:80]!r} has a work-group size of {text or '?'}; three numbers of at least 1 "
                "are expected" + (", see its specialization constants" if varies else ""),
                {"entry": entry.name[:80]},
            )
        return known, parts, varies

    # Blocks

    def _block(self, struct: int, *, uniform: bool, members: bool) -> dict[str, Any]:
        """Shape of a block: {size, stride, feature, members}; worked out once for each structure."""
        key = (struct, uniform)
        if key not in self._blocks:
            layouts = self._layouts
            trailing = layouts.trailing_array(struct)
            self._blocks[key] = {
                "size": layouts.of(struct).size if trailing is None else trailing[0],
                "stride": 0 if trailing is None else trailing[1],
                "feature": layout_feature(self._module, layouts, struct, uniform=uniform),
                "members": layouts.members(struct) if members else None,
            }
        block = self._blocks[key]
        if members:
            self._spend(len(block["members"] or ()))
        return block

    def _push_constants(self, kernel: dict[str, Any], variable: Variable) -> None:
        needs = kernel["needs"]
        if self._module.types[variable.type].op != Op.TYPE_STRUCT:
            raise self._module.fault(variable.at, "push constants are not a structure")
        if kernel["push_constant_bytes"]:
            needs["refuse"].append("two blocks of push constants in one kernel; Vulkan allows one")
            return
        block = self._block(variable.type, uniform=False, members=True)
        self._need_feature(needs, block)
        kernel["push_constant_bytes"] = block["size"]
        if block["members"] is None:
            needs["refuse"].append(f"a push-constant block of {block['size']} bytes with more members than are spread")
            return
        kernel["scalars"] = [{**member, "where": "push"} for member in block["members"]]

    @staticmethod
    def _need_feature(needs: dict[str, Any], block: dict[str, Any]) -> None:
        if block["feature"] is not None:
            needs["features"].append(block["feature"])

    def _binding(
        self, found: dict[tuple[int, int], dict[str, Any]], variable: Variable, marks: int, needs: dict[str, Any]
    ) -> None:
        """Reflect a buffer, or join it with the variable that has the same place."""
        module = self._module
        count, struct = self._descriptors(variable)
        storage = variable.storage == Storage.STORAGE_BUFFER
        storage = storage or module.decoration(struct, Decoration.BUFFER_BLOCK) is not None
        if marks & WRITE and not storage:
            needs["refuse"].append("a uniform buffer that it writes to")
        marks = narrowed(module, variable.id, struct, marks if storage else marks & ~WRITE)
        block = self._block(struct, uniform=not storage, members=not storage)
        self._need_feature(needs, block)
        where = self._place(variable)
        if where[1] > MAX_BINDING:
            needs["refuse"].append(f"binding number {where[1]}; the largest is {MAX_BINDING}, renumber the bindings")
        if count == 0:
            needs["refuse"].append(
                f"an unsized array of descriptors (set {where[0]}, binding {where[1]}; capability "
                "RuntimeDescriptorArray); give it a size"
            )
        entry: dict[str, Any] = {
            "set": where[0],
            "binding": where[1],
            "kind": STORAGE if storage else UNIFORM,
            "access": NAMES[marks],
            "name": module.names.get(variable.id, ""),
            "count": count,
            "stride": block["stride"],
            "size": block["size"],
        }
        if block["size"] > _LARGEST_BLOCK:
            needs["refuse"].append(f"a buffer of {block['size']} bytes (set {where[0]}, binding {where[1]})")
        if block["members"] is not None:
            entry["members"] = block["members"]
        if where in found:
            _join(found[where], entry, needs["refuse"])
        else:
            found[where] = entry

    def _place(self, variable: Variable) -> tuple[int, int]:
        binding = self._module.decoration(variable.id, Decoration.BINDING)
        if binding is None:
            raise self._module.fault(variable.at, "the variable has no Binding")
        return self._module.decoration(variable.id, Decoration.DESCRIPTOR_SET) or 0, binding

    def _descriptors(self, variable: Variable) -> tuple[int, int]:
        """(how many, 0 for an unsized array; the block's type)."""
        type_, count = self._module.types[variable.type], 1
        while type_.op in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
            count *= 0 if type_.op == Op.TYPE_RUNTIME_ARRAY else self._layouts.length(type_)
            type_ = self._module.types[type_.element]
        if type_.op != Op.TYPE_STRUCT:
            raise self._module.fault(variable.at, "a buffer variable that is not a structure or an array of them")
        return count, type_.id

    # What the daemon never runs

    def _find_refused(self) -> list[str]:
        """What makes every kernel of the module impossible."""
        module = self._module
        refused = []
        if module.addressing != 0:
            model = enumerant("AddressingModel", module.addressing)
            refused.append(
                f"device addresses (capability PhysicalStorageBufferAddresses, addressing model {model}); "
                "bind buffers instead"
            )
        for name in module.sets.values():
            if not name.startswith(("GLSL.std.450", "NonSemantic.", "SPV_AMD_")) and "DebugInfo" not in name:
                refused.append(f"the instruction set {name[:80]!r}")
        if self._layouts.spread_values() > MAX_SPREAD:
            refused.append(f"arrays and structures as values, of more than {MAX_SPREAD} scalars in all")
        return refused

    def _refused_sizes(self, entry: EntryPoint, use: Use) -> list[str]:
        """Small modules that drivers would make large: they expand calls, and give each invocation its variables."""
        refused = []
        inlined = self._module.functions[entry.function].inlined
        if inlined > MAX_INLINED:
            refused.append(f"{inlined} instructions once its calls are expanded; at most {MAX_INLINED} are taken")
        types = self._module.types
        private = sum(self._layouts.of(types[id].element).natural * count for id, count in use.locals.items())
        for id in use.variables:
            variable = self._module.variables[id]
            if variable.storage == Storage.PRIVATE:
                private += self._layouts.of(variable.type).natural
        if private > MAX_PRIVATE:
            refused.append(f"{private} bytes of variables in each invocation; at most {MAX_PRIVATE} are taken")
        return refused

    def _refused_variable(self, variable: Variable) -> str:
        type_ = self._module.types[variable.type]
        while type_.op in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
            type_ = self._module.types[type_.element]
        what = _HANDLES.get(Op(type_.op) if type_.op in _HANDLES else Op.NOP)
        if type_.op == Op.TYPE_IMAGE:
            dimension = self._module.words[self._module.places[type_.id] + 3]
            what = {_BUFFER_IMAGE: "a texel buffer", _SUBPASS_IMAGE: "a subpass input"}.get(dimension, what)
        if what is None:
            what = "an acceleration structure" if type_.op == 5341 else "a resource that is no buffer"
        places = [self._module.decoration(variable.id, which) for which in (34, 33)]
        at = f" (set {places[0] or 0}, binding {places[1]})" if places[1] is not None else ""
        return f"{what}{at}; the daemon binds storage and uniform buffers only"


def _join(entry: dict[str, Any], other: dict[str, Any], refuse: list[str]) -> None:
    """Two variables of one place: their uses add up, and what they need at least."""
    if entry["kind"] != other["kind"]:
        refuse.append(f"set {entry['set']}, binding {entry['binding']} as both a storage and a uniform buffer")
        return
    marks = {name: mark for mark, name in NAMES.items()}
    entry["access"] = NAMES[(marks[entry["access"]] | marks[other["access"]]) & BOTH]
    entry["name"] = entry["name"] or other["name"]
    entry["count"] = max(entry["count"], other["count"])
    entry["size"] = max(entry["size"], other["size"])
    entry["stride"] = entry["stride"] or other["stride"]
