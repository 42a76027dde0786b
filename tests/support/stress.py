"""Several connections with random programs at once, on one daemon."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

from support.daemon import Daemon
from support.programs import Program
from support.random_buffers import Mixture, ReadingClient
from support.reference import Wrong


def stress(
    daemon: Daemon, seed: int, mixture: Mixture, *, clients: int, bursts: int, seconds: float = 0.0
) -> dict[str, int]:
    """So many bursts of requests in all, or until the time is over; counts of what was answered.

    Raises:
        Wrong: with the seed.
    """
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    counts: dict[str, int] = {}
    with ExitStack() as stack:
        connections = [stack.enter_context(ReadingClient(daemon.path, timeout=120)) for _ in range(clients)]
        programs = []
        for number, connection in enumerate(connections):
            connection.beside = [other for other in connections if other is not connection]
            program = Program(connection, seed * 1000 + number, mixture)
            stack.callback(program.close)
            programs.append(program)
        try:
            while bursts > 0 or time.monotonic() < until:
                bursts -= 1
                program = rng.choice(programs)
                program.burst(rng.choice([1, 3, 10, 40]))
                if rng.random() < 0.15:
                    program.settle()
                for each in programs:
                    each.drain()
            for program in programs:
                program.finish()
        except Wrong as wrong:
            raise Wrong(f"seed {seed}: {wrong}") from None
        for program in programs:
            for code, count in program.reference.counts.items():
                counts[code] = counts.get(code, 0) + count
    return counts
