"""The Vulkan loader, its layers, and the Python package that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from vkqueue.cli.checks import Finding, Machine, ok, problem, warning
from vkqueue.cli.checks.child import ask

_INSTALL = "install libvulkan1 (Debian, Ubuntu), vulkan-loader (Fedora) or vulkan-icd-loader (Arch)"
_INSTALL_LAYERS = "install vulkan-validationlayers (Debian, Ubuntu) or vulkan-validation-layers (Fedora, Arch)"
_VALIDATION = "VK_LAYER_KHRONOS_validation"
_VARIABLES = ("VK_INSTANCE_LAYERS", "VK_LAYER_PATH", "VK_LOADER_LAYERS_ENABLE", "VK_LOADER_LAYERS_DISABLE")


def check(machine: Machine) -> Iterator[Finding]:
    """Whether Vulkan can be called at all."""
    yield _package()
    found = ask("loader", machine.loader, machine.environ)
    if "error" in found:
        text = f"{machine.loader} cannot be opened: {found['error']}"
        yield problem("loader", text, _INSTALL)
        return
    yield ok("loader", f"{found['path']}, Vulkan {found['version']}")
    layers = found["layers"]
    if _VALIDATION in layers:
        yield ok("layers", ", ".join(layers))
    else:
        text = f"{', '.join(layers) or 'none'}; {_VALIDATION} is needed for the setting device.validation only"
        yield warning("layers", text, _INSTALL_LAYERS)
    for name in _VARIABLES:
        if machine.environ.get(name):
            yield warning(name, f"is set to {machine.environ[name]}: layers slow drivers down and can break them")


def _package() -> Finding:
    try:
        return ok("Python package vulkan", metadata.version("vulkan"))
    except metadata.PackageNotFoundError:
        return problem("Python package vulkan", "is not installed", "pip install 'vulkan>=1.3.275'")
