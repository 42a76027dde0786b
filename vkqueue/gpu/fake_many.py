"""A MANY row on the fake device: its launches one after the other, over real bytes."""

from __future__ import annotations

from vkqueue.gpu.fake_graph import Memory, Run
from vkqueue.kernels.launches import Many
from vkqueue.model import ROW_PAYLOAD, ROW_TARGET, Row


def run_many(row: Row, memory: Memory, run: Run) -> None:
    """Run the launches."""
    many: Many = row[ROW_PAYLOAD]
    for launch in range(many.count):
        # What a launch writes into its data is dropped, so each gets its own; a row of them is a column.
        transients = [bytearray(v if isinstance(v, (bytes, bytearray, memoryview)) else v[launch].tobytes())
                      for _, v in many.transients]  # fmt: skip
        bound = [
            memory((id, offset, offset + size)) if id else memoryview(transients[offset])[:size]
            for id, offset, size in many.entries(launch)
        ]
        run(row[ROW_TARGET], bound, many.constants_of(launch), many.grid_of(launch))
