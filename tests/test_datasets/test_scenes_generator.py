"""Generated rooms: depth and normals against geometry that is not theirs."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from mmext.datasets import (
    SCENE_CLASSES,
    ScenesSpec,
    draw_scene,
    scene_rays,
    write_scenes_dataset,
)

CLEAN = ScenesSpec(image_size=(160, 120), noise=0, invalid_fraction=0)
FLOOR, WALL, CEILING, SPHERE, BOX, PILLAR = range(6)


def scene(index: int, spec: ScenesSpec = CLEAN):
    return draw_scene(spec, split=0, index=index)


def points_of(sample) -> np.ndarray:
    """Back-projected pixels, ``(H, W, 3)``."""
    height, width = sample.label.shape
    return scene_rays(width, height) * sample.depth.astype(np.float64)


@pytest.mark.parametrize('index', range(8))
def test_normals_are_those_of_the_back_projected_depth(index):
    """Cross products of neighbours, where the surface is one and smooth."""
    sample = scene(index)
    points = points_of(sample)
    right = points[1:-1, 2:] - points[1:-1, :-2]
    down = points[2:, 1:-1] - points[:-2, 1:-1]
    expected = np.cross(down, right)
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    normal = sample.normal[1:-1, 1:-1]
    # On a plane, all neighbours have the same normal.
    around = [
        sample.normal[1 + y : 119 + y, 1 + x : 159 + x]
        for y, x in ((0, 1), (0, -1), (1, 0), (-1, 0))
    ]
    flat = np.all([np.abs(n - normal).max(-1) < 1e-6 for n in around], 0)
    step = np.abs(np.diff(sample.depth[..., 0], axis=0)) > 0.2
    edge = step[1:, 1:-1] | step[:-1, 1:-1]
    step = np.abs(np.diff(sample.depth[..., 0], axis=1)) > 0.2
    edge |= step[1:-1, 1:] | step[1:-1, :-1]
    smooth = flat & ~edge
    assert smooth.mean() > 0.5
    cosine = (expected * normal).sum(-1)[smooth]
    # Two parallel faces of neighbouring objects may pass for one.
    assert np.quantile(cosine, 0.002) > 0.9999
    assert (cosine > 0.999).mean() > 0.998


def test_spheres_are_round():
    """Points less radius times normal are one centre, also the radius."""
    seen = 0
    for index in range(20):
        sample = scene(index, ScenesSpec(max_objects=1, invalid_fraction=0))
        ball = sample.label == SPHERE
        if ball.sum() < 60:
            continue
        seen += 1
        points, normal = points_of(sample)[ball], sample.normal[ball]
        # points = centre + radius * normal, solved for both.
        system = np.concatenate(
            [
                np.concatenate([np.eye(3), n[:, None]], 1)
                for n in normal.astype(np.float64)
            ]
        )
        solved, *_ = np.linalg.lstsq(system, points.ravel(), rcond=None)
        assert np.abs(system @ solved - points.ravel()).max() < 1e-4
        assert 0.2 < solved[3] < 0.5
    assert seen >= 3


def test_pillars_are_upright_and_round():
    for index in range(20):
        sample = scene(index)
        round_part = sample.label == PILLAR
        floor = sample.label == FLOOR
        if round_part.sum() > 200 and floor.sum() > 200:
            up = sample.normal[floor].mean(0)
            assert np.abs(sample.normal[round_part] @ up).max() < 1e-5
            return
    raise AssertionError('no pillar')


def test_rooms_have_right_angles():
    sample = scene(1)
    floor = sample.normal[sample.label == FLOOR]
    wall = sample.normal[sample.label == WALL]
    assert np.ptp(floor, axis=0).max() < 1e-6
    assert np.abs(wall @ floor[0]).max() < 1e-6
    np.testing.assert_allclose(
        sample.normal[sample.label == CEILING] @ floor[0], -1, atol=1e-6
    )


@pytest.mark.parametrize('index', range(4))
def test_normals_face_the_camera_and_all_is_in_range(index):
    sample = scene(index)
    rays = scene_rays(160, 120)
    assert ((sample.normal * rays).sum(-1) < 1e-6).all()
    np.testing.assert_allclose(
        np.linalg.norm(sample.normal, axis=-1), 1, atol=1e-6
    )
    assert sample.depth.min() > 0
    assert sample.depth.max() < 9
    assert sample.image.min() >= 0
    assert sample.image.max() <= 1
    assert set(np.unique(sample.label)) <= set(range(6))


def test_every_class_occurs_often():
    counts = sum(
        np.bincount(
            scene(i, ScenesSpec(image_size=(64, 48), invalid_fraction=0))
            .label.astype(int)
            .ravel(),
            minlength=6,
        )
        for i in range(40)
    )
    assert (counts / counts.sum() > 0.01).all()


def test_invalid_pixels_and_noise():
    spec = ScenesSpec(image_size=(160, 120), noise=0.1, invalid_fraction=0.2)
    fractions = []
    for index in range(5):
        sample, exact = scene(index, spec), scene(index)
        hole = sample.depth[..., 0] == 0
        assert (hole == (sample.normal == 0).all(-1)).all()
        np.testing.assert_array_equal(sample.depth[~hole], exact.depth[~hole])
        void = sample.label == -1
        np.testing.assert_array_equal(sample.label[~void], exact.label[~void])
        fractions += [hole.mean(), void.mean()]
    assert 0.12 < np.mean(fractions) < 0.28


def test_the_same_arguments_give_the_same_scene():
    for name in ('image', 'label', 'depth', 'normal'):
        one, same = getattr(scene(3), name), getattr(scene(3), name)
        np.testing.assert_array_equal(one, same)
        assert one.dtype == np.float32
    other = draw_scene(CLEAN, split=1, index=3)
    assert np.abs(other.image - scene(3).image).max() > 0.1


@pytest.mark.parametrize(
    ('settings', 'error', 'message'),
    [
        (dict(image_size=(8, 64)), ValueError, r'image_size must be in \[16,'),
        (dict(image_size=(64.0, 64)), TypeError, 'image_size must be an int'),
        (dict(image_size=(64,)), ValueError, r'image_size must be \(W, H\)'),
        (dict(max_objects=0), ValueError, r'max_objects must be in \[1, 20\]'),
        (dict(noise=-1), ValueError, r'noise must be in \[0, 1\], got -1'),
        (dict(invalid_fraction=0.7), ValueError, 'invalid_fraction must be'),
        (dict(seed=-1), ValueError, 'seed must be in'),
    ],
)
def test_bad_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        ScenesSpec(**settings)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in folder.rglob('*')
        if path.is_file()
    }


SMALL = ScenesSpec(image_size=(32, 24), seed=5)


def test_files_are_in_the_layout_and_reproducible(tmp_path):
    counted = []
    for name in 'ab':
        report = write_scenes_dataset(
            tmp_path / name,
            SMALL,
            num_train=3,
            num_val=2,
            on_image=lambda: counted.append(1),
        )
    assert report == {'train': 3, 'val': 2}
    assert len(counted) == 10
    assert digests(tmp_path / 'a') == digests(tmp_path / 'b')
    assert len(digests(tmp_path / 'a')) == 4 * 5 + 1
    val = draw_scene(SMALL, split=1, index=1)
    for name, shape in {
        'image': (24, 32, 3),
        'label': (24, 32),
        'depth': (24, 32, 1),
        'normal': (24, 32, 3),
    }.items():
        stored = np.load(tmp_path / 'a' / 'val' / name / '1.npy')
        assert stored.shape == shape
        np.testing.assert_array_equal(stored, getattr(val, name))
    notes = json.loads((tmp_path / 'a' / 'scenes_dataset.json').read_text())
    assert tuple(notes['classes']) == SCENE_CLASSES
    assert notes['seed'] == 5
