"""The corpus: SPIR-V modules of many compilers, what they are, and runs with expected results.

``tests/corpus/PRODUCER/NAME.json`` and ``tests/corpus_tvm/VERSION/NAME.json`` describe one case each; the
files they name lie beside them, and tests/corpus/README.md explains the fields. Typical use::

    @pytest.mark.parametrize("case", of_kind("run"), ids=str)
    def test_it(case):
        if case.missing(limits, features, api_version):
            pytest.skip(...)
        for run in case.runs:
            arrays = run.arrays()                 # fresh contents by buffer name
            for entry in run.entries:             # what to bind, in (set, binding, index) order
                ...arrays[entry.array]...
            run.check(after, device_name)         # after: bytes-likes or arrays by buffer name
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parent.parent

SUBGROUP_BITS = {
    "BASIC": 1, "VOTE": 2, "ARITHMETIC": 4, "BALLOT": 8,
    "SHUFFLE": 16, "SHUFFLE_RELATIVE": 32, "CLUSTERED": 64, "QUAD": 128,
}  # fmt: skip

_FORMATS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "bool32": "I",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One descriptor to bind. `array` names the contents; two entries with one `array` share one buffer."""

    set: int
    binding: int
    index: int
    kind: str
    """"storage" or "uniform"."""
    array: str
    expected: bool
    """Whether the run says what it holds afterwards, so the kernel must be seen to write it (unless the
    expectation is that nothing changes)."""


class Run:
    """One launch with known inputs and results.

    Attributes:
        grid: work groups.
        spec: specialization by id.
        launch, scalars: of TVM cases: launch values, and [{name, type, value}]; else empty.
    """

    def __init__(self, case: Case, doc: dict[str, Any]) -> None:
        self.case = case
        self.doc = doc
        self.grid: tuple[int, int, int] = tuple(doc["grid"])
        self.spec: dict[int, int | float] = {int(k): v for k, v in doc.get("spec", {}).items()}
        self.launch: list[int] = doc.get("launch", [])
        self.scalars: list[dict[str, Any]] = doc.get("scalars", [])

    @cached_property
    def entries(self) -> list[Entry]:
        """What to bind, in (set, binding, index) order; TVM's uniform buffer for scalars is among them."""
        entries = [
            Entry(
                set=b["set"],
                binding=b["binding"],
                index=b.get("index", 0),
                kind=b.get("kind", "storage"),
                array=b["alias"] if "alias" in b else b["name"],
                expected="expect" in b or "expect_expr" in b,
            )
            for b in self.doc["buffers"]
        ]
        return sorted(entries, key=lambda e: (e.set, e.binding, e.index))

    def arrays(self) -> dict[str, Array]:
        """Fresh contents of each buffer before the run, by name."""
        return {b["name"]: _contents(b) for b in self.doc["buffers"] if "alias" not in b}

    @property
    def push(self) -> dict[str, Any] | bytes | None:
        """The scalars as the case gives them: a map by member, raw bytes, or None."""
        if "push_hex" in self.doc:
            return bytes.fromhex(self.doc["push_hex"])
        values: dict[str, Any] | None = self.doc.get("push")
        return values

    def push_bytes(self) -> bytes:
        """The push constants as bytes, laid out by the case's own reflection."""
        push = self.push
        if push is None:
            return b""
        if isinstance(push, bytes):
            return push
        block = self.case.reflection["push_constants"]
        data = bytearray(block["size"])
        for member in block["members"]:
            value = push[member["name"]]
            code = _FORMATS[member["type"]]
            step = member.get("stride", struct.calcsize(code))
            for i, item in enumerate(value if isinstance(value, list) else [value]):
                struct.pack_into("<" + code, data, member["offset"] + i * step, item)
        return bytes(data)

    def check(self, after: Mapping[str, Any], device_name: str = "") -> None:
        """Compare contents after the run, by buffer name, with what is expected.

        On a device that the case deviates on nothing is compared.

        Raises:
            AssertionError: naming the buffer, and the first places that differ; also when a buffer with an
                expectation is missing from `after`.
        """
        if self.case.deviates(device_name):
            return
        out: dict[str, Array] = {}
        for b in self.doc["buffers"]:
            if "alias" not in b and b["name"] in after:
                data = np.frombuffer(bytes(after[b["name"]]), b["dtype"])
                out[b["name"]] = data.reshape(_contents(b).shape)
        for b in self.doc["buffers"]:
            if "expect" in b or "expect_expr" in b:
                assert b["name"] in out, f"{self.case}: no result for buffer {b['name']}"
                self._compare(b, out)

    def _compare(self, b: dict[str, Any], out: dict[str, Array]) -> None:
        result = out[b["name"]]
        if "expect_dtype" in b:
            result = result.reshape(-1).view(b["expect_dtype"])
        expected = np.asarray(b["expect"] if "expect" in b else self._evaluate(b["expect_expr"], out))
        expected = expected.reshape(result.shape)
        if result.dtype.kind in "iu" and expected.dtype.kind in "iu":
            good = result == expected
            wanted: Array = expected
        else:
            got, wanted = result.astype(np.float64), expected.astype(np.float64)
            bound = self.doc.get("atol", 0) + self.doc.get("rtol", 0) * np.abs(wanted)
            with np.errstate(invalid="ignore"):
                good = (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (np.abs(got - wanted) <= bound)
        if not good.all():
            wrong = np.argwhere(~good)
            where = ", ".join(str(tuple(map(int, w))) for w in wrong[:4])
            first = tuple(wrong[0])
            raise AssertionError(
                f"{self.case}: buffer {b['name']}: {len(wrong)} of {result.size} values differ, at {where}: "
                f"got {result[first]}, expected {wanted[first]}"
            )

    def _evaluate(self, expression: str, out: dict[str, Array]) -> Any:
        scope: dict[str, Any] = {"np": np, "grid": self.grid, "spec": _Spec(self.spec), "out": out}
        scope.update(self.arrays())
        if isinstance(self.push, dict):
            scope.update(self.push)
        scope.update(self.doc.get("names", {}))
        with np.errstate(all="ignore"):
            return eval(expression, scope)  # the corpus is ours


class _Spec(dict[int, Any]):
    """Specialization values by id, as number or as digits."""

    def __missing__(self, key: object) -> Any:
        if isinstance(key, str):
            return self[int(key)]
        raise KeyError(key)


def _contents(b: dict[str, Any]) -> Array:
    dtype = np.dtype(b["dtype"])
    if "hex" in b:
        array: Array = np.frombuffer(bytes.fromhex(b["hex"]), dtype).copy()
        return array.reshape(b["shape"]) if "shape" in b else array
    if "data" in b:
        array = np.array(b["data"], dtype)
        return array.reshape(b["shape"]) if "shape" in b else array
    shape = tuple(b["shape"])
    n = int(np.prod(shape))
    if "gen" in b:
        return generate(n, dtype, **b["gen"]).reshape(shape)
    if "arange" in b:
        start, step = b["arange"]["start"], b["arange"]["step"]
        array = np.asarray(start + step * np.arange(n), dtype)
        return array.reshape(shape)
    return np.full(shape, b.get("fill", 0), dtype)


def generate(n: int, dtype: npt.DTypeLike, *, seed: int, lo: float, hi: float) -> Array:
    """`n` reproducible values in [lo, hi), by the formula of tests/corpus/README.md."""
    mask = 2**64 - 1
    with np.errstate(over="ignore"):
        x = np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64((seed * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & mask)
        x ^= x >> np.uint64(32)
        x *= np.uint64(0xD6E8FEB86659FD93)
        x ^= x >> np.uint64(32)
    u = (x >> np.uint64(40)).astype(np.float64) / 2**24
    if np.dtype(dtype).kind == "f":
        values: Array = lo + (hi - lo) * u
    else:
        values = lo + np.floor((hi - lo) * u)
    return np.asarray(values.astype(dtype))


class Case:
    """One module and entry point.

    Attributes:
        name: unique over both corpora.
        kind: "run", "refuse", "optional", "oob" or "endless" (tests/corpus/README.md).
        entry: the entry point to ask for.
        needs: what the device must have.
        doc: the whole description.
        tvm: of TVM cases its `tvm` map, else None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.doc: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.name: str = self.doc["name"]
        self.kind: str = self.doc["class"]
        self.producer: str = path.parent.name
        self.entry: str = self.doc["entry_point"]
        self.needs: list[str] = self.doc["needs"]
        self.expect_error: dict[str, Any] | None = self.doc.get("expect_error")
        self.tvm: dict[str, Any] | None = self.doc.get("tvm")
        self.runs = [Run(self, doc) for doc in self.doc["cases"]]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Case({self.name})"

    @property
    def reflection(self) -> dict[str, Any]:
        """What the corpus says of the module, in the corpus' own words; KeyError where it says nothing."""
        found: dict[str, Any] = self.doc["reflection"]
        return found

    @cached_property
    def spirv(self) -> bytes:
        return self.file(self.doc["spv"])

    @property
    def source(self) -> str | None:
        """The source text, None for modules made by hand."""
        source = self.doc["source"]
        return self.file(source["file"]).decode() if source else None

    def file(self, name: str) -> bytes:
        """The bytes of a file beside the description (`tvm` names some: bytes, file, metadata, ...)."""
        return (self.path.parent / name).read_bytes()

    def missing(self, limits: Mapping[str, Any], features: Mapping[str, Any], api_version: str) -> list[str]:
        """The needs that a device with these limits, features and API version lacks."""
        return [need for need in self.needs if not has(need, limits, features, api_version)]

    def deviates(self, device_name: str) -> bool:
        """Whether this device's driver is known to give a wrong result."""
        return any(part in device_name for part in self.doc.get("deviates_on", []))


def has(need: str, limits: Mapping[str, Any], features: Mapping[str, Any], api_version: str) -> bool:
    """Whether a device has one of the things that `needs` lists."""
    if match := re.fullmatch(r"apiVersion>=(\d+)\.(\d+)", need):
        have = tuple(int(part) for part in api_version.split(".")[:2])
        return have >= (int(match[1]), int(match[2]))
    if need.startswith("subgroup:"):
        operations = int(limits.get("subgroupSupportedOperations", 0))
        return bool(operations & SUBGROUP_BITS[need.removeprefix("subgroup:")])
    return bool(features.get(need))


def _load(folder: str) -> list[Case]:
    paths = sorted((ROOT / folder).glob("*/*.json"))
    return [Case(path) for path in paths if not path.name.endswith(".tvm_meta.json")]


CORPUS: list[Case] = _load("corpus")
TVM_CORPUS: list[Case] = _load("corpus_tvm")


def of_kind(*kinds: str, tvm: bool = False) -> list[Case]:
    """Cases of these kinds: of the general corpus, or of the one made by TVM."""
    return [case for case in (TVM_CORPUS if tvm else CORPUS) if case.kind in kinds]


def by_name(name: str) -> Case:
    """The case of this name, of either corpus."""
    return next(case for case in (*CORPUS, *TVM_CORPUS) if case.name == name)


def tvm_modules() -> Iterator[tuple[str, list[Case]]]:
    """Cases of the TVM corpus by the file that holds their device module's bytes."""
    groups: dict[str, list[Case]] = {}
    for case in TVM_CORPUS:
        assert case.tvm is not None
        groups.setdefault(str(case.path.parent / case.tvm["bytes"]), []).append(case)
    yield from groups.items()
