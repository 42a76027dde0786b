"""Whatever the bytes are: an answer, `invalid` or `unsupported`, and soon."""

from __future__ import annotations

import json
import struct
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import CORPUS, TVM_CORPUS

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.disasm import disassemble
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.requirements import unsupported

GOOD = [case for case in (*CORPUS, *TVM_CORPUS) if case.producer != "corrupt" and len(case.spirv) < 6000]
SEEDS = sorted({case.spirv for case in GOOD})
QUICK = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Words that are something to SPIR-V: small ids, opcodes, storage classes, extremes.
WORDS = st.one_of(st.integers(0, 120), st.sampled_from([0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 1 << 16, 5349]))


def check(data: bytes) -> bool:
    """True when the module was taken."""
    started = time.perf_counter()
    try:
        found = analyse(data)
    except (InvalidError, UnsupportedError) as error:
        assert error.message
        return False
    finally:
        assert time.perf_counter() - started < 5  # milliseconds, but for a machine under load
    json.dumps(found)
    for kernel in found["kernels"].values():
        assert unsupported(kernel, {}, {}, api_version="1.0.0", strict=True) != ""
    assert disassemble(data).startswith("; SPIR-V")
    return True


def instructions(words: list[int]) -> list[tuple[int, int]]:
    found, at = [], 5
    while at < len(words) and 0 < words[at] >> 16 <= len(words) - at:
        found.append((at, words[at] >> 16))
        at += words[at] >> 16
    return found


@QUICK
@given(data=st.data())
def test_words_changed(data):
    words = list(struct.unpack(f"<{len(seed := data.draw(st.sampled_from(SEEDS))) // 4}I", seed))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(5, len(words) - 1))
        change = data.draw(st.sampled_from(["set", "swap", "bit", "opcode"]))
        if change == "set":
            words[at] = data.draw(WORDS)
        elif change == "swap":
            other = data.draw(st.integers(5, len(words) - 1))
            words[at], words[other] = words[other], words[at]
        elif change == "bit":
            words[at] ^= 1 << data.draw(st.integers(0, 31))
        else:
            words[at] = words[at] & 0xFFFF0000 | data.draw(st.integers(0, 450))
    check(struct.pack(f"<{len(words)}I", *words))


@QUICK
@given(data=st.data())
def test_instructions_moved(data):
    seed = data.draw(st.sampled_from(SEEDS))
    words = list(struct.unpack(f"<{len(seed) // 4}I", seed))
    found = instructions(words)
    at, count = data.draw(st.sampled_from(found))
    taken = words[at : at + count]
    change = data.draw(st.sampled_from(["delete", "double", "move"]))
    if change != "double":
        del words[at : at + count]
    if change != "delete":
        to, _ = data.draw(st.sampled_from(instructions(words)))
        words[to:to] = taken
    check(struct.pack(f"<{len(words)}I", *words))


@QUICK
@given(seed=st.sampled_from(SEEDS), at=st.integers(0, 6000), byte=st.integers(0, 255), cut=st.integers(0, 6000))
def test_bytes_changed_and_cut(seed, at, byte, cut):
    data = bytearray(seed)
    data[at % len(data)] = byte
    check(bytes(data))
    check(seed[: cut % len(seed)])


@QUICK
@given(st.binary(max_size=200), st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_anything_after_a_header(raw, body):
    check(raw)
    check(struct.pack(f"<{5 + len(body)}I", 0x07230203, 0x10300, 0, 500, 0, *body))


def test_the_seeds_are_taken_themselves():
    assert sum(map(check, SEEDS)) > 80


def test_large_modules_take_linear_time():
    """Many instructions of each kind that something is kept of."""

    def instruction(op: int, *words: int) -> list[int]:
        return [(len(words) + 1) << 16 | op, *words]

    count = 40_000
    body = instruction(17, 1) + instruction(14, 0, 1)
    body += instruction(15, 5, 1, 0x6E69616D, 0) + instruction(16, 1, 17, 1, 1, 1)
    for i in range(count):
        body += instruction(5, 100 + i, 0x61)
    for i in range(count):
        body += instruction(71, 100 + i, 24)
    body += instruction(19, 2) + instruction(33, 3, 2) + instruction(21, 5, 32, 0)
    for i in range(count):
        body += instruction(43, 5, 100 + i, i)
    body += instruction(54, 2, 1, 0, 3) + instruction(248, 4)
    for i in range(count):
        body += instruction(128, 5, 100_000 + i, 100 + i, 100)
    body += instruction(253) + instruction(56)
    spirv = struct.pack(f"<{5 + len(body)}I", 0x07230203, 0x10300, 0, 200_000, 0, *body)
    started = time.perf_counter()
    assert check(spirv)
    assert time.perf_counter() - started < 10
