"""TVM's launch parameters: which integers a launch takes, and what grid they come to."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vkqueue.errors import InvalidError, brief

_EXTENT = re.compile(r"(blockIdx|threadIdx|clusterCtaIdx)\.([xyz])")
_SHARED = ".use_dyn_shared_memory"
_SILENT = (".use_programtic_dependent_launch", ".use_cooperative_launch")  # TVM's spelling
_GROUPS, _THREADS = "blockIdx", "threadIdx"


class LaunchTags:
    """The launch tags of one kernel.

    Args:
        tags: in their order, that of loop nesting.

    Attributes:
        taking: those that take an integer each, in that order.

    Raises:
        InvalidError: a tag that is unknown or there twice, or one after that of the shared memory, which is last.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self.taking: list[str] = []
        self._places: list[tuple[int, str, int]] = []  # (place in the launch, what, axis) of the extents that count
        for tag in tags:
            extent = _EXTENT.fullmatch(tag)
            if tag in self.taking:
                raise InvalidError(f"launch tag {brief(tag)} is there twice")
            if extent is None and not tag.endswith((_SHARED, *_SILENT)):
                raise InvalidError(
                    f"launch tag {brief(tag)} is unknown; expected blockIdx.x, threadIdx.x or others of TVM's"
                )
            if tag.endswith(_SILENT):
                continue
            if self.taking and self.taking[-1].endswith(_SHARED):
                raise InvalidError(f"launch tag {brief(self.taking[-1])} has to be the last, {brief(tag)} follows it")
            if extent is not None and extent[1] in (_GROUPS, _THREADS):
                self._places.append((len(self.taking), extent[1], "xyz".index(extent[2])))
            self.taking.append(tag)

    def grid(self, launch: object, local_size: Sequence[int]) -> list[int]:
        """Work groups along x, y, z. An extent of 0, or one that has no tag, counts as 1.

        Raises:
            InvalidError: not one integer for each tag that takes one, a negative one, or a thread extent that is
                not the work group's.
        """
        if type(launch) is not list or len(launch) != len(self.taking):
            got = len(launch) if isinstance(launch, list) else type(launch).__name__
            names = ", ".join(self.taking) or "none"
            raise InvalidError(f"launch: expected {len(self.taking)} integers ({names}), got {got}")
        for tag, value in zip(self.taking, launch, strict=True):
            if type(value) is not int or value < 0:
                raise InvalidError(f"launch: {tag}: expected an integer of at least 0, got {brief(value)}")
        grid = [1, 1, 1]
        for place, what, axis in self._places:
            extent = launch[place] or 1
            if what == _GROUPS:
                grid[axis] = extent
            elif extent != local_size[axis]:
                raise InvalidError(
                    f"launch: {self.taking[place]} is {launch[place]}, the kernel was compiled for a work group of "
                    f"{local_size[axis]} there",
                    {"value": launch[place], "expected": local_size[axis]},
                )
        return grid
