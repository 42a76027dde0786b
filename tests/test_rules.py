"""The rules of tests/README.md and the tests that name them are the same."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def numbers(text: str) -> set[int]:
    """Those of "3", "3 and 4", "3, 5" and "3 to 6"."""
    spans = re.findall(r"(\d+)(?: to S?(\d+))?", text)
    return {number for first, last in spans for number in range(int(first), int(last or first) + 1)}


def named(pattern: str) -> set[int]:
    """The numbers that tests give where the pattern's group stands."""
    found: set[int] = set()
    for path in TESTS.rglob("*.py"):
        if path != Path(__file__) and not {"corpus", "corpus_tvm"} & set(path.parts):
            for match in re.findall(pattern, path.read_text()):
                found |= numbers(match)
    return found


def test_each_rule_is_named_by_a_test_and_no_other() -> None:
    listed = set(map(int, re.findall(r"^(\d+)\. ", (TESTS / "README.md").read_text(), re.MULTILINE)))
    assert named(r"(?:\b[Rr]ules? |def test_rules?_)(\d+(?:(?:,| and| to) ?\d+|, and \d+)*)") == listed


def test_what_is_taken_over_from_tvm_is_named_by_a_test_and_nothing_else() -> None:
    listed = set(map(int, re.findall(r"\bS(\d+): ", (TESTS / "README.md").read_text())))
    assert named(r"(?:\bS|def test_s)(\d+(?: to S\d+)?)\b") | named(r"def test_s(\d+)_") == listed
