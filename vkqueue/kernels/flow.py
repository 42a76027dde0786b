"""Which blocks of a function come before which, on every way: a value may be used only where it has been made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

STEPS_PER_BLOCK = 400
"""Work allowed for each block. Structured control flow takes a handful; what is built to take long is not a kernel."""


class Dominators:
    """The tree of dominators of a control-flow graph, by the iteration of Cooper, Harvey and Kennedy.

    Attributes:
        complete: False when the graph was too irregular to be finished within STEPS_PER_BLOCK.
    """

    def __init__(self, entry: int, edges: Iterable[tuple[int, int]]) -> None:
        successors: dict[int, list[int]] = {}
        sources: dict[int, list[int]] = {}
        for source, target in edges:
            successors.setdefault(source, []).append(target)
            sources.setdefault(target, []).append(source)
        order = _postorder(entry, successors)
        self._number = {block: number for number, block in enumerate(order)}
        self._above: dict[int, int] = {entry: entry}
        self.complete = self._iterate(order, sources)
        self._first, self._last = self._intervals(entry) if self.complete else ({}, {})

    def reaches(self, block: int) -> bool:
        """Whether control can come to a block at all."""
        return block in self._number

    def dominates(self, block: int, other: int) -> bool:
        """Whether every way to `other`, which is reachable, leads through `block`."""
        if block not in self._first:
            return False
        return self._first[block] <= self._first[other] <= self._last[block]

    def _iterate(self, order: Sequence[int], sources: Mapping[int, Sequence[int]]) -> bool:
        number, above = self._number, self._above
        left = STEPS_PER_BLOCK * len(order) + 10_000
        changed = True
        while changed:
            changed = False
            for block in reversed(order[:-1]):
                new = -1
                for source in sources[block]:
                    if source not in above:
                        continue
                    other = source
                    left -= 1
                    while new >= 0 and new != other:
                        left -= 1
                        if left < 0:
                            return False
                        if number[new] < number[other]:
                            new = above[new]
                        else:
                            other = above[other]
                    new = other
                if above.get(block) != new:
                    above[block] = new
                    changed = True
        return True

    def _intervals(self, entry: int) -> tuple[dict[int, int], dict[int, int]]:
        """For each block its place in the tree's preorder, and the last place below it."""
        below: dict[int, list[int]] = {}
        for block, parent in self._above.items():
            if block != entry:
                below.setdefault(parent, []).append(block)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        waiting = [(entry, False)]
        while waiting:
            block, done = waiting.pop()
            if done:
                last[block] = len(first) - 1
                continue
            first[block] = len(first)
            waiting.append((block, True))
            waiting += [(child, False) for child in below.get(block, ())]
        return first, last


def _postorder(entry: int, successors: Mapping[int, Sequence[int]]) -> list[int]:
    """Blocks in the order in which a depth-first walk leaves them; the entry is the last."""
    order: list[int] = []
    seen = {entry}
    waiting = [(entry, iter(successors.get(entry, ())))]
    while waiting:
        block, left = waiting[-1]
        for target in left:
            if target not in seen:
                seen.add(target)
                waiting.append((target, iter(successors.get(target, ()))))
                break
        else:
            waiting.pop()
            order.append(block)
    return order
