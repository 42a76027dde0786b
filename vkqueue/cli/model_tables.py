"""Statistics of models as tables, and configurations as TOML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vkqueue.cli.output import add_row, show, table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# JSON's strings are TOML's but for these, which TOML (DEL) or a terminal does not take as they are.
_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def show_statistics(found: Sequence[Mapping[str, Any]]) -> None:
    """A row for each version."""
    made = table(
        "model", ">version", ">requests", ">failed", ">turned away", ">samples", ">batches", ">samples/batch",
        ">wait ms", ">run ms",
    )  # fmt: skip
    for one in found:
        stats = one.get("inference_stats", {})
        samples, batches = one.get("inference_count", 0), one.get("execution_count", 0)
        refused = sum(one.get(key, 0) for key in ("rejected", "cancelled", "expired"))
        add_row(
            made, one["name"], one["version"], _count(stats, "success"), _count(stats, "fail"), refused, samples,
            batches, f"{samples / batches:.2f}" if batches else "", _mean(stats.get("queue")),
            _mean(stats.get("compute_infer")),
        )  # fmt: skip
    show(made)


def show_batches(one: Mapping[str, Any]) -> None:
    """How large batches were and how long they ran; why they were closed."""
    made = table(">batch size", ">batches", ">mean ms", title=f"{one['name']} {one['version']}")
    for batch in one.get("batch_stats", ()):
        add_row(made, batch["batch_size"], batch["compute_infer"]["count"], _mean(batch["compute_infer"]))
    if one.get("batch_stats"):
        show(made)
    closed = one.get("closed")
    if closed:
        made = table("closed because", ">batches")
        for reason, count in closed.items():
            add_row(made, reason, count)
        show(made)


def _count(stats: Mapping[str, Any], key: str) -> int:
    return int(stats.get(key, {}).get("count", 0))


def _mean(stat: Mapping[str, Any] | None) -> str:
    """Milliseconds of one, of Triton's {count, ns}."""
    if not stat or not stat.get("count"):
        return ""
    return f"{stat['ns'] / stat['count'] / 1e6:.3f}"


def toml_of(values: Mapping[str, Any]) -> str:
    """A configuration as TOML: what is short first, then its tables."""
    return "\n".join(_tables(values, "")).strip()


def without_files(config: Mapping[str, Any]) -> str:
    """What of a configuration lies in no file, because a client sent it: "kernels a, b and the weights"; mostly empty.
    A `config.toml` has to name the files.
    """
    kernels = [_key(kernel["name"]) for kernel in config.get("kernel", ()) if not kernel.get("file")]
    found = [f"kernel{'s' if len(kernels) > 1 else ''} {', '.join(kernels)}"] if kernels else []
    operands = [
        operand for node in config.get("node", ()) for operand in (*node.get("args", ()), *node.get("copy", ()))
    ]
    names = [operand if isinstance(operand, str) else operand[0] for operand in operands]
    if "weights" not in config and any(name.startswith("weights.") for name in names):
        found.append("the weights")
    return " and ".join(found)


def _tables(values: Mapping[str, Any], path: str) -> Iterator[str]:
    later: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{path}.{_key(key)}" if path else _key(key)
        if (isinstance(value, dict) and value) or _is_tables(value):
            later.append((name, value))
        elif value is not None:
            yield f"{_key(key)} = {_inline(value)}"
    for name, value in later:
        if isinstance(value, dict):
            yield f"\n[{name}]"
            yield from _tables(value, name)
            continue
        for item in value:
            yield f"\n[[{name}]]"
            for key, inner in item.items():
                if inner is not None:
                    yield f"{_key(key)} = {_inline(inner)}"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan
    return json.dumps(value)  # booleans and numbers are written alike


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).translate(_ESCAPES)


def _key(key: Any) -> str:
    text = str(key)
    return text if _BARE.fullmatch(text) else _string(text)
