"""The logs of `stream_client`, summed up: what the daemon's own statistics have to say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.affine import settled


@dataclass
class Tally:
    """Of all clients.

    Attributes:
        known: (model or method, outcome) → answers; `samples` of the good ones by model. "refused" is a bad request
            that the model counts, "elsewhere" one that it does not.
        unknown: model or method → requests whose client died before it had the answer, and their samples.
        wrong: what clients complained of.
        versions: answers by version.
    """

    known: Counter[tuple[str, str]] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    unknown_samples: Counter[str] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ended: int = 0

    def add(self, path: Path) -> None:
        """One client's log."""
        sent: dict[int, dict[str, Any]] = {}
        for line in path.read_text().splitlines():
            event = json.loads(line)
            match event["event"]:
                case "sent":
                    sent[event["id"]] = event
                case "answered":
                    self._answered(sent.pop(event["id"]), event)
                case "wrong":
                    self.wrong.append(f"{path.name}: {event['what']}")
                case "ended":
                    self.ended += 1
                    assert not sent, sent
        for event in sent.values():
            if "elsewhere" in event:
                continue
            what = event.get("model", event["method"])
            self.unknown[what] += 1
            self.unknown_samples[what] += event.get("samples", 0)

    def _answered(self, sent: dict[str, Any], event: dict[str, Any]) -> None:
        what, outcome = sent.get("model", sent["method"]), event["outcome"]
        if "refused" in sent:
            outcome = "refused"
        elif "elsewhere" in sent:
            outcome = "elsewhere"
        self.known[what, outcome] += 1
        if outcome == "ok":
            self.samples[what] += sent.get("samples", 0)
            if event["version"] is not None:
                self.versions[event["version"]] += 1

    def check_model(self, name: str, found: Iterable[dict[str, Any]]) -> None:
        """A model's statistics, of all its versions, are what the clients saw."""
        versions = list(found)
        counted = {
            "ok": sum(v["inference_stats"]["success"]["count"] for v in versions),
            "invalid": sum(v["inference_stats"]["fail"]["count"] for v in versions),
            **{key: sum(v[key] for v in versions) for key in ("cancelled", "expired")},
            "refused": sum(v["rejected"] for v in versions),
        }
        outcomes = {outcome for what, outcome in self.known if what == name}
        assert outcomes <= {*counted, "elsewhere"}, outcomes
        for outcome, count in counted.items():
            known = self.known[name, outcome]
            assert known <= count <= known + self.unknown[name], (name, outcome, known, count, self.unknown[name])
        over = sum(counted.values()) - sum(self.known[name, outcome] for outcome in counted)
        assert 0 <= over <= self.unknown[name], (name, over, self.unknown[name])
        samples = sum(v["inference_count"] for v in versions)
        assert self.samples[name] <= samples <= self.samples[name] + self.unknown_samples[name], name
        for version in versions:
            check_version(version)


def check_version(found: dict[str, Any]) -> None:
    """What of a version's statistics follows from the rest, once nothing is on its way."""
    assert found["queued"] == 0
    assert found["accepted"] == settled(found), found
    runs = {b["batch_size"]: b["compute_infer"]["count"] for b in found["batch_stats"]}
    assert found["execution_count"] == sum(runs.values())
    assert found["inference_count"] == sum(size * count for size, count in runs.items())
    assert sum(found["closed"].values()) == sum(found["batch_sizes"].values())
    left = sum(int(size) * count for size, count in found["batch_sizes"].items())
    if not found["inference_stats"]["fail"]["count"]:
        assert {str(size): count for size, count in runs.items()} == found["batch_sizes"]
        assert left == found["inference_count"]
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert found["inference_stats"][part]["count"] == found["inference_stats"]["success"]["count"]


__all__ = ["Tally", "check_version"]
