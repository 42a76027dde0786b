"""The same network with the same weights on PyTorch in this process, beside vkqueue with clients: texts a second.

    python examples/embeddings/peers.py [--weights FILE] [--clients 1,8,64] [--length 32] [--seconds 2] [--json]

Needs torch and transformers; CUDA is measured where there is one. PyTorch gets batches as large as there are clients,
ready made and one after the other, and vkqueue has to make its own of requests from so many connections: what it loses
beside the device's time (`launched`: whole batches launched as graphs, by the device's clock) is the daemon's and its
clients'. Without --weights they are random, which takes as long.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import prepare
import vkqueue
import weights
from direct import Network
from measure import device_us
from network import TUNINGS, Architecture, kind_of

WARM_UP, TAKEN = 5, 30


def torch_model(source: weights.Tensors, shape: Architecture) -> Any:
    """BERT of transformers with these weights."""
    import torch
    from transformers import BertConfig, BertModel

    longest = len(source["embeddings.position_embeddings.weight"])
    config = BertConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.intermediate, max_position_embeddings=longest,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict({name: torch.tensor(array) for name, array in source.items()}, strict=False)
    return model.eval()


def on_torch(model: Any, ids: Any) -> Any:
    """Embeddings of texts that have one length."""
    import torch

    hidden = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    return torch.nn.functional.normalize(hidden.mean(1), dim=1)


def seconds_of(run: Callable[[], Any]) -> float:
    """Median of a call, of at most TAKEN and some two seconds."""
    for _ in range(WARM_UP):
        run()
    times: list[float] = []
    until = time.monotonic() + 2
    while len(times) < TAKEN and (len(times) < 3 or time.monotonic() < until):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def torch_rates(model: Any, ids: Any) -> Iterator[tuple[str, float]]:
    """(Where, texts a second) of one batch after the other, from tokens to vectors in the host's memory."""
    import torch

    tokens = torch.tensor(ids, dtype=torch.int64)
    with torch.inference_mode():
        host = model.to("cpu")
        yield "PyTorch, CPU", len(ids) / seconds_of(lambda: on_torch(host, tokens))
        if not torch.cuda.is_available():
            return
        there = model.to("cuda")
        yield "PyTorch, CUDA", len(ids) / seconds_of(lambda: on_torch(there, tokens.cuda()).cpu())
        fixed = tokens.cuda()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                on_torch(there, fixed)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = on_torch(there, fixed)

        def replay() -> Any:
            fixed.copy_(tokens)
            graph.replay()
            return found.cpu()

        yield "PyTorch, CUDA graph", len(ids) / seconds_of(replay)


def launched(source: weights.Tensors, shape: Architecture, batches: list[int], length: int) -> dict[int, float]:
    """Texts a second of whole batches, by the device's time alone."""
    with vkqueue.connect(spawn=True) as gpu:
        net = Network(gpu, weights.converted(source, shape), shape, TUNINGS[kind_of(gpu.device)])
        rates = {}
        for batch in batches:
            graph = net.graph(batch, length)
            values = {"input_ids": np.ones(batch * length, "int32"), "lengths": np.full(batch, length, "int32")}
            times = [device_us(graph, **values) for _ in range(WARM_UP + TAKEN)][WARM_UP:]
            rates[batch] = batch / statistics.median(times) * 1e6
        return rates


def served(folder: Path, clients: str, length: int, seconds: float) -> dict[str, Any]:
    """`vkqueue bench model`."""
    command = [sys.executable, "-m", "vkqueue", "bench", "model", str(folder), "--clients", clients, "--json"]
    command += ["--seconds", str(seconds), "--dimension", f"seq={length}:{length}", "--values", "input_ids=1:20000"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Where → clients, or texts in a batch → texts a second."""
    source = weights.read(options.weights) if options.weights else weights.random(Architecture())
    shape = Architecture(vocabulary=len(source["embeddings.word_embeddings.weight"]))
    counts = [int(word) for word in options.clients.split(",")]
    rates: dict[str, dict[int, float]] = {}
    with vkqueue.connect(spawn=True) as gpu:
        kind = kind_of(gpu.device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "source.safetensors")
        weights.write(file, source)
        model = prepare.prepare(Path(folder, "models"), kind, file, shape)
        report = served(model, options.clients, options.length, options.seconds)
    for side in ("batched", "unbatched"):
        rates[f"vkqueue, {side}"] = {point["clients"]: point["samples_per_s"] for point in report["measured"][side]}
    rates["vkqueue, launched"] = launched(source, shape, counts, options.length)
    ours = torch_model(source, shape)
    for count in counts:
        ids = np.random.default_rng(1).integers(1, shape.vocabulary, (count, options.length))
        for where, rate in torch_rates(ours, ids):
            rates.setdefault(where, {})[count] = rate
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the network on vkqueue with PyTorch.")
    parser.add_argument("--weights", type=Path, help="model.safetensors of the package; else random")
    parser.add_argument("--clients", default="1,8,64", help="with commas between; batches of PyTorch's are as large")
    parser.add_argument("--length", type=int, default=32, help="tokens of each text")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run with clients")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        raise SystemExit("PyTorch and transformers are what it compares with: pip install torch transformers")
    rates = measured(options)
    if options.json:
        print(json.dumps(rates, indent=1))
        return
    counts = list(next(iter(rates.values())))
    table = Table(title=f"texts of {options.length} tokens a second", title_justify="left")
    table.add_column("clients, or texts in a batch")
    for count in counts:
        table.add_column(str(count), justify="right")
    for where, by_count in rates.items():
        table.add_row(where, *(f"{by_count[count]:,.0f}" for count in counts))
    Console().print(table)


if __name__ == "__main__":
    main()
