"""Every driver manifest (ICD) and its library, each tried in processes of their own; and the devices they come to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vkqueue.cli.checks import Finding, Machine, ok, problem, warning
from vkqueue.cli.checks.child import TIMEOUT_S, ask
from vkqueue.cli.local import DRIVER_FILES, ProbeResult, manifests, probe_devices
from vkqueue.cli.output import size

NO_DRIVER = (
    "install mesa-vulkan-drivers (Debian, Ubuntu, Fedora: AMD, Intel, and lavapipe, which needs no GPU), or for NVIDIA "
    "nvidia-vulkan-icd (Debian), libnvidia-gl-VERSION (Ubuntu), xorg-x11-drv-nvidia (Fedora, RPM Fusion)"
)
NVIDIA = (
    "install nvidia-vulkan-icd (Debian), libnvidia-gl-VERSION (Ubuntu) or xorg-x11-drv-nvidia (Fedora, RPM Fusion) of "
    "the kernel driver's version; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility"
)
_VARIABLES = (DRIVER_FILES, "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
# So many drivers at once; most wait for their processes. Arbitrary.
_AT_ONCE = 4


def check(machine: Machine) -> Iterator[Finding]:
    """Each driver by itself."""
    yield from _variables(machine)
    found = manifests(machine.environ)
    if not found:
        yield problem("drivers", "there is no driver manifest", NO_DRIVER)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda path: examine(path, machine), found)
    nvidia = (machine.proc / "driver/nvidia/version").exists() or any(machine.dev.glob("nvidia[0-9]*"))
    if nvidia and not any("nvidia" in path.name for path in found) and not _overridden(machine):
        yield warning("NVIDIA", "its kernel driver is there, but no manifest of its Vulkan driver", NVIDIA)


def _overridden(machine: Machine) -> bool:
    return any(machine.environ.get(name) for name in _VARIABLES[:2])


def _variables(machine: Machine) -> Iterator[Finding]:
    """What keeps the loader from looking in the usual places."""
    for name in _VARIABLES:
        value = machine.environ.get(name)
        if not value:
            continue
        absent = [entry for entry in value.split(":") if entry and not Path(entry).exists()]
        if absent:
            yield problem(name, f"names what does not exist: {', '.join(absent)}", f"correct it, or unset {name}")
        else:
            yield ok(name, f"is set: {value}")


def examine(path: Path, machine: Machine) -> Finding:
    """One driver: its manifest, its library, its devices."""
    name = str(path)
    owner = f"reinstall the package that has it (dpkg -S {path}, rpm -qf {path}), or remove the file"
    try:
        library = read_manifest(path)
    except (OSError, ValueError) as error:
        return problem(name, f"broken manifest: {error}", owner)
    said = ask("library", library, machine.environ)
    if "error" in said:
        return problem(name, f"its library {library} cannot be opened: {said['error']}", owner)
    only = {DRIVER_FILES: str(path), "VK_ICD_FILENAMES": str(path)}
    rest = {key: value for key, value in machine.environ.items() if key not in _VARIABLES}
    result = probe_devices({**rest, **only}, TIMEOUT_S)
    return _judged(name, result)


def _judged(name: str, result: ProbeResult) -> Finding:
    if result.excluded:
        return problem(name, f"the driver {result.excluded[0][1]}", "update it, or remove the manifest")
    broken = [f"{device['name']}: {device['error']}" for device in result.devices if device["error"]]
    if broken:
        return problem(name, "; ".join(broken), "update the driver; its devices cannot be opened")
    if result.devices:
        return ok(name, ", ".join(describe(device) for device in result.devices))
    if result.status in ("no_loader", "no_package"):
        return warning(name, "its library opens; nothing more can be tried while Vulkan cannot be called")
    if result.status == "no_device":
        return ok(name, "no device of this driver's")  # a distribution installs the drivers of all vendors
    if result.status == "no_driver":
        advice = "VK_LOADER_DEBUG=error vulkaninfo (package vulkan-tools) tells why"
        return problem(name, "the loader does not take this driver", advice)
    return problem(name, result.message)


def read_manifest(path: Path) -> str:
    """The library that a manifest names, as the loader opens it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no manifest.
    """
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    icd = document.get("ICD") if isinstance(document, dict) else None
    fields = icd if isinstance(icd, dict) else {}
    for name in ("library_path", "api_version"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise ValueError(f'it has no "{name}" in "ICD", so the loader skips it')
    library: str = fields["library_path"]
    # A bare name is searched for by the dynamic linker; a relative path counts from the manifest.
    return library if "/" not in library else os.path.normpath(path.parent / library)


def describe(device: Mapping[str, Any]) -> str:
    """A device in a few words."""
    memory = size(device["memory_bytes"])
    return f"{device['name']} ({device['type']}, Vulkan {device['api_version']}, {memory}, {device['driver']})"


def check_devices(machine: Machine) -> tuple[list[Finding], bool]:
    """What the daemon would find with all drivers together, and whether one of the devices works."""
    result = probe_devices(machine.environ, TIMEOUT_S)
    working = [device for device in result.devices if device["error"] is None]
    findings = [ok(f"device {device['index']}", describe(device)) for device in working]
    for device in result.devices:
        if device["error"] is not None:
            findings.append(problem(f"device {device['index']}", f"{device['name']}: {device['error']}"))
    if not working:
        findings.append(problem("devices", result.message or "no device can be opened"))
    elif all(device["type"] == "cpu" for device in working):
        findings.append(warning("devices", "only software devices work: kernels run on the CPU"))
    return findings, bool(working)
