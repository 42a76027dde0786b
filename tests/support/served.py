"""`python -m support.served serve`: as `python -m vkqueue serve`, with a device for tests.

By the environment: `VKQUEUE_TEST_MEMORY`, what kind of memory it claims to have (`gpu_rig.MEMORY`);
`VKQUEUE_TEST_ROBUSTNESS2`, "0" for a device without that extension; `VKQUEUE_TEST_WATCH`, a file to which a watch
writes what is not ordered; `VKQUEUE_TEST_FAULTS`, results of calls that are not made, as
"vkAllocateMemory 7 VK_ERROR_DEVICE_LOST, …": the seventh call from the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from support.effects import accesses
from support.gpu_rig import disguise
from support.watch import Watch, watching
from vkqueue.cli import main
from vkqueue.gpu import binding, vulkan
from vkqueue.gpu.device import Device, DeviceOptions, PhysicalDevice, open_device


def run() -> None:
    """Until the daemon ends."""
    watch_file = os.environ.get("VKQUEUE_TEST_WATCH")
    with ExitStack() as stack:
        watch = None
        if watch_file:
            lines = stack.enter_context(Path(watch_file).open("a", buffering=1))
            watch = stack.enter_context(watching(accesses(), lambda fault: print(fault, file=lines)))
        vulkan.open_device = _opener(os.environ.get("VKQUEUE_TEST_MEMORY", ""), watch)
        for fault in filter(None, os.environ.get("VKQUEUE_TEST_FAULTS", "").split(",")):
            call, nth, result = fault.split()
            binding.faults.setdefault(call, []).append((int(nth) - 1, binding.RESULTS[result][0]))
        main()


def _opener(memory: str, watch: Callable[[Device], Watch] | None) -> Callable[[PhysicalDevice, DeviceOptions], Device]:
    robustness2 = os.environ.get("VKQUEUE_TEST_ROBUSTNESS2") != "0"

    def opened(physical: PhysicalDevice, options: DeviceOptions) -> Device:
        device = open_device(physical, replace(options, robustness2=robustness2))
        disguise(device, memory)
        if watch is not None:
            watch(device)
        return device

    return opened


if __name__ == "__main__":
    run()
