"""Puts the layers of settings together: built-in defaults, file, environment, command line, later over earlier.

The environment is read here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from vkqueue.address import default_socket
from vkqueue.config import SECTIONS, Config, ConfigError, from_toml, nearest


def load(path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Config:
    """All layers together, with the paths that depend on the user filled in.

    Args:
        path: the config file, None for none.
        overrides: section → key → value, from the command line.

    Raises:
        ConfigError: naming the layer and the key.
    """
    config = from_toml(path) if path else Config()
    config = config.replace(from_environ(environ), "environment")
    config = config.replace(overrides, "command line")
    places: dict[str, dict[str, str]] = {"daemon": {}, "device": {}}
    if not config.daemon.socket:
        places["daemon"]["socket"] = default_socket(environ, os.getuid())
    if config.device.cache_dir == "auto":
        places["device"]["cache_dir"] = _default_cache_dir(environ)
    return config.replace(places, "defaults")


SWITCHES: dict[str, tuple[str, str, Callable[[bool], Any]]] = {
    "VKQUEUE_DISABLE_PUSH_DESCRIPTORS": ("device", "descriptors", lambda on: "sets" if on else "auto"),
    "VKQUEUE_DISABLE_DEDICATED_ALLOCATION": ("device", "dedicated_allocation", lambda on: not on),
    "VKQUEUE_ENABLE_VALIDATION_LAYERS": ("device", "validation", lambda on: on),
}
"""Short switches in the manner of TVM's Vulkan runtime: variable → section, key, value for on or off."""


def from_environ(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The settings in `VKQUEUE_SECTION_KEY` variables and in the short switches, as a mapping for `replace`.

    Raises:
        ConfigError: a variable of a section has no such key, or its text is not of the key's type.
    """
    values: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for variable in sorted(environ):
        text = environ[variable]
        try:
            if variable in SWITCHES:
                section, key, value_for = SWITCHES[variable]
                value = value_for(_parsed_bool(text))
            elif variable == "VKQUEUE_DEBUG_SHADER_SAVEPATH":
                section, key, value = "device", "dump_shaders", text
            else:
                section, _, key = variable.removeprefix("VKQUEUE_").lower().partition("_")
                if not variable.startswith("VKQUEUE_") or section not in SECTIONS:
                    continue  # such as VKQUEUE_SOCKET, which is the clients'
                value = parsed(section, key, text)
            values.setdefault(section, {})[key] = value
        except ValueError as exc:
            problems.append(f"{variable}={text}: {exc}")
    if problems:
        raise ConfigError("environment", problems)
    return values


def parsed(section: str, key: str, text: str) -> Any:
    """The value that `text` stands for, by the key's type; lists are separated by commas.

    Raises:
        ValueError: no such key, or text that is not of its type. Bounds are for `Config.replace` to check.
    """
    known = SECTIONS.get(section, {}).get(key)
    if known is None:
        raise ValueError(f"no such setting{nearest(key, SECTIONS.get(section, {}))}")
    if isinstance(known.default, bool):
        return _parsed_bool(text)
    if isinstance(known.default, int):
        return int(text, 0)
    if isinstance(known.default, float):
        return float(text)
    if isinstance(known.default, tuple):
        words = [word.strip() for word in text.split(",") if word.strip()]
        if "devices" in known.metadata:
            return [int(word) if word.isdecimal() else word for word in words]
        return words
    return text


def _parsed_bool(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.strip().lower() not in words:
        raise ValueError("expected 1 or 0 (or true/false, yes/no, on/off)")
    return words[text.strip().lower()]


def _default_cache_dir(environ: Mapping[str, str]) -> str:
    """systemd's `CacheDirectory=`, else the user's cache folder, else none."""
    if environ.get("CACHE_DIRECTORY"):
        return environ["CACHE_DIRECTORY"].partition(":")[0]
    if environ.get("XDG_CACHE_HOME"):
        return f"{environ['XDG_CACHE_HOME']}/vkqueue"
    return f"{environ['HOME']}/.cache/vkqueue" if environ.get("HOME") else ""
