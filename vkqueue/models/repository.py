"""A directory of models: which there are, and the files of one.

    DIR/NAME/config.toml    what the model is; see docs/models.md
    DIR/NAME/1/, 2/, …      versions; files that the configuration names are looked for here first,
    DIR/NAME/…              then here. A model without such folders is version 1.

Files stay within the model's folder or `DIR`: paths that are absolute or have `..` are refused, and so is what a
symbolic link leads to outside. So models of a repository may have files in common by links, and `DIR/NAME` may be a
link to anywhere. That holds against configurations and archives of others; who may write to a folder while it is read
is trusted.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkqueue.errors import InvalidError, NotFoundError, VkqueueError, brief
from vkqueue.models import safetensors
from vkqueue.models.source import KernelSource, ModelSource, Weight
from vkqueue.source_file import LANGUAGES, read_source

CONFIG = "config.toml"

# All arbitrary, and far above what models have.
MAX_CONFIG_BYTES = 1 << 20
MAX_CODE_BYTES = 16 << 20
MAX_MODELS = 4096
MAX_VERSIONS = 1024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_LANGUAGES = {".spv": "spirv", **LANGUAGES}


@dataclass(frozen=True, slots=True)
class Found:
    """A model of a repository.

    Attributes:
        versions: those that its policy selects, ascending; none where it cannot be told.
        reason: why it cannot be loaded; empty if nothing is known against it (its files are not read yet).
    """

    name: str
    versions: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Folder:
    """Where a model's files may be.

    Attributes:
        model: free of links, as is `within`.
        within: files lie in one of these.
    """

    model: Path
    within: tuple[Path, ...]

    @property
    def config(self) -> Path:
        return self.model / CONFIG

    def versions(self) -> list[int]:
        """Numbers of the version folders, ascending; [1] where there is none.

        Raises:
            InvalidError: too many.
            OSError
        """
        with os.scandir(self.model) as entries:
            found = sorted(int(e.name) for e in entries if _VERSION.fullmatch(e.name) and e.is_dir())
        if len(found) > MAX_VERSIONS:
            raise InvalidError(f"{self.model} has {len(found)} versions; at most {MAX_VERSIONS} are taken")
        return found or [1]

    def find(self, name: object, version: int, what: str) -> Path:
        """The file that a configuration names.

        Raises:
            InvalidError: the name is no relative path, or leads out.
            NotFoundError: there is no such file.
        """
        parts = name.split("/") if isinstance(name, str) else []
        if not parts or "\0" in str(name) or any(part in ("", ".", "..") for part in parts):
            raise InvalidError(
                f"{what}: expected a path below the model's folder, without '..' and not absolute, got {brief(name)}"
            )
        places = [self.model / str(version), self.model]
        for place in places:
            path = place.joinpath(*parts)
            if os.path.lexists(path):
                return self.inside(path, what)
        raise NotFoundError(f"{what}: there is no {brief(name)} in {' or '.join(map(str, places))}")

    def inside(self, path: Path, what: str) -> Path:
        """The real file, free of links.

        Raises:
            InvalidError: it is outside.
            NotFoundError: a link leads nowhere, or to itself.
        """
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a circle, before Python 3.13
            raise NotFoundError(f"{what}: {path} cannot be opened: {error}") from None
        if not any(real.is_relative_to(folder) for folder in self.within):
            raise InvalidError(f"{what}: {path} is a link to {real}, outside of {self.within[-1]}; copy the file there")
        return real


class Repository:
    """The models below a directory. Each call reads the disk anew, and blocks for it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def scan(self) -> list[Found]:
        """All models, by name. One that is broken is there with its reason, and hides no other.

        Folders whose name starts with a dot, and ordinary files, are passed over.

        Raises:
            NotFoundError: the directory is not there or cannot be read.
            InvalidError: it has over `MAX_MODELS` folders.
        """
        try:
            with os.scandir(self.root) as entries:
                names = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
        except OSError as error:
            raise NotFoundError(f"the repository of models cannot be read: {error}") from None
        if len(names) > MAX_MODELS:
            raise InvalidError(f"{self.root} has {len(names)} folders; at most {MAX_MODELS} models are taken")
        return [self.look(name) for name in names]

    def look(self, name: str) -> Found:
        """What is known of one model before its files are read; never raises for what is wrong with it."""
        try:
            folder = self._folder(name)
            return Found(name, tuple(_selected(folder, _config(folder, name))))
        except VkqueueError as error:
            return Found(name, (), error.message)
        except OSError as error:
            return Found(name, (), f"it cannot be read: {error}")

    def read(self, name: str, version: int | None = None) -> ModelSource:
        """One version of a model, the newest that its policy selects if None, with its files (see `read_model`).

        Raises:
            NotFoundError: there is no such model, version or file.
            InvalidError: it is wrong; the message starts with the file.
        """
        return _read(self._folder(name), name, version)

    def _folder(self, name: str) -> _Folder:
        check_name(name)
        model = self.root / name
        if not model.is_dir():
            raise NotFoundError(f"the repository has no model {name!r} (no folder {model})")
        real = model.resolve()
        return _Folder(real, (real, self.root.resolve()))


def check_name(name: str) -> None:
    """Raises InvalidError for what cannot be a model's name: it stands in paths, in lines of the log, and in words of
    the command line."""
    if not _NAME.fullmatch(name):
        raise InvalidError(
            f"{brief(name)} cannot be a model's name: letters, digits, '_', and, but first, '-' and '.'; at most 128"
        )


def read_model(directory: str | os.PathLike[str], version: int | None = None) -> ModelSource:
    """A model from its own folder, laid out as in a repository; the newest version that its policy selects if None.

    Weights are views of the mapped file (see `safetensors.map_file`).

    Raises:
        NotFoundError: there is no such folder, version or file.
        InvalidError: it is wrong; the message starts with the file.
    """
    path = Path(directory)
    if not path.is_dir():
        raise NotFoundError(f"there is no folder {path} to read a model from")
    real = path.resolve()
    return _read(_Folder(real, (real,)), None, version)


def _config(folder: _Folder, name: str | None) -> dict[str, Any]:
    """The configuration, as far as it has to be right for the files to be found.

    Raises:
        NotFoundError: there is none.
        InvalidError: it is no TOML; it names another model than `name`.
    """
    path = folder.config
    if not os.path.lexists(path):
        raise NotFoundError(f"there is no {path}, which says what the model is")
    try:
        config = tomllib.loads(_bytes(folder.inside(path, CONFIG), MAX_CONFIG_BYTES).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML
        raise InvalidError(f"{path}: this is no TOML: {error}") from None
    own = config.get("name", name)
    if name is not None and own != name:
        raise InvalidError(f"{path}: name is {brief(own)}, the folder's {name!r}; leave it out, or make them equal")
    if not (own is None or (isinstance(own, str) and _NAME.fullmatch(own))):
        raise InvalidError(f"{path}: name: {brief(own)} cannot be a model's name")
    return config


def _selected(folder: _Folder, config: Mapping[str, Any]) -> list[int]:
    """The versions that the policy selects, ascending.

    Raises:
        InvalidError: the policy is none; a version of it is not there.
    """
    versions = folder.versions()
    policy = config.get("version_policy", {"latest": {}})
    if isinstance(policy, dict) and len(policy) == 1:
        kind, how = next(iter(policy.items()))
        match (kind, how):
            case ("all", dict()) if not how:
                return versions
            case ("latest", dict()) if how.keys() <= {"num_versions"} and _is_count(how.get("num_versions", 1)):
                return versions[-how.get("num_versions", 1) :]
            case ("specific", {"versions": [_, *_] as wanted}) if len(how) == 1 and all(map(_is_count, wanted)):
                absent = sorted(set(wanted) - set(versions))
                if absent:
                    raise InvalidError(f"{folder.config}: version_policy: there is no folder of version {absent[0]}")
                return sorted(set(wanted))
    raise InvalidError(
        f"{folder.config}: version_policy: expected {{latest = {{num_versions = 1}}}}, {{all = {{}}}} or "
        f"{{specific = {{versions = [1, 3]}}}}, got {brief(policy)}"
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _read(folder: _Folder, name: str | None, version: int | None) -> ModelSource:
    try:
        config = _config(folder, name)
        if version is None:
            version = _selected(folder, config)[-1]
        elif version not in (versions := folder.versions()):
            known = ", ".join(map(str, versions))
            raise NotFoundError(f"{folder.model} has no version {version}; it has {known}", {"versions": versions})
        kernels = {kernel.name: kernel for kernel in _kernels(folder, config, version)}
        weights = _weights(folder, config, version)
    except OSError as error:
        raise NotFoundError(f"{folder.model}: a file cannot be read: {error}") from None
    return ModelSource(name or config.get("name", folder.model.name), version, config, kernels, weights, folder.model)


def _kernels(folder: _Folder, config: Mapping[str, Any], version: int) -> Iterator[KernelSource]:
    entries = config.get("kernel", [])
    if not isinstance(entries, list):
        raise InvalidError(f"{folder.config}: kernel: write [[kernel]], one for each, got {brief(entries)}")
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        what = f"{folder.config}: [[kernel]] {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InvalidError(f"{what}: a kernel needs name, which nodes call it by, and file")
        what = f"{what} {brief(entry['name'])}"
        if entry["name"] in seen:
            raise InvalidError(f"{what}: the name is there twice")
        seen.add(entry["name"])
        entry_point = entry.get("entry")
        if not (entry_point is None or isinstance(entry_point, str)):
            raise InvalidError(f"{what}: entry: expected the name of an entry point, got {brief(entry_point)}")
        yield _kernel(
            folder, folder.find(entry.get("file"), version, f"{what}: file"), entry["name"], entry_point, what
        )


def _kernel(folder: _Folder, path: Path, name: str, entry: str | None, what: str) -> KernelSource:
    language = _LANGUAGES.get(path.suffix.lower())
    if language is None:
        raise InvalidError(f"{what}: {path.name}: expected a file that ends in one of {', '.join(_LANGUAGES)}")
    if language == "spirv":
        return KernelSource(name, _bytes(path, MAX_CODE_BYTES), language, entry, str(path))

    def check(file: Path) -> None:
        folder.inside(file, what)
        if file.stat().st_size > MAX_CODE_BYTES or not file.is_file():
            raise InvalidError(f"{what}: {file} is no file of at most {MAX_CODE_BYTES} bytes")

    source = read_source(path, language, [str(folder.model)], check)
    return KernelSource(name, source.text.encode(), language, entry, str(path), source.includes)


def _weights(folder: _Folder, config: Mapping[str, Any], version: int) -> dict[str, Weight]:
    section = config.get("weights", {})
    if not isinstance(section, dict):
        raise InvalidError(f'{folder.config}: weights: write [weights] with file = "…", got {brief(section)}')
    if "file" not in section:
        return {}
    return safetensors.read(folder.find(section["file"], version, f"{folder.config}: [weights] file"))


def _bytes(path: Path, most: int) -> bytes:
    """A file's bytes, not mapped: it may be written again in its place.

    Raises:
        InvalidError: it is no file, or too long.
        OSError
    """
    if not path.is_file():
        raise InvalidError(f"{path} is no file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidError(f"{path} has over {most} bytes")
    return data
