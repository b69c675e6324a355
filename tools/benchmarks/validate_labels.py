"""Time of ``mmext.ValidateLabels`` beside that of loading a label map.

The map is drawn, with 19 classes and a border to be ignored, written as PNG,
and loaded by mmseg's ``LoadAnnotations``; the image, which takes longer, is
not loaded. "ratio" is the time of the check over that of the loading.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)

# isort: split
from mmseg.datasets.transforms import LoadAnnotations

from mmext.datasets.transforms import ValidateLabels
from mmext.utils.cli import report_errors, run_tool
from mmext.utils.files import atomic_path, check_outputs, prepare_outputs

NUM_CLASSES = 19
PATCH = 16


def draw_map(height: int, width: int) -> np.ndarray:
    """A label map of patches, with a border of 255.

    Args:
        height: In pixels.
        width: In pixels.

    Returns:
        ``(height, width)`` uint8.

    Examples:
        >>> draw_map(32, 64).shape, int(draw_map(32, 64)[0, 0])
        ((32, 64), 255)
    """
    rng = np.random.default_rng(0)
    rows, columns = -(-height // PATCH), -(-width // PATCH)
    coarse = rng.integers(0, NUM_CLASSES, (rows, columns), dtype=np.uint8)
    label_map = coarse.repeat(PATCH, 0).repeat(PATCH, 1)[:height, :width]
    label_map = np.ascontiguousarray(label_map)
    label_map[: max(1, height // 50)] = 255
    return label_map


def best_seconds(function: Callable[[], object], repeats: int) -> float:
    """The shortest time of a call; other processes only add to it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(height: int, width: int, repeats: int) -> dict[str, float]:
    """Time the check and the loading of one map.

    Args:
        height: In pixels.
        width: In pixels.
        repeats: Calls of each.

    Returns:
        ``check_ms``, ``loading_ms`` and ``ratio``.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'map.png')
        Image.fromarray(draw_map(height, width)).save(file)
        sample = {'seg_map_path': str(file), 'reduce_zero_label': False}
        load, check = LoadAnnotations(), ValidateLabels(NUM_CLASSES)

        def loaded() -> dict:
            return load({**sample, 'seg_fields': []})

        results = loaded()
        results['img_shape'] = (height, width)
        ours = best_seconds(lambda: check(results), repeats)
        loading = best_seconds(loaded, repeats)
    return {
        'check_ms': 1000 * ours,
        'loading_ms': 1000 * loading,
        'ratio': ours / loading,
    }


def main(args: Sequence[str] | None = None) -> int:
    """Run the benchmark from a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--height', type=int, default=1024)
    parser.add_argument('--width', type=int, default=2048)
    parser.add_argument('--repeats', type=int, default=50)
    parser.add_argument('--json', type=Path, help='write the results here')
    options = parser.parse_args(args)
    for name in ('height', 'width', 'repeats'):
        if getattr(options, name) < 1:
            parser.error(f'--{name} must be at least 1')
    files = {'--json': options.json}
    report_errors(parser, check_outputs, files)
    with prepare_outputs(files):
        run(options)
    return 0


def run(options: argparse.Namespace) -> None:
    """Measure, print and write the results."""
    costs = measure(options.height, options.width, options.repeats)
    print(
        f'{options.width} x {options.height}: check {costs["check_ms"]:.3f} '
        f'ms, loading {costs["loading_ms"]:.2f} ms, ratio '
        f'{100 * costs["ratio"]:.2f} %'
    )
    if options.json:
        with atomic_path(options.json) as temporary:
            Path(temporary).write_text(json.dumps(costs))


if __name__ == '__main__':
    run_tool(main)
