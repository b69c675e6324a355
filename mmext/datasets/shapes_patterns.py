"""Two-colour surface patterns for generated pictures.

A pattern is a map of mixing weights, ``0`` for the first colour and ``1`` for
the second. Shape letters used in this file: H height, W width in pixels.
"""

import math
from collections.abc import Callable

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ['PATTERNS', 'draw_pattern']

Weights = NDArray[np.float32]


def _rotated_grid(
    rng: Generator, height: int, width: int, scale: float
) -> tuple[Weights, Weights]:
    """Coordinates in periods, at a random angle, phase and period.

    A period is 8 % to 22 % of ``scale`` and at least 4 pixels, so that
    neighbouring repeats stay apart after a JPEG round trip.
    """
    angle = rng.uniform(0, math.pi)
    period = max(4.0, rng.uniform(0.08, 0.22) * scale)
    phase_u, phase_v = rng.uniform(0, 1, 2)
    x = np.arange(width, dtype=np.float32)[None] / np.float32(period)
    y = np.arange(height, dtype=np.float32)[:, None] / np.float32(period)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    u = x * cos + y * sin + np.float32(phase_u)
    v = y * cos - x * sin + np.float32(phase_v)
    return u, v


def _plain(rng: Generator, height: int, width: int, scale: float) -> Weights:
    return np.full((height, width), rng.uniform(0, 0.3), dtype=np.float32)


def _stripes(rng: Generator, height: int, width: int, scale: float) -> Weights:
    u, _ = _rotated_grid(rng, height, width, scale)
    return (u % 1 < np.float32(rng.uniform(0.35, 0.65))).astype(np.float32)


def _checker(rng: Generator, height: int, width: int, scale: float) -> Weights:
    u, v = _rotated_grid(rng, height, width, scale)
    return ((np.floor(u) + np.floor(v)) % 2).astype(np.float32)


def _dots(rng: Generator, height: int, width: int, scale: float) -> Weights:
    u, v = _rotated_grid(rng, height, width, scale)
    distance = np.hypot(u % 1 - np.float32(0.5), v % 1 - np.float32(0.5))
    return (distance < np.float32(rng.uniform(0.25, 0.4))).astype(np.float32)


def _gradient(
    rng: Generator, height: int, width: int, scale: float
) -> Weights:
    u, _ = _rotated_grid(rng, height, width, scale)
    low, high = float(u.min()), float(u.max())
    return (u - np.float32(low)) / np.float32(max(high - low, 1e-6))


def _noise(rng: Generator, height: int, width: int, scale: float) -> Weights:
    """Random values on a coarse grid, smoothly enlarged."""
    cell = max(3.0, rng.uniform(0.04, 0.15) * scale)
    rows = math.ceil(height / cell) + 2
    columns = math.ceil(width / cell) + 2
    coarse = rng.random((rows, columns), dtype=np.float32)
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(fine, 0, 1)


PATTERNS: dict[str, Callable[[Generator, int, int, float], Weights]] = {
    'plain': _plain,
    'stripes': _stripes,
    'checker': _checker,
    'dots': _dots,
    'gradient': _gradient,
    'noise': _noise,
}


def draw_pattern(
    name: str, rng: Generator, *, height: int, width: int, scale: float
) -> Weights:
    """Draw the mixing weights of a pattern with random settings.

    Args:
        name: A key of ``PATTERNS``.
        rng: Source of angle, period, phase and so on. It is advanced.
        height: H, at least 1.
        width: W, at least 1.
        scale: Size in pixels of what is painted; the period follows it.

    Returns:
        Weights of the second colour, shape ``(H, W)``, float32 in [0, 1].

    Raises:
        ValueError: If ``name`` is not a pattern.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> draw_pattern('checker', rng, height=4, width=6, scale=9.).shape
        (4, 6)
    """
    if name not in PATTERNS:
        raise ValueError(
            f'name must be one of {sorted(PATTERNS)}, got {name!r}'
        )
    return PATTERNS[name](rng, height, width, scale)
