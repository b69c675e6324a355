"""Pictures: labels agree with pixels, seeds decide, settings are checked."""

import cv2
import numpy as np
import pytest

from mmext.datasets import ShapesSpec, draw_sample
from mmext.datasets.shapes_generator import PATTERNS

SPEC = ShapesSpec(image_size=(96, 64), max_objects=8)


def samples(spec: ShapesSpec, count: int) -> list:
    return [draw_sample(spec, split=0, index=i) for i in range(count)]


def test_no_objects_keeps_the_shapes():
    spec = ShapesSpec(image_size=(40, 32), empty_fraction=1.0)
    sample = draw_sample(spec, split=1, index=3)
    assert sample.labels.shape == (0,)
    assert sample.boxes.shape == (0, 4)
    assert sample.masks.shape == (0, 32, 40)
    assert not sample.semantic_map().any()


def test_labels_lie_on_the_pixels_they_name():
    """A shape differs from the ground: edges of the picture lie on masks."""
    ratios = []
    for sample in samples(SPEC, 40):
        image = sample.image.astype(int)
        jump = np.abs(np.diff(image, axis=1)).sum(-1)
        semantic = sample.semantic_map().astype(int)
        edge = np.diff(semantic, axis=1) != 0
        if edge.any():
            ratios.append(jump[edge].mean() / jump[~edge].mean())
    assert np.median(ratios) > 2


@pytest.mark.parametrize(
    ('seed', 'split', 'index'), [(1, 0, 5), (0, 1, 5), (0, 0, 6)]
)
def test_seed_split_and_index_each_make_a_difference(
    seed: int, split: int, index: int
):
    base = draw_sample(SPEC, split=0, index=5)
    spec = ShapesSpec(image_size=(96, 64), max_objects=8, seed=seed)
    other = draw_sample(spec, split=split, index=index)
    assert not np.array_equal(base.image, other.image)


def test_object_counts_are_in_range_and_all_occur():
    spec = ShapesSpec(min_objects=2, max_objects=4, empty_fraction=0.0)
    counts = [len(sample.labels) for sample in samples(spec, 60)]
    assert set(counts) == {2, 3, 4}


def test_empty_fraction_is_kept():
    spec = ShapesSpec(image_size=(32, 32), empty_fraction=0.5)
    empty = [len(sample.labels) == 0 for sample in samples(spec, 200)]
    # Three standard deviations of 200 draws are 0.106.
    assert abs(np.mean(empty) - 0.5) < 0.11


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(image_size=(64,)), r'image_size must be \(W, H\)'),
        (dict(image_size=(31, 64)), r'image_size must be in \[32, 8192\]'),
        (dict(image_size=(64, 8193)), r'in \[32, 8192\], got 8193'),
        (dict(min_objects=0), r'min_objects must be in \[1, 1000\], got 0'),
        (dict(min_objects=7), r'max_objects must be in \[7, 1000\], got 6'),
        (dict(max_objects=1001), r'max_objects must be .* got 1001'),
        (dict(empty_fraction=-0.1), r'empty_fraction must be in \[0, 1\]'),
        (dict(empty_fraction=float('nan')), r'empty_fraction .* got nan'),
        (dict(min_visible=0.0), r'min_visible must be in \(0, 1\], got 0.0'),
        (dict(min_visible=1.5), r'min_visible must be in \(0, 1\]'),
        (dict(seed=-1), r'seed must be in \[0, 4294967295\], got -1'),
        (dict(seed=2**32), r'seed must be in \[0, 4294967295\]'),
        (dict(hue_by_class=1.5), r'hue_by_class must be in \[0, 1\]'),
        (dict(classes=()), 'classes must be some of'),
        (dict(classes=('circle', 'hexagon')), 'classes must be some of'),
        (dict(seed=0.5), 'seed must be an integer, got'),
        (dict(max_objects=True), 'max_objects must be an integer, got'),
        (dict(image_size=(64.0, 64)), 'image_size must be an integer, got'),
    ],
)
def test_rejects(settings: dict, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        ShapesSpec(**settings)


def test_rejects_more_shapes_than_there_is_room_for():
    spec = ShapesSpec(
        image_size=(32, 32),
        min_objects=200,
        max_objects=200,
        min_visible=1.0,
        empty_fraction=0.0,
    )
    with pytest.raises(
        ValueError, match=r'got 200 and only \d+ fit on picture 7 of split 1'
    ):
        draw_sample(spec, split=1, index=7)


def test_draws_only_the_chosen_classes() -> None:
    spec = ShapesSpec(
        image_size=(64, 64), classes=('triangle', 'cross'), empty_fraction=0.0
    )
    labels = {
        int(label)
        for index in range(30)
        for label in draw_sample(spec, split=0, index=index).labels
    }
    assert labels == {2, 5}


def _hues(spec: ShapesSpec) -> list[tuple[int, float]]:
    """Label and median hue, in [0, 1), of many shapes."""
    hues = []
    for index in range(60):
        sample = draw_sample(spec, split=0, index=index)
        hsv = cv2.cvtColor(sample.image, cv2.COLOR_BGR2HSV)
        for label, mask in zip(sample.labels, sample.masks):
            inner = cv2.erode(mask.astype(np.uint8), np.ones((3, 3))) > 0
            if inner.sum() > 20:
                hue = hsv[..., 0][inner] / 180 - label / 6 + 0.5
                hues.append((int(label), float(np.median(hue % 1.0)) - 0.5))
    return hues


def test_hue_by_class_paints_each_class_in_its_hue() -> None:
    settings = {'image_size': (96, 96), 'empty_fraction': 0.0}
    cued = _hues(ShapesSpec(**settings, hue_by_class=1.0))
    assert {label for label, _ in cued} == set(range(6))
    near = [abs(offset) < 1 / 12 for _, offset in cued]
    assert np.mean(near) > 0.95
    plain = _hues(ShapesSpec(**settings))
    assert np.mean([abs(offset) < 1 / 12 for _, offset in plain]) < 0.5


@pytest.mark.parametrize('name', sorted(set(PATTERNS) - {'plain'}))
def test_uses_both_colours(name: str, rng: np.random.Generator):
    for _ in range(20):
        weights = PATTERNS[name](rng, 64, 64, 64.0)
        assert weights.min() < 0.3
        assert weights.max() > 0.7
