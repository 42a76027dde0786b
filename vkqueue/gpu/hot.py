"""The recording functions, called through ctypes so that the GIL is kept.

A cffi call releases the GIL and must win it back: beside one busy Python thread that costs milliseconds a job. These
functions never block, so they are called through ``ctypes.PYFUNCTYPE``, which keeps it.

Two tables of the same functions:

`Hot` (`device.hot`)
    Every argument is declared `c_void_p`, numbers too: it is the one ctypes type with a short cut for ints (half
    the cost of `c_uint32`), and on the 64-bit ABIs that Vulkan runs on a wider integer in the argument's register
    or stack slot is the same call. Takes ints (64 bits), None, and bytes where Vulkan wants a pointer to data.

`Raw` (`device.raw`)
    The few functions recorded for each job, with no argument types at all, at half the cost again. **Handles and
    addresses must be wrapped once with `param`**; a plain int is passed as 32 bits, bytes as a pointer to them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from vkqueue.errors import UnsupportedError
from vkqueue.gpu import binding

Function = Callable[..., Any]

# attribute -> (Vulkan name, number of arguments)
COMMANDS: dict[str, tuple[str, int]] = {
    "cmd_bind_pipeline": ("vkCmdBindPipeline", 3),
    "cmd_bind_descriptor_sets": ("vkCmdBindDescriptorSets", 8),
    "cmd_push_constants": ("vkCmdPushConstants", 6),
    "cmd_dispatch": ("vkCmdDispatch", 4),
    "cmd_pipeline_barrier": ("vkCmdPipelineBarrier", 10),
    "cmd_copy_buffer": ("vkCmdCopyBuffer", 5),
    "cmd_fill_buffer": ("vkCmdFillBuffer", 5),
    "cmd_update_buffer": ("vkCmdUpdateBuffer", 5),
    "cmd_execute_commands": ("vkCmdExecuteCommands", 3),
    "cmd_write_timestamp": ("vkCmdWriteTimestamp", 4),
    "cmd_reset_query_pool": ("vkCmdResetQueryPool", 4),
    "update_descriptor_set_with_template": ("vkUpdateDescriptorSetWithTemplate", 4),
    "update_descriptor_sets": ("vkUpdateDescriptorSets", 5),
    "destroy_buffer": ("vkDestroyBuffer", 3),
    "get_buffer_memory_requirements": ("vkGetBufferMemoryRequirements", 3),
}
OPTIONAL_COMMANDS: dict[str, tuple[str, int]] = {
    "cmd_push_descriptor_set_with_template": ("vkCmdPushDescriptorSetWithTemplateKHR", 5),
    "cmd_begin_label": ("vkCmdBeginDebugUtilsLabelEXT", 2),
    "cmd_end_label": ("vkCmdEndDebugUtilsLabelEXT", 1),
}
# These return a VkResult: negative raises, as in `binding.Calls`.
CHECKED: dict[str, tuple[str, int]] = {
    "begin_command_buffer": ("vkBeginCommandBuffer", 2),
    "end_command_buffer": ("vkEndCommandBuffer", 1),
    "reset_command_buffer": ("vkResetCommandBuffer", 2),
    "reset_command_pool": ("vkResetCommandPool", 3),
    "reset_descriptor_pool": ("vkResetDescriptorPool", 3),
    "reset_fences": ("vkResetFences", 3),
    "get_fence_status": ("vkGetFenceStatus", 2),
}
# The same for calls that make something: an injected fault is returned without making it.
CREATING: dict[str, tuple[str, int]] = {
    "create_buffer": ("vkCreateBuffer", 4),
    "bind_buffer_memory": ("vkBindBufferMemory", 4),
}
# No 64-bit number among their arguments, so nothing but `param`, small ints and bytes is needed.
RAW = (
    "cmd_bind_pipeline",
    "cmd_bind_descriptor_sets",
    "cmd_push_constants",
    "cmd_dispatch",
    "cmd_pipeline_barrier",
    "cmd_copy_buffer",
    "cmd_execute_commands",
    "update_descriptor_set_with_template",
    "cmd_push_descriptor_set_with_template",
    "cmd_begin_label",
    "cmd_end_label",
)

param: Callable[[int], Any] = ctypes.c_void_p.from_param
"""A handle or address as a prepared ctypes argument, for `Raw` (works for `Hot` too). Holds no reference."""


class Hot:
    """Recording functions that take ints; see the module's text. Attributes are the Vulkan names in snake case.

    `cmd_push_descriptor_set_with_template`, `cmd_begin_label` and `cmd_end_label` raise UnsupportedError when called
    on a device that lacks the extension. `get_fence_status` returns VK_SUCCESS or VK_NOT_READY.
    """

    __slots__ = (*COMMANDS, *OPTIONAL_COMMANDS, *CHECKED, *CREATING)

    cmd_bind_pipeline: Function
    cmd_bind_descriptor_sets: Function
    cmd_push_constants: Function
    cmd_dispatch: Function
    cmd_pipeline_barrier: Function
    cmd_copy_buffer: Function
    cmd_fill_buffer: Function
    cmd_update_buffer: Function
    cmd_execute_commands: Function
    cmd_write_timestamp: Function
    cmd_reset_query_pool: Function
    update_descriptor_set_with_template: Function
    update_descriptor_sets: Function
    destroy_buffer: Function
    get_buffer_memory_requirements: Function
    cmd_push_descriptor_set_with_template: Function
    cmd_begin_label: Function
    cmd_end_label: Function
    begin_command_buffer: Function
    end_command_buffer: Function
    reset_command_buffer: Function
    reset_command_pool: Function
    reset_descriptor_pool: Function
    reset_fences: Function
    get_fence_status: Function
    create_buffer: Function
    bind_buffer_memory: Function

    def __init__(self, resolve: Callable[[str], int]) -> None:
        for attribute, (name, count) in {**COMMANDS, **OPTIONAL_COMMANDS}.items():
            setattr(self, attribute, _command(resolve, name, (ctypes.c_void_p,) * count))
        for attribute, (name, count) in CHECKED.items():
            setattr(self, attribute, _checked(resolve, name, count))
        for attribute, (name, count) in CREATING.items():
            setattr(self, attribute, _creating(resolve, name, count))


class Raw:
    """The per-job functions without argument types: handles and addresses only through `param`."""

    __slots__ = RAW

    cmd_bind_pipeline: Function
    cmd_bind_descriptor_sets: Function
    cmd_push_constants: Function
    cmd_dispatch: Function
    cmd_pipeline_barrier: Function
    cmd_copy_buffer: Function
    cmd_execute_commands: Function
    update_descriptor_set_with_template: Function
    cmd_push_descriptor_set_with_template: Function
    cmd_begin_label: Function
    cmd_end_label: Function

    def __init__(self, resolve: Callable[[str], int]) -> None:
        names = {**COMMANDS, **OPTIONAL_COMMANDS}
        for attribute in RAW:
            setattr(self, attribute, _command(resolve, names[attribute][0], ()))


def _command(resolve: Callable[[str], int], name: str, argtypes: tuple[Any, ...]) -> Function:
    address = resolve(name)
    if not address:
        return _missing(name)
    function: Function = ctypes.PYFUNCTYPE(None, *argtypes)(address)
    return function


def _checked(resolve: Callable[[str], int], name: str, count: int) -> Function:
    address = resolve(name)
    if not address:
        return _missing(name)

    function = ctypes.PYFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * count)(address)

    # Once a batch, not once a job, so a wrapper of 0.1 µs is affordable.
    def checked(*args: Any) -> int:
        if binding.faults and (injected := binding.take_fault(name)) is not None:
            result = injected
        else:
            result = function(*args)
        if result < 0:
            raise binding.error_of(name, result)
        return result

    return checked


def _creating(resolve: Callable[[str], int], name: str, count: int) -> Function:
    address = resolve(name)
    if not address:
        return _missing(name)
    function = ctypes.PYFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * count)(address)

    def checked(*args: Any) -> int:
        injected = binding.take_fault(name) if binding.faults else None
        result: int = function(*args) if injected is None else injected
        if result < 0:
            raise binding.error_of(name, result)
        return result

    return checked


def _missing(name: str) -> Function:
    def missing(*args: object) -> None:
        raise UnsupportedError(f"the driver has no function {name}", {"call": name})

    return missing
