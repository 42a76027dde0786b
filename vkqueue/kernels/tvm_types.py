"""Types of kernel arguments as TVM writes them: three numbers of DLPack's in bytes, a name in JSON."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from vkqueue.errors import InvalidError, brief

# DLPack's type codes; what is not named by TVM's own text form has no place here.
_CODES = {
    "int": 0, "uint": 1, "float": 2, "handle": 3, "bfloat": 4, "complex": 5, "bool": 6, "float8_e3m4": 7,
    "float8_e4m3": 8, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12,
    "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14, "float6_e2m3fn": 15, "float6_e3m2fn": 16, "float4_e2m1fn": 17,
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_FIXED_BITS = {code: int(name[5]) for name, code in _CODES.items() if code >= 7}  # the text says the bits already


class DataType(NamedTuple):
    """A DLDataType."""

    code: int
    bits: int
    lanes: int

    @property
    def is_handle(self) -> bool:
        return self.code == _CODES["handle"]

    def __str__(self) -> str:
        name = _NAMES.get(self.code, f"code{self.code}_")
        bits = str(self.bits)
        if self.is_handle and self == HANDLE or self[:2] in _BOOLS:
            name, bits = name if self.is_handle else "bool", ""
        elif _FIXED_BITS.get(self.code) == self.bits:  # they are part of the name
            bits = ""
        return name + bits + (f"x{self.lanes}" if self.lanes != 1 else "")

    @classmethod
    def from_text(cls, text: str) -> DataType:
        """The type that TVM writes so.

        Raises:
            InvalidError: TVM writes none so.
        """
        match = _TYPE.fullmatch(text)
        if match is not None:
            base, name, bits, lanes = match["base"], match["name"], match["bits"], int(match["lanes"] or 1)
            code = _CODES.get(base, -1)
            if base == "handle" and lanes == 1:
                return HANDLE
            if code in _FIXED_BITS or base == "bool":
                return cls(code, _FIXED_BITS.get(code, 8), lanes)
            if name in _SIZED and base == name + (bits or "?") and int(bits) < 256 and lanes < 65536:
                return cls(_CODES[name], int(bits), lanes)
        raise InvalidError(f"{brief(text)} is no type that TVM writes, such as handle, int32 or float32")


_TYPE = re.compile(r"(?P<base>(?P<name>[a-wyz]+)(?P<bits>[0-9]{1,3})?[a-wyz0-9_]*)(x(?P<lanes>[1-9][0-9]{0,4}))?")
_SIZED = ("int", "uint", "float", "bfloat")
_BOOLS = ((6, 8), (1, 1))  # the second is what "bool" was before DLPack had a code for it
HANDLE = DataType(3, 64, 1)


@lru_cache(256)
def data_type(raw: bytes) -> DataType:
    """The type that four bytes say. Modules repeat a few, so that most are one object."""
    return DataType(*struct.unpack("<BBH", raw))
