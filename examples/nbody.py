"""Two galaxies that pass each other: every body pulls every other one, and the energy stays what it was.

Shows a kernel with tiles in shared memory (kernels/gravity.comp), hundreds of launches in order without a wait
between them, and the time that the device took for one.

    python examples/nbody.py [--bodies 1024] [--steps 120] [--png GALAXIES.png]

Prints the bodies seen from above, before and after, and how much the energy changed; the exit status is 1 if that is
more than half a percent. It uses your daemon, and starts one if none runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import vkqueue
from png import write_png

HERE = Path(__file__).parent
SOFTENING, STEP_S = 0.05, 0.005
MOST_CHANGE = 0.005

Rows = np.ndarray[Any, np.dtype[np.float32]]


def galaxy(rng: np.random.Generator, count: int, mass: float) -> tuple[Rows, Rows]:
    """(Bodies, velocities) of a disc that turns round its middle, which holds half of its mass. Rows of four."""
    bodies, velocities = np.zeros((count, 4), "float32"), np.zeros((count, 4), "float32")
    radius = np.sqrt(rng.uniform(0.04, 1, count))
    radius[0] = 0
    angle = rng.uniform(0, 2 * np.pi, count)
    bodies[:, 0], bodies[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
    bodies[:, 2] = rng.normal(0, 0.03, count) * (radius > 0)
    bodies[:, 3] = mass / 2 / (count - 1)
    bodies[0, 3] = mass / 2
    inside = mass / 2 * (1 + radius**2)  # what is nearer to the middle
    speed = np.sqrt(inside * radius**2 / (radius**2 + SOFTENING**2) ** 1.5)
    velocities[:, 0], velocities[:, 1] = -speed * np.sin(angle), speed * np.cos(angle)
    return bodies, velocities


def two_galaxies(count: int) -> tuple[Rows, Rows]:
    """The large one at rest, a smaller one on its way past it."""
    rng = np.random.default_rng(7)
    small = count // 3
    bodies, velocities = galaxy(rng, count - small, 1.0)
    more_bodies, more_velocities = galaxy(rng, small, 0.5)
    more_bodies[:, :2] += (1.6, -1.2)
    more_velocities[:, :2] += (-0.5, 0.7)
    return np.concatenate([bodies, more_bodies]), np.concatenate([velocities, more_velocities])


class Simulation:
    """Bodies on the device, moved by leapfrog steps."""

    def __init__(self, gpu: vkqueue.Client, bodies: Rows, velocities: Rows) -> None:
        self._gravity = gpu.load(HERE / "kernels/gravity.spv").kernel
        self._leapfrog = gpu.load(HERE / "kernels/leapfrog.spv").kernel
        self._gpu = gpu
        self.count = len(bodies)
        self.bodies, self.velocities = gpu.array(bodies), gpu.array(velocities)
        self.pull = gpu.zeros(bodies.shape, "float32")
        self._feel()

    def _feel(self) -> None:
        self._gravity.submit(self.bodies, self.pull, count=self.count, softening=SOFTENING, elements=self.count)

    def _move(self, kick: float, drift: float) -> None:
        """A pull over `kick` seconds, then straight on for `drift` seconds."""
        move = self._leapfrog
        move.submit(
            self.bodies, self.velocities, self.pull, count=self.count, kick=kick, drift=drift, elements=self.count
        )

    def run(self, steps: int) -> None:
        """Send all steps; the next read waits for them."""
        with self._gpu.batch():
            for step in range(steps):
                self._move(STEP_S if step else STEP_S / 2, STEP_S)
                self._feel()
            self._move(STEP_S / 2, 0.0)  # places and velocities are at one time again

    def energy(self) -> float:
        """Kinetic and potential."""
        mass = self.bodies.numpy()[:, 3].astype("float64")
        speed2 = (self.velocities.numpy()[:, :3].astype("float64") ** 2).sum(1)
        potential = self.pull.numpy()[:, 3].astype("float64")
        return float((mass * (speed2 + potential)).sum() / 2)

    def time_of_gravity_us(self) -> int | None:
        """How long one launch of the larger kernel takes on the device; None where it cannot tell."""
        timed = self._gravity(
            self.bodies, self.pull, count=self.count, softening=SOFTENING, elements=self.count, timing=True
        )
        return timed.timing.device_us


def seen_from_above(bodies: Rows, width: int, height: int) -> Rows:
    """How many bodies each cell holds, of 4 by 4 units."""
    x, y = ((bodies[:, :2] + 2) / 4).T
    inside = (x >= 0) & (x < 1) & (y >= 0) & (y < 1)
    cells = np.zeros((height, width), "float32")
    np.add.at(cells, ((y[inside] * height).astype(int), (x[inside] * width).astype(int)), 1)
    return cells[::-1]


def drawn(bodies: Rows, width: int = 60, height: int = 24) -> str:
    """The same in characters."""
    shades = " .:+*#@"
    cells = np.minimum(np.ceil(np.log2(seen_from_above(bodies, width, height) + 1)), len(shades) - 1)
    return "\n".join("".join(shades[int(c)] for c in row) for row in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description="Two galaxies that pass each other.")
    parser.add_argument("--bodies", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--png", help="Draw the end there, too.")
    options = parser.parse_args()

    bodies, velocities = two_galaxies(options.bodies)
    with vkqueue.connect(spawn=True) as gpu:
        simulation = Simulation(gpu, bodies, velocities)
        before = simulation.energy()
        simulation.run(options.steps)
        after, end = simulation.energy(), simulation.bodies.numpy()
        device_us = simulation.time_of_gravity_us()
    change = abs(after - before) / abs(before)
    print(drawn(bodies), drawn(end), sep=f"\n{'-' * 60}\n")
    print(f"energy {before:.5f}, then {after:.5f}: changed by {change:.3%} in {options.steps} steps")
    if device_us:
        print(f"one step's gravity takes {device_us} us: {options.bodies**2 / device_us:,.0f} million pairs a second")
    if options.png:
        light = 1 - np.exp(-seen_from_above(end, 480, 480))
        write_png(options.png, (light * 255).astype("uint8"))
    return 0 if change <= MOST_CHANGE else 1


if __name__ == "__main__":
    sys.exit(main())
