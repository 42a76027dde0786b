"""The Vulkan instance: loader, validation layers, and what they report."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

from vkqueue.errors import UnsupportedError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.features import NEWEST, Version

log = logging.getLogger("vkqueue.gpu")

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
DEBUG_UTILS = "VK_EXT_debug_utils"
VALIDATION_FEATURES = "VK_EXT_validation_features"
NO_LAYER = (
    f"{VALIDATION_LAYER} is not installed; install it (package vulkan-validationlayers on Debian and Ubuntu, "
    "vulkan-validation-layers on Fedora and Arch), or turn validation off"
)

_SEVERITIES = {0x1: "verbose", 0x10: "info", 0x100: "warning", 0x1000: "error"}
_SEVERITY_MASK = 0x1100  # warning, error
_GENERAL, _VALIDATION = 0x1, 0x2
_MAX_MESSAGES = 10_000  # arbitrary: a daemon left running under validation must not grow without end


@dataclass(frozen=True, slots=True)
class Message:
    """What the validation layer said. `id` is its name of the rule, such as "VUID-vkCmdDispatch-None-02697"."""

    severity: str
    id: str
    text: str


class Instance:
    """A Vulkan instance. Made and closed by one thread; its devices may live on others.

    Attributes:
        handle: the VkInstance.
        calls: functions of the instance and of physical devices.
        version: the Vulkan version that devices are used as, at most.
        debug_utils: whether labels and names can be given.
        validation: whether the validation layer is on; `layer_version` is then its version.
        messages: what the validation layer reported, up to the end of `close`, newest 10,000.
        message_count: how many it reported in all.
        live: counts of the objects of the instance and its devices.
    """

    def __init__(self, version: Version, debug_utils: bool, validation: bool) -> None:
        self.handle = 0
        self.version = version
        self.debug_utils = debug_utils
        self.validation = validation
        self.layer_version = (0, 0, 0)
        self.messages: deque[Message] = deque(maxlen=_MAX_MESSAGES)
        self.message_count = 0
        self.live = binding.LiveObjects()
        self._messenger = 0
        # The driver keeps its address until the instance is gone.
        self._callback = binding.ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", self._report)
        self.calls: binding.Calls

    def _report(self, severity: int, kinds: int, data: Any, user: Any) -> int:
        ffi = binding.ffi
        name = ffi.string(data.pMessageIdName).decode(errors="replace") if data.pMessageIdName else ""
        text = ffi.string(data.pMessage).decode(errors="replace") if data.pMessage else ""
        if kinds & _VALIDATION:
            self.message_count += 1
            self.messages.append(Message(_SEVERITIES.get(severity, str(severity)), name, text))
            log.warning("validation: %s: %s", name, text)
        else:
            # The loader's complaints about drivers that are of no concern, mostly.
            log.debug("loader: %s: %s", name, text)
        return 0

    def _open(self, layers: list[str], extensions: list[str], app_name: str) -> None:
        vk = binding.vk
        with Arena() as arena:
            app = arena.struct(
                "VkApplicationInfo",
                pApplicationName=app_name,
                pEngineName="vkqueue",
                apiVersion=make_version(self.version),
            )
            info = arena.struct(
                "VkInstanceCreateInfo",
                pApplicationInfo=app,
                enabledLayerCount=len(layers),
                ppEnabledLayerNames=layers,
                enabledExtensionCount=len(extensions),
                ppEnabledExtensionNames=extensions,
            )
            links = []
            if self.debug_utils:
                # In the chain it also hears what is said while the instance is made and destroyed.
                links.append(self._messenger_info(arena))
            if VALIDATION_FEATURES in extensions:
                enables = [vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT]
                links.append(
                    arena.struct(
                        "VkValidationFeaturesEXT",
                        enabledValidationFeatureCount=len(enables),
                        pEnabledValidationFeatures=enables,
                    )
                )
            arena.chain(info, *links)
            out = arena.out("VkInstance")
            binding.loader_calls().vkCreateInstance(info, binding.ffi.NULL, out)
            self.handle = binding.address(out[0])
        self.calls = binding.instance_calls(self.handle)
        self.live.add("VkInstance")
        if self.debug_utils and self.validation:
            self._open_messenger()

    def _open_messenger(self) -> None:
        with Arena() as arena:
            out = arena.out("VkDebugUtilsMessengerEXT")
            self.calls.vkCreateDebugUtilsMessengerEXT(self.handle, self._messenger_info(arena), binding.ffi.NULL, out)
            self._messenger = binding.address(out[0])
        self.live.add("VkDebugUtilsMessengerEXT")

    def _messenger_info(self, arena: Arena) -> Any:
        return arena.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=_SEVERITY_MASK,
            messageType=_GENERAL | _VALIDATION,
            pfnUserCallback=self._callback,
        )

    def close(self) -> None:
        """Destroy it; every device must be closed. A second call does nothing."""
        if self._messenger:
            self.calls.vkDestroyDebugUtilsMessengerEXT(self.handle, self._messenger, binding.ffi.NULL)
            self.live.add("VkDebugUtilsMessengerEXT", -1)
            self._messenger = 0
        if self.handle:
            self.calls.vkDestroyInstance(self.handle, binding.ffi.NULL)
            self.live.add("VkInstance", -1)
            self.handle = 0


def open_instance(*, validation: bool = False, app_name: str = "vkqueue") -> Instance:
    """Load Vulkan and make an instance.

    Args:
        validation: turn on the validation layer, with synchronization validation.

    Raises:
        UnsupportedError: no loader, one older than Vulkan 1.1, no driver, or no validation layer; says what to
            install.
        VkqueueError: the loader or a driver failed.
    """
    calls = binding.loader_calls()
    version = _loader_version(calls)
    extensions = _extensions(calls, binding.ffi.NULL)
    layers: list[str] = []
    used = [DEBUG_UTILS] if DEBUG_UTILS in extensions else []
    layer_version = _layer_version(calls) if validation else None
    if validation:
        if layer_version is None:
            raise UnsupportedError(NO_LAYER, {"missing": VALIDATION_LAYER})
        layers.append(VALIDATION_LAYER)
        of_layer = _extensions(calls, VALIDATION_LAYER.encode())
        used += [name for name in (DEBUG_UTILS, VALIDATION_FEATURES) if name in of_layer and name not in used]
    instance = Instance(min(version, NEWEST), DEBUG_UTILS in used, validation)
    instance.layer_version = layer_version or (0, 0, 0)
    instance._open(layers, used, app_name)
    return instance


def _loader_version(calls: binding.Calls) -> Version:
    if not calls.has("vkEnumerateInstanceVersion"):
        raise UnsupportedError("the Vulkan loader is of version 1.0; 1.1 or newer is needed: upgrade libvulkan1")
    out = binding.ffi.new("uint32_t *")
    calls.vkEnumerateInstanceVersion(out)
    return split_version(out[0])[:2]


def listing(call: Any, type_name: str, *args: Any) -> Any:
    """Vulkan's two-call enumeration: an array of `type_name`. Keep the array while its items are in use."""
    count = binding.ffi.new("uint32_t *")
    while True:
        call(*args, count, binding.ffi.NULL)
        array = binding.ffi.new(f"{type_name}[]", count[0])
        result = call(*args, count, array)
        if result != binding.VK_INCOMPLETE and count[0] == len(array):
            return array


def _extensions(calls: binding.Calls, layer: Any) -> list[str]:
    """Those of a layer, or with NULL those of the loader and the drivers."""
    found = listing(calls.vkEnumerateInstanceExtensionProperties, "VkExtensionProperties", layer)
    return [binding.ffi.string(item.extensionName).decode() for item in found]


def _layer_version(calls: binding.Calls) -> tuple[int, int, int] | None:
    """The validation layer's, None when it is not installed."""
    for layer in listing(calls.vkEnumerateInstanceLayerProperties, "VkLayerProperties"):
        if binding.ffi.string(layer.layerName).decode() == VALIDATION_LAYER:
            return split_version(layer.specVersion)
    return None


def make_version(version: Version) -> int:
    """A version as Vulkan packs it."""
    return version[0] << 22 | version[1] << 12


def split_version(packed: int) -> tuple[int, int, int]:
    """(major, minor, patch)."""
    return (packed >> 22) & 0x7F, (packed >> 12) & 0x3FF, packed & 0xFFF
