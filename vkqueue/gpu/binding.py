"""The one door to the Vulkan loader: raw layer of the `vulkan` package, checked calls, memory that outlives them.

Only this module imports the `vulkan` package, and only when `ffi`, `lib` or `vk` is first asked for, so that
everything of vkqueue can be imported on a machine without a Vulkan loader. Write ``binding.ffi.new(...)``, not
``from vkqueue.gpu.binding import ffi``, which would go through the stand-in each time.

The package's public functions cost 15 times its raw layer and have three traps, which this module takes away:
`VK_WHOLE_SIZE` overflows there (use `WHOLE_SIZE`), nested structs are freed before the call that reads them (use
`arena.Arena`), and some error codes of extensions have the wrong sign (`RESULTS` has them right).

Handles are plain ints everywhere outside a call; `Calls` and `arena.Arena` turn them into what cffi wants.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from vkqueue.errors import (
    CompileError,
    DeviceLostError,
    InternalError,
    InvalidError,
    OutOfDeviceMemoryError,
    UnsupportedError,
    VkqueueError,
)


class _Unloaded:
    """Stands in a global's place until its first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        load()
        return getattr(globals()[self._name], attribute)


ffi: Any = _Unloaded("ffi")
"""The cffi interface of the raw layer."""
lib: Any = _Unloaded("lib")
"""The raw functions that the loader exports."""
vk: Any = _Unloaded("vk")
"""The package's module, for its constants: ``binding.vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT``."""

WHOLE_SIZE = 2**64 - 1
"""VK_WHOLE_SIZE; the package has -1 there, which overflows. Prefer exact sizes: isolation rests on them."""

NO_LOADER = (
    "the Vulkan loader (libvulkan.so.1) was not found; install it: package libvulkan1 on Debian and Ubuntu, "
    "vulkan-loader on Fedora, vulkan-icd-loader on Arch"
)
NO_PACKAGE = "the Python package 'vulkan' is not installed; install it: pip install 'vulkan>=1.3.275'"


def load() -> None:
    """Load the loader and the raw layer, once.

    Raises:
        UnsupportedError: the loader or the Python package is missing; the text says what to install.
    """
    try:
        module = importlib.import_module("vulkan._vulkan")
    except ImportError as error:
        raise UnsupportedError(NO_PACKAGE, {"missing": "package"}) from error
    except OSError as error:
        raise UnsupportedError(NO_LOADER, {"missing": "loader"}) from error
    globals().update(ffi=module.ffi, lib=module.lib, vk=module)


# --- results -------------------------------------------------------------------------------------------------


class DescriptorPoolFullError(OutOfDeviceMemoryError):
    """This pool has no room or is fragmented: take another one. Never leaves `gpu`."""


RESULTS: dict[str, tuple[int, type[VkqueueError]]] = {
    "VK_ERROR_OUT_OF_HOST_MEMORY": (-1, OutOfDeviceMemoryError),
    "VK_ERROR_OUT_OF_DEVICE_MEMORY": (-2, OutOfDeviceMemoryError),
    "VK_ERROR_INITIALIZATION_FAILED": (-3, UnsupportedError),
    "VK_ERROR_DEVICE_LOST": (-4, DeviceLostError),
    "VK_ERROR_MEMORY_MAP_FAILED": (-5, OutOfDeviceMemoryError),
    "VK_ERROR_LAYER_NOT_PRESENT": (-6, UnsupportedError),
    "VK_ERROR_EXTENSION_NOT_PRESENT": (-7, UnsupportedError),
    "VK_ERROR_FEATURE_NOT_PRESENT": (-8, UnsupportedError),
    "VK_ERROR_INCOMPATIBLE_DRIVER": (-9, UnsupportedError),
    "VK_ERROR_TOO_MANY_OBJECTS": (-10, OutOfDeviceMemoryError),
    "VK_ERROR_FORMAT_NOT_SUPPORTED": (-11, UnsupportedError),
    "VK_ERROR_FRAGMENTED_POOL": (-12, DescriptorPoolFullError),
    "VK_ERROR_UNKNOWN": (-13, InternalError),
    "VK_ERROR_OUT_OF_POOL_MEMORY": (-1000069000, DescriptorPoolFullError),
    "VK_ERROR_INVALID_EXTERNAL_HANDLE": (-1000072003, InvalidError),
    "VK_ERROR_FRAGMENTATION": (-1000161000, DescriptorPoolFullError),
    "VK_ERROR_NOT_PERMITTED_KHR": (-1000188001, UnsupportedError),
    "VK_ERROR_VALIDATION_FAILED_EXT": (-1000011001, InternalError),
    "VK_ERROR_INVALID_SHADER_NV": (-1000012000, CompileError),
    "VK_SUCCESS": (0, InternalError),
    "VK_NOT_READY": (1, InternalError),
    "VK_TIMEOUT": (2, InternalError),
    "VK_INCOMPLETE": (5, InternalError),
}
"""Result name -> (value, the class raised when it is negative). Every other negative result is InternalError."""

VK_SUCCESS = 0
VK_NOT_READY = 1
VK_TIMEOUT = 2
VK_INCOMPLETE = 5

_BY_VALUE = {value: (name, cls) for name, (value, cls) in RESULTS.items()}


def error_of(call: str, result: int) -> VkqueueError:
    """The error for a negative result of `call`; its data has both: {call, result}."""
    name, cls = _BY_VALUE.get(result, (f"VkResult {result}", InternalError))
    return cls(f"{call} returned {name}", {"call": call, "result": name})


# --- faults and threads: what the checked layer does beside checking ------------------------------------------

faults: dict[str, list[tuple[int, int]]] = {}
"""Call name -> [(calls to let pass, result), ...], consumed from the front; filled by tests through `inject`."""
_forbidden: set[int] = set()


@contextmanager
def inject(call: str, result: str, *, nth: int = 1, times: int = 1) -> Iterator[None]:
    """For tests: from its n-th call from now, `call` is not made but returns `result`, `times` times.

    Reaches every call through `Calls` and those calls of `Hot` that return a result.
    """
    value = RESULTS[result][0]
    faults[call] = [(nth - 1, value)] + [(0, value)] * (times - 1)
    try:
        yield
    finally:
        faults.pop(call, None)


def take_fault(call: str) -> int | None:
    """The injected result of this call of `call`, None to make it."""
    plan = faults.get(call)
    if not plan:
        return None
    wait, result = plan[0]
    if wait:
        plan[0] = (wait - 1, result)
        return None
    del plan[0]
    return result


def forbid_this_thread() -> None:
    """From now on a device call from the calling thread raises: the event loop marks itself so."""
    _forbidden.add(get_ident())


def allow_this_thread() -> None:
    """Undo `forbid_this_thread`."""
    _forbidden.discard(get_ident())


class Owner:
    """Which thread a device belongs to. Unclaimed, every thread may call."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = 0

    def claim(self) -> None:
        """Make the calling thread the owner; a later claim moves the device to another thread."""
        self.thread = get_ident()

    def check(self, call: str) -> None:
        """Raises InternalError: called from another thread than the owner's."""
        if self.thread and self.thread != get_ident():
            raise InternalError(f"{call} was called from thread {get_ident()}, but the device belongs to {self.thread}")


# --- checked calls -------------------------------------------------------------------------------------------


class Calls:
    """Checked functions as attributes: ``calls.vkCreateFence(device, info, NULL, out)``.

    A negative result raises (see `RESULTS`); any other is returned. Ints are accepted for handles and pointers.
    The calls release the GIL, so anything recorded per job goes through `Hot` instead.

    Args:
        resolve: name -> address of the function as an int, 0 when there is none.
        owner: when given, calls outside `shared` are refused on threads other than the owner's.
        shared: names that any thread but a forbidden one may call.
    """

    def __init__(
        self, resolve: Callable[[str], int], owner: Owner | None = None, shared: frozenset[str] = frozenset()
    ) -> None:
        self._resolve = resolve
        self._owner = owner
        self._shared = shared

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("vk"):
            raise AttributeError(name)
        address = self._resolve(name)
        if not address:
            raise UnsupportedError(f"the driver has no function {name}", {"call": name})
        function = ffi.cast(f"PFN_{name}", address)
        checked = _checked(name, function, self._owner, name not in self._shared)
        setattr(self, name, checked)
        return checked

    def has(self, name: str) -> bool:
        """Whether the driver has this function."""
        return bool(self._resolve(name))


def _checked(name: str, function: Any, owner: Owner | None, owned: bool) -> Callable[..., int]:
    signature = ffi.typeof(function)
    returns = signature.result is ffi.typeof("VkResult")
    casts = [ctype if ctype.kind == "pointer" else None for ctype in signature.args]
    cast = ffi.cast

    def checked(*args: Any) -> int:
        if _forbidden and get_ident() in _forbidden:
            raise InternalError(f"{name} was called from the event loop's thread")
        if owner is not None and owned:
            owner.check(name)
        if faults and (injected := take_fault(name)) is not None:
            result = injected
        else:
            given = [
                cast(ctype, arg) if ctype is not None and type(arg) is int else arg
                for ctype, arg in zip(casts, args, strict=True)
            ]
            result = function(*given)
        if not returns:
            return 0
        if result < 0:
            raise error_of(name, result)
        return int(result)

    checked.__name__ = name
    return checked


def loader_calls() -> Calls:
    """Functions that need no instance."""
    return instance_calls(0)


def instance_calls(instance: int) -> Calls:
    """Functions of an instance and its physical devices."""
    handle = ffi.cast("VkInstance", instance)
    return Calls(lambda name: address(lib.vkGetInstanceProcAddr(handle, name.encode())))


def address(pointer: Any) -> int:
    """A handle or pointer as an int."""
    return int(ffi.cast("uintptr_t", pointer))


# --- counting ------------------------------------------------------------------------------------------------


class LiveObjects:
    """Counts of Vulkan objects that exist, by type; the compile thread and the worker both count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, kind: str, count: int = 1) -> None:
        """`count` more objects of this type exist (fewer, when negative)."""
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + count

    def counts(self) -> dict[str, int]:
        """Type -> number alive, without the types that have none."""
        with self._lock:
            return {kind: count for kind, count in self._counts.items() if count}
