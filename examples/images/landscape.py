"""Draws landscape.png, the picture that image_filter.py works on: mountains out of noise, so that it is nobody's photo.

    python examples/images/landscape.py [landscape.png]

Every column of the picture walks away from the eye over a map of heights, and paints what rises above all before it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for png.py
from png import write_png

Floats = np.ndarray[Any, np.dtype[np.float64]]

WIDTH, HEIGHT, SAMPLES = 480, 320, 3  # each pixel is the mean of 3 x 3
MAP = 1024
SUN = np.array([-0.68, 0.42, 0.60])  # x to the right, y up, z away
TALL, LAKE, EYE = 190.0, 30.0, 62.0  # the highest mountain, the water and the eye, in steps of the map


def noise(rng: np.random.Generator, cells: int, size: int) -> Floats:
    """Smooth noise from 0 to 1 that repeats at its edges."""
    grid = rng.random((cells, cells))
    at = np.arange(size) * cells / size
    low = at.astype(int)
    part = at - low
    part = part * part * part * (part * (part * 6 - 15) + 10)
    high = (low + 1) % cells
    rows = grid[low] * (1 - part)[:, None] + grid[high] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, high] * part


def fractal(rng: np.random.Generator, cells: int, octaves: int, size: int, ridged: bool = False) -> Floats:
    """Octaves of noise, from 0 to 1. Ridged, each octave is folded, and rough only where the last one was high."""
    total, weight, gain = np.zeros((size, size)), 1.0, np.ones((size, size))
    for octave in range(octaves):
        layer = noise(rng, min(cells << octave, size), size)
        if ridged:
            layer = (1 - np.abs(2 * layer - 1)) ** 2
            total += weight * layer * gain
            gain = np.clip(layer * 1.4, 0, 1)
        else:
            total += weight * layer
        weight /= 2
    total -= total.min()
    return total / total.max()


def terrain(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Heights, and what the ground looks like in the light."""
    heights = 0.7 * fractal(rng, 4, 9, MAP, ridged=True) + 0.3 * fractal(rng, 3, 9, MAP)
    low, high = np.quantile(heights, (0.02, 0.998))
    heights = np.clip((heights - low) / (high - low), 0, 1.1) ** 1.25
    slope_z, slope_x = np.gradient(heights * TALL)
    normal = np.stack([-slope_x, np.full_like(heights, 1.0), -slope_z], -1)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    light = np.clip(normal @ (SUN / np.linalg.norm(SUN)), 0, 1)
    speckle = fractal(rng, 64, 5, MAP)
    steep = 1 - normal[..., 1]
    grass = np.array([0.26, 0.31, 0.12]) * (0.55 + speckle)[..., None]
    forest = np.array([0.07, 0.13, 0.06]) * (0.4 + 1.3 * speckle)[..., None]
    rock = np.array([0.42, 0.37, 0.33]) * (0.6 + 0.7 * speckle)[..., None]
    snow = np.array([0.95, 0.96, 1.0]) * (0.9 + 0.1 * speckle)[..., None]
    ground = grass
    ground = mix(ground, forest, step(0.46, 0.54, fractal(rng, 14, 5, MAP)) * step(0.62, 0.5, heights))
    ground = mix(ground, rock, step(0.30, 0.55, steep + 0.25 * (speckle - 0.5)))
    ground = mix(ground, snow, step(0.55, 0.68, heights + 0.14 * (speckle - 0.5)) * step(0.72, 0.5, steep))
    ambient = np.array([0.34, 0.40, 0.50])
    sunny = np.array([1.75, 1.50, 1.12])
    return heights, ground * (ambient + sunny * light[..., None])


def step(low: float, high: float, value: Floats) -> Floats:
    """0 below `low`, 1 above `high` (or the reverse), smooth between."""
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def mix(a: Floats, b: Floats, share: Floats | float) -> Floats:
    weight = np.asarray(share)[..., None] if np.ndim(share) else share
    return a * (1 - weight) + b * weight


HORIZON = 0.42  # from the top


def sky(rng: np.random.Generator, width: int, height: int) -> Floats:
    """A gradient with clouds; row 0 is the top."""
    up = np.linspace(1, 0, height)[:, None]
    across = np.linspace(0, 1, width)[None, :]
    blue = mix(np.array([0.80, 0.82, 0.80]), np.array([0.16, 0.34, 0.66]), step(0.45, 1.1, up + 0 * across))
    glow = np.exp(-((across - 0.12) ** 2) * 9 - (up - 0.6) ** 2 * 6)
    image = blue + glow[..., None] * np.array([0.34, 0.22, 0.06])
    clouds = fractal(rng, 6, 8, MAP)
    elevation = np.clip(up - (1 - HORIZON), 0, 1) + 0 * across
    depth = 1 / (elevation + 0.10)
    rows = (depth * 90).astype(int) % MAP
    columns = (((across - 0.5) * depth * 150) + 512).astype(int) % MAP
    cover = step(0.50, 0.78, clouds[rows, columns]) * step(0.02, 0.2, elevation)
    shade = 0.80 + 0.25 * clouds[(rows + 9) % MAP, (columns + 9) % MAP]
    return mix(image, shade[..., None] * np.array([1.0, 0.97, 0.93]), 0.85 * cover)


def draw(seed: int = 20) -> Floats:
    """The picture, as floats of red, green and blue."""
    rng = np.random.default_rng(seed)
    width, height = WIDTH * SAMPLES, HEIGHT * SAMPLES
    heights, colors = terrain(rng)
    image = sky(rng, width, height)
    lake = np.zeros((height, width), bool)
    ripples = fractal(rng, 128, 3, MAP)
    horizon, focal = HORIZON * height, 0.85 * width
    columns = np.arange(width)
    across = (columns / width - 0.5) / 0.85
    top = np.full(width, height)
    haze = np.array([0.72, 0.77, 0.82])
    distance = 14.0
    while distance < 900:
        x = (500 + across * distance).astype(int) % MAP
        z = int(60 + distance) % MAP
        # A valley in the middle, so that there is something to see far away.
        valley = 1 - 0.85 * np.exp(-(((across - 0.06) / 0.3) ** 2)) * np.exp(-distance / 330)
        ground = heights[z, x] * valley * TALL * min(1.0, 0.35 + distance / 400)
        water = ground < LAKE
        y = np.clip(horizon - (np.maximum(ground, LAKE) - EYE) * focal / distance, 0, height).astype(int)
        color = colors[z, x]
        fog = 1 - np.exp(-((distance / 620) ** 1.5))
        color = mix(color, haze, fog)
        for column in np.flatnonzero(y < top):
            image[y[column] : top[column], column] = color[column]
            lake[y[column] : top[column], column] = water[column]
        top = np.minimum(top, y)
        distance += 0.25 + distance / 420
    rows = np.arange(height)
    for column in np.flatnonzero(lake.any(0)):  # what the water mirrors is above its far shore
        wet = rows[lake[:, column]]
        ripple = (ripples[wet * 3 % MAP, column * 2 // (1 + wet * 6 // height) % MAP] - 0.5) * (wet - wet[0] + 4) * 0.22
        mirror = np.clip(2 * wet[0] - wet + ripple, 0, height - 1).astype(int)
        image[wet, column] = image[mirror, column] * 0.55 + np.array([0.01, 0.06, 0.09])
    image = np.clip(image, 0, None).reshape(HEIGHT, SAMPLES, WIDTH, SAMPLES, 3).mean((1, 3))
    grain = rng.normal(0, 0.008, (HEIGHT, WIDTH, 1))
    down, along = np.linspace(-1, 1, HEIGHT)[:, None], np.linspace(-1, 1, WIDTH)[None, :]
    vignette = 1 - 0.16 * (down**2 + along**2)[..., None]
    return np.clip((image * vignette) ** 0.88 + grain, 0, 1)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("landscape.png")
    write_png(target, (draw() * 255).round().astype("uint8"))
