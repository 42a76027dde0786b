"""The Vulkan objects of a descriptor shape: set layouts, pipeline layout, update templates."""

from __future__ import annotations

from typing import Any

from vkqueue.errors import UnsupportedError, VkqueueError
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.model import UNIFORM, Layout

DESCRIPTOR_BYTES = 24
"""sizeof(VkDescriptorBufferInfo): VkBuffer, offset, range, 64 bits each."""

_UNIFORM_BUFFER, _STORAGE_BUFFER = 6, 7  # VkDescriptorType
_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_COMPUTE_POINT = 1  # VK_PIPELINE_BIND_POINT_COMPUTE
_PUSH_LAYOUT_FLAG = 0x1  # VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR
_TEMPLATE_OF_SET, _TEMPLATE_PUSHED = 0, 1  # VkDescriptorUpdateTemplateType

MAX_BINDING = 16_383
"""Arbitrary. Drivers keep an array as long as the largest binding number, and some overflow its size."""

Bindings = tuple[tuple[int, str, int], ...]
"""(binding, kind, count) of one set, as in `model.Layout`."""


class RingSet:
    """A set whose descriptors come from a ring of descriptor sets.

    Attributes:
        number: its set number.
        set_layout, template: VkDescriptorSetLayout; VkDescriptorUpdateTemplate that writes one set from the packed
            descriptors of a whole token.
        storage, uniform: how many descriptors of each type one set takes.
    """

    __slots__ = ("number", "set_layout", "storage", "template", "uniform")

    def __init__(self, number: int, set_layout: int, template: int, storage: int, uniform: int) -> None:
        self.number = number
        self.set_layout = set_layout
        self.template = template
        self.storage = storage
        self.uniform = uniform


class PipelineLayout:
    """The Vulkan objects of one `model.Layout`, shared by its pipelines.

    Every template reads from the start of a token's packed descriptors: one VkDescriptorBufferInfo for each of
    `Token.entries`, in that order.

    Attributes:
        handle, handle_param: VkPipelineLayout, as an int and for `Device.raw`.
        set_layouts: VkDescriptorSetLayout by set number; unused numbers have an empty one.
        push_set: the number of the pushed set, or None; `push_template` and its param write it.
        rings: the other sets with descriptors, in rising order.
        push_constant_bytes: size of the range from 0, a multiple of 4; 0 for none.
    """

    __slots__ = (
        "handle",
        "handle_param",
        "layout",
        "push_constant_bytes",
        "push_set",
        "push_template",
        "push_template_param",
        "references",
        "rings",
        "set_layouts",
    )

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.handle = 0
        self.handle_param: Any = None
        self.set_layouts: list[int] = []
        self.push_set: int | None = None
        self.push_template = 0
        self.push_template_param: Any = None
        self.rings: tuple[RingSet, ...] = ()
        # The specification wants a multiple of 4; a block may end in a smaller member.
        self.push_constant_bytes = -(-layout.push_constant_bytes // 4) * 4
        self.references = 0


def create_layout(device: Device, shape: Layout) -> PipelineLayout:
    """Make the objects of a shape.

    Raises:
        UnsupportedError: it is beyond the device's limits.
        VkqueueError: the driver failed; nothing is left behind.
    """
    _check_limits(shape, device.limits)
    layout = PipelineLayout(shape)
    try:
        _create_objects(device, layout)
    except VkqueueError:
        destroy_layout(device, layout)
        raise
    return layout


def destroy_layout(device: Device, layout: PipelineLayout) -> None:
    """Destroy the objects; nothing that uses them may be recorded any more."""
    device.destroy("VkDescriptorUpdateTemplate", layout.push_template)
    for ring in layout.rings:
        device.destroy("VkDescriptorUpdateTemplate", ring.template)
    device.destroy("VkPipelineLayout", layout.handle)
    for set_layout in layout.set_layouts:
        device.destroy("VkDescriptorSetLayout", set_layout)


def _create_objects(device: Device, layout: PipelineLayout) -> None:
    shape = layout.layout
    layout.push_set = shape.push_set(device.max_push_descriptors)
    used = dict(shape.sets)
    for number in range(max(used, default=-1) + 1):
        # A number that the kernel does not use still needs a layout: an empty one, and no set is bound there.
        pushed = number == layout.push_set
        layout.set_layouts.append(_create_set_layout(device, used.get(number, ()), pushed))
    with Arena() as arena:
        info = arena.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=len(layout.set_layouts),
            pSetLayouts=layout.set_layouts,
        )
        if layout.push_constant_bytes:
            info.pushConstantRangeCount = 1
            info.pPushConstantRanges = arena.struct(
                "VkPushConstantRange", stageFlags=_COMPUTE_STAGE, size=layout.push_constant_bytes
            )
        layout.handle = device.create("VkPipelineLayout", info)
    layout.handle_param = param(layout.handle)
    _create_templates(device, layout)


def _create_set_layout(device: Device, bindings: Bindings, pushed: bool) -> int:
    with Arena() as arena:
        structs = [
            arena.struct(
                "VkDescriptorSetLayoutBinding",
                binding=number,
                descriptorType=_type(kind),
                descriptorCount=count,
                stageFlags=_COMPUTE_STAGE,
            )
            for number, kind, count in bindings
        ]
        info = arena.struct(
            "VkDescriptorSetLayoutCreateInfo",
            flags=_PUSH_LAYOUT_FLAG if pushed else 0,
            bindingCount=len(structs),
            pBindings=structs,
        )
        return device.create("VkDescriptorSetLayout", info)


def _create_templates(device: Device, layout: PipelineLayout) -> None:
    first = 0
    for number, bindings in layout.layout.sets:
        counts = {"storage": 0, "uniform": 0}
        for _, kind, count in bindings:
            counts[kind] += count
        if number == layout.push_set:
            layout.push_template = _create_template(device, layout, number, bindings, first)
            layout.push_template_param = param(layout.push_template)
        elif bindings:
            template = _create_template(device, layout, number, bindings, first)
            ring = RingSet(number, layout.set_layouts[number], template, counts["storage"], counts["uniform"])
            layout.rings = (*layout.rings, ring)
        first += counts["storage"] + counts["uniform"]


def _create_template(device: Device, layout: PipelineLayout, number: int, bindings: Bindings, first: int) -> int:
    pushed = number == layout.push_set
    with Arena() as arena:
        entries = []
        for binding_number, kind, count in bindings:
            entries.append(
                arena.struct(
                    "VkDescriptorUpdateTemplateEntry",
                    dstBinding=binding_number,
                    descriptorCount=count,
                    descriptorType=_type(kind),
                    offset=first * DESCRIPTOR_BYTES,
                    stride=DESCRIPTOR_BYTES,
                )
            )
            first += count
        info = arena.struct(
            "VkDescriptorUpdateTemplateCreateInfo",
            descriptorUpdateEntryCount=len(entries),
            pDescriptorUpdateEntries=entries,
            templateType=_TEMPLATE_PUSHED if pushed else _TEMPLATE_OF_SET,
            descriptorSetLayout=0 if pushed else layout.set_layouts[number],
            pipelineBindPoint=_COMPUTE_POINT,
            pipelineLayout=layout.handle if pushed else 0,
            set=number if pushed else 0,
        )
        return device.create("VkDescriptorUpdateTemplate", info)


def _type(kind: str) -> int:
    return _UNIFORM_BUFFER if kind == UNIFORM else _STORAGE_BUFFER


def _check_limits(shape: Layout, limits: dict[str, Any]) -> None:
    """Refuse before the driver is asked, which may crash instead of answering."""
    every = [entry for _, bindings in shape.sets for entry in bindings]
    kinds = [(kind, count) for _, kind, count in every]
    largest = max((number for number, _, _ in every), default=0)
    if largest > MAX_BINDING:
        raise UnsupportedError(f"the kernel uses binding {largest}; at most {MAX_BINDING} is supported")
    uniform = sum(count for kind, count in kinds if kind == UNIFORM)
    storage = sum(count for _, count in kinds) - uniform
    per_set = max((sum(b[2] for b in bindings) for _, bindings in shape.sets), default=0)
    for name, value in (
        ("maxBoundDescriptorSets", max((number for number, _ in shape.sets), default=-1) + 1),
        ("maxPerStageDescriptorStorageBuffers", storage),
        ("maxPerStageDescriptorUniformBuffers", uniform),
        ("maxPerStageResources", storage + uniform),
        ("maxDescriptorSetStorageBuffers", storage),
        ("maxDescriptorSetUniformBuffers", uniform),
        ("maxPerSetDescriptors", per_set),
        ("maxPushConstantsSize", -(-shape.push_constant_bytes // 4) * 4),
    ):
        if value > limits[name]:
            raise UnsupportedError(
                f"the kernel needs {value} of what the device has {limits[name]} of at most ({name})",
                {"limit": name, "value": value, "maximum": limits[name]},
            )
