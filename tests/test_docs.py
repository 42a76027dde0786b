"""docs/ say what is so: settings, error codes, file names and links are held to the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vkqueue.cli import COMMANDS
from vkqueue.cli.settings import SWITCHES
from vkqueue.config import SECTIONS
from vkqueue.daemon.lifecycle import RELOADABLE
from vkqueue.errors import BY_CODE, ConnectionLostError

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()
HOW = (ROOT / "docs/how-a-job-runs.md").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of a document's tables, line by line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def settings() -> dict[str, dict[str, list[str]]]:
    """Section → key → (default, range, reload, text) of docs/configuration.md."""
    found: dict[str, dict[str, list[str]]] = {}
    for section, text in re.findall(r"^## \[(\w+)\]\n(.*?)(?=^## )", CONFIGURATION, re.MULTILINE | re.DOTALL):
        found[section] = {row[0].strip("`"): row[1:] for row in rows(text)[2:]}
    return found


def test_every_setting_is_there_with_its_default() -> None:
    told = {
        section: {key: tomllib.loads(f"v = {row[0].strip('`')}")["v"] for key, row in keys.items()}
        for section, keys in settings().items()
    }
    defaults: dict[str, dict[str, Any]] = {
        section: {
            key: list(known.default) if isinstance(known.default, tuple) else known.default
            for key, known in keys.items()
        }
        for section, keys in SECTIONS.items()
    }
    assert told == defaults
    assert {s: list(keys) for s, keys in told.items()} == {s: list(keys) for s, keys in defaults.items()}


def test_every_range_is_the_one_that_is_checked() -> None:
    for section, keys in settings().items():
        for key, row in keys.items():
            bounds = SECTIONS[section][key].metadata
            low, high = bounds.get("low"), bounds.get("high")
            if key == "mode" and section == "daemon":
                expected = "0 to `0o777`"
            elif bounds.get("choices"):
                expected = ", ".join(bounds["choices"])
            else:
                expected = "" if low is None else f"from {low}" if high is None else f"{low} to {high}"
            assert (section, key, row[1]) == (section, key, expected)


def test_what_is_marked_reload_is_reloaded() -> None:
    marked = {f"{section}.{key}" for section, keys in settings().items() for key, row in keys.items() if row[2]}
    assert marked == RELOADABLE


def test_units_are_told() -> None:
    """By the first words of the text, for keys whose names end with a unit."""
    units = {"_s": "Seconds", "_us": "Microseconds", "_bytes": "Bytes"}
    for keys in settings().values():
        for key, row in keys.items():
            for end, unit in units.items():
                if key.endswith(end):
                    assert unit in row[3] or "As `" in row[3], key


def test_the_short_switches_are_told() -> None:
    named = {name for row in rows(CONFIGURATION) for name in re.findall(r"`(VKQUEUE_\w+)", row[0])}
    assert named >= set(SWITCHES)
    assert named - set(SWITCHES) == {
        "VKQUEUE_SOCKET", "VKQUEUE_CONFIG", "VKQUEUE_SECTION_KEY", "VKQUEUE_DEBUG_SHADER_SAVEPATH",
    }  # fmt: skip


def test_every_error_code_has_advice() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text()
    told = re.findall(r"^### `(\w+)`$", text, re.MULTILINE)
    assert sorted(told) == sorted([*BY_CODE, ConnectionLostError.code])


def anchors(text: str) -> set[str]:
    """What can be linked to: headings, as they are made to anchors."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        assert other.exists(), target
        assert not anchor or anchor in anchors(other.read_text()), target


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.stem)
def test_commands_are_there(path: Path) -> None:
    text = path.read_text()
    code = "\n".join(
        re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    )
    named = set(re.findall(r"(?:^|[\s'(])vkqueue ([a-z]+)\b", code, re.MULTILINE))
    assert named <= set(COMMANDS)


def test_every_file_of_how_a_job_runs_is_there() -> None:
    """A name without folder stands for one in the folder named before it in the same line, or in any."""
    missing = []
    for line in re.sub(r"\]\([^)]*\)", "]", HOW).splitlines():
        folder = ""
        for name in re.findall(r"[\w/]+(?:\*)?\.py\b", line):
            if "/" in name:
                folder = name.rpartition("/")[0]
            places = [ROOT / name, ROOT / "vkqueue" / name, ROOT / "vkqueue" / folder / name]
            pattern = name.rpartition("/")[2]
            if not any(list(p.parent.glob(p.name)) for p in places) and not list((ROOT / "vkqueue").rglob(pattern)):
                missing.append(name)
    assert missing == []


def test_the_batching_policy_is_where_the_document_says() -> None:
    from vkqueue.jobs.batcher import Batcher

    table = re.search(r"^## The batch table\n(.*?)^## ", HOW, re.MULTILINE | re.DOTALL)
    assert table is not None
    reasons = [name for row in rows(table[1])[2:] for name in re.findall(r"`(\w+)`", row[2])]
    assert set(reasons) == set(Batcher(1, 1, 1).reasons)


def test_models_tells_every_key_reason_and_function() -> None:
    from dataclasses import fields

    from vkqueue.models import definition, expression
    from vkqueue.models.batcher import REASONS
    from vkqueue.models.policy import BatchingPolicy, QueuePolicy

    text = (ROOT / "docs/models.md").read_text()
    table = re.search(r"^### When a batch is closed\n(.*?)^###? ", text + "\n## ", re.MULTILINE | re.DOTALL)
    assert table is not None
    assert {row[0].strip("`") for row in rows(table[1])[2:] if row[1] != "default" and len(row) == 2} == set(REASONS)
    named = {
        *definition._KEYS,
        *expression._FUNCTIONS,
        *(field.name for policy in (BatchingPolicy, QueuePolicy) for field in fields(policy)),
    }
    assert [name for name in sorted(named) if not re.search(rf"\b{name}\b", text)] == []
