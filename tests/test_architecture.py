"""The import table: who may know whom. Read from the sources, so that an import inside a function counts too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "vkqueue"

BASE = {"errors", "model", "address", "heap", "large", "mapping", "source_file", "version"}
"""Level 0: known to all."""

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "address": set(),
    "heap": set(),
    "large": set(),
    "mapping": set(),
    "source_file": {"errors"},
    "version": set(),
    "model": {"errors"},
    "wire": BASE,
    "kernels": BASE,
    "models": BASE | {"kernels"},
    "config": BASE,
    "log": BASE,
    "jobs": BASE | {"kernels", "models"},
    "gpu": BASE | {"kernels"},
    "worker": BASE | {"kernels", "gpu.backend"},
    "client": BASE | {"wire", "models"},
    "aio": BASE | {"client"},
    "daemon": BASE | {"wire", "kernels", "models", "jobs", "worker", "config", "log"},
    "bench": BASE | {"wire", "client", "models"},
    "cli": BASE | {"config", "log", "kernels", "models", "daemon.lifecycle", "client", "bench"},
    "__main__": BASE | {"cli"},
    "__init__": {"errors", "model", "version", "client"},
}
"""Package (or module at the top) → what of ours it may import beside itself; a whole package or one module of it."""

EXCEPTIONS: dict[str, set[str]] = {
    "daemon.lifecycle": {"gpu"},
    # What `devices --local`, `inspect` and `doctor` ask on a machine without a daemon; it opens drivers in a child.
    "cli.local": {"gpu.probe"},
}
"""Single modules that may import more."""

ONLY_IN: dict[str, set[str]] = {
    "vulkan": {"gpu.binding"},
    "msgpack": {"wire.codec"},
}
"""Package of somebody else → the only modules of ours that import it."""

FORBIDDEN: dict[str, set[str]] = {
    "wire": {"anyio", "asyncio", "threading"},
    "kernels": {"anyio", "asyncio", "threading"},
    "models": {"anyio", "asyncio", "threading", "time", "socket", "numpy"},
    "jobs": {"anyio", "asyncio", "threading", "time", "socket"},
    "config": {"anyio", "asyncio", "threading"},
    "log": {"anyio", "asyncio", "threading"},
    "gpu": {"anyio", "asyncio"},
    "worker": {"anyio", "asyncio"},
    "daemon": {"threading"},
}
"""Package of ours → packages that it must not import."""


def modules() -> list[str]:
    """Every module as its dotted name below `vkqueue`, a package's own as `package.__init__`."""
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))]


def tree(module: str) -> ast.Module:
    """Its source, parsed."""
    return ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())


@cache
def imports(module: str, runtime_only: bool = False) -> frozenset[str]:
    """Full dotted names that a module imports; `from a import b` counts as a.b."""
    return frozenset(_imports(tree(module), runtime_only))


def _imports(tree: ast.AST, runtime_only: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be read"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (runtime_only and (_is_type_checking(node) or isinstance(node, _LATER))):
            yield from _imports(node, runtime_only)


_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def ours(module: str, runtime_only: bool = False) -> set[str]:
    """Modules of ours that a module imports, as names below `vkqueue` with the imported name cut off."""
    found = set()
    for name in imports(module, runtime_only):
        if name.split(".")[0] == "vkqueue":
            parts = name.split(".")[1:]
            while parts and not _is_module(parts):
                parts = parts[:-1]
            found.add(".".join(parts) or "__init__")
    return found


def _is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()


def package(module: str) -> str:
    return module.split(".")[0]


def test_every_module_has_a_place() -> None:
    assert {package(module) for module in modules()} <= set(ALLOWED)


@pytest.mark.parametrize("module", modules())
def test_imports_point_down(module: str) -> None:
    own = package(module)
    allowed = ALLOWED[own] | EXCEPTIONS.get(module, set())
    wrong = {
        name for name in ours(module) if package(name) != own and name not in allowed and package(name) not in allowed
    }
    assert not wrong, f"vkqueue.{module} may not import {sorted(wrong)}"


@pytest.mark.parametrize("module", modules())
def test_packages_of_others_stay_in_their_place(module: str) -> None:
    tops = {name.split(".")[0] for name in imports(module)}
    misplaced = {top for top in tops & set(ONLY_IN) if module not in ONLY_IN[top]}
    forbidden = tops & FORBIDDEN.get(package(module), set())
    if package(module) == "client" and module not in {"client.aio", "client.aio_link", "client.aio_models"}:
        forbidden |= tops & {"anyio", "asyncio"}
    assert not misplaced | forbidden


@pytest.mark.parametrize("module", [name for name in modules() if package(name) in {"bench", "cli"}])
def test_programs_use_what_is_public(module: str) -> None:
    """Of objects that are not their own; `_asdict` of a named tuple is public."""
    private = {
        ast.unparse(node)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and node.attr != "_asdict"
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    }
    assert not private


def test_no_cycles() -> None:
    """Among imports that run when a module is imported."""
    known = set(modules())
    edges = {
        module: {f"{name}.__init__" if f"{name}.__init__" in known else name for name in ours(module, True)} - {module}
        for module in known
    }
    while leaves := {module for module, targets in edges.items() if not targets}:
        edges = {module: targets - leaves for module, targets in edges.items() if module not in leaves}
    assert not edges, f"these import each other: {edges}"
