"""BuiltIn where drivers do not look for it: they take what is decorated for a variable, and crash."""

from __future__ import annotations

import struct

import pytest
from support.cases import by_name, of_kind

from vkqueue.errors import InvalidError
from vkqueue.kernels.spirv import parse

DECORATE, BUILT_IN = 71, 11


def decorated(spirv: bytes, change: dict[int, int], *, built_in: int | None = None) -> bytes:
    """The module with the targets of its BuiltIn decorations exchanged."""
    words = list(struct.unpack(f"<{len(spirv) // 4}I", spirv))
    at = 5
    while at < len(words):
        op, count = words[at] & 0xFFFF, words[at] >> 16
        if op == DECORATE and words[at + 2] == BUILT_IN and (built_in is None or words[at + 3] == built_in):
            words[at + 1] = change.get(words[at + 1], words[at + 1])
        at += count
    return struct.pack(f"<{len(words)}I", *words)


def test_a_built_in_stands_on_a_variable_or_workgroup_size_on_a_constant() -> None:
    spirv = by_name("glsl_axpy_O").spirv
    module = parse(spirv)
    targets = [id for id, found in module.decorations.items() if BUILT_IN in found]
    variable = next(id for id in targets if id in module.variables)
    constant = next(id for id in targets if id in module.constants)
    type_ = next(iter(module.types))
    for old, new in ((variable, type_), (variable, constant), (constant, variable), (constant, type_)):
        with pytest.raises(InvalidError, match="BuiltIn|decoration 11 is given"):
            parse(decorated(spirv, {old: new}))


@pytest.mark.parametrize("case", of_kind("run") + of_kind("run", tvm=True), ids=str)
def test_no_producer_puts_it_elsewhere(case: object) -> None:
    parse(case.spirv)  # type: ignore[attr-defined]
