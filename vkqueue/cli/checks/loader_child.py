"""Opens Vulkan libraries in a process that may crash: ``python -m vkqueue.cli.checks.loader_child KIND LIBRARY``.

KIND is "loader": prints {path, version, layers} as JSON; or "library": only opens it. Both print {error} if it cannot
be opened. Uses ctypes only, so it works where the `vulkan` package does not.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_NAME_BYTES = 256


class _LayerProperties(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * _NAME_BYTES),
        ("spec_version", ctypes.c_uint32),
        ("implementation_version", ctypes.c_uint32),
        ("description", ctypes.c_char * _NAME_BYTES),
    ]


def describe(library: Any, name: str) -> dict[str, Any]:
    """Where the loader is, its version, and the layers that it finds."""
    version = ctypes.c_uint32(1 << 22)  # 1.0: before 1.1 there was no function to ask
    if hasattr(library, "vkEnumerateInstanceVersion"):
        library.vkEnumerateInstanceVersion(ctypes.byref(version))
    count = ctypes.c_uint32()
    library.vkEnumerateInstanceLayerProperties(ctypes.byref(count), None)
    layers = (_LayerProperties * count.value)()
    library.vkEnumerateInstanceLayerProperties(ctypes.byref(count), layers)
    return {
        "path": _path(name),
        "version": f"{version.value >> 22}.{version.value >> 12 & 0x3FF}.{version.value & 0xFFF}",
        "layers": [layer.name.decode(errors="replace") for layer in layers[: count.value]],
    }


def _path(name: str) -> str:
    """The file that was loaded for a library's name."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").rpartition(" ")[2]
            if path.rpartition("/")[2].startswith(name):
                return path
    return name


def main() -> None:
    kind, name = sys.argv[1:]
    try:
        library = ctypes.CDLL(name)
        answer = describe(library, name) if kind == "loader" else {}
    except (OSError, AttributeError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
