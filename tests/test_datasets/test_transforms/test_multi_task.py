"""Depth and normals go with the picture, and stay what they mean."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmext.datasets import ScenesSpec, draw_scene
from mmext.datasets.transforms import (
    LoadMultiTaskAnnotations,
    MultiTaskRandomFlip,
    MultiTaskRandomScaleCrop,
    MultiTaskResize,
    PackMultiTaskInputs,
)

MAPS = ('img', 'gt_seg_map', 'gt_depth', 'gt_normal')
KEYS = {
    'image': 'img_path',
    'label': 'seg_map_path',
    'depth': 'depth_path',
    'normal': 'normal_path',
}
SCENE = draw_scene(
    ScenesSpec(image_size=(60, 48), invalid_fraction=0.1), split=0, index=4
)


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    for name in KEYS:
        np.save(tmp_path / f'{name}.npy', getattr(SCENE, name))
    return {key: str(tmp_path / f'{n}.npy') for n, key in KEYS.items()}


@pytest.fixture
def sample(paths) -> dict:
    return LoadMultiTaskAnnotations()(paths)


def copied(results: dict) -> dict:
    return {
        key: value.copy() if key in MAPS else value
        for key, value in results.items()
    }


def test_loading(sample):
    np.testing.assert_array_equal(
        sample['img'], SCENE.image[..., ::-1] * np.float32(255)
    )
    label = sample['gt_seg_map']
    assert label.dtype == np.uint8
    np.testing.assert_array_equal(label == 255, SCENE.label == -1)
    known = label != 255
    np.testing.assert_array_equal(label[known], SCENE.label[known])
    np.testing.assert_array_equal(sample['gt_depth'], SCENE.depth[..., 0])
    np.testing.assert_array_equal(sample['gt_normal'], SCENE.normal)
    assert sample['ori_shape'] == sample['img_shape'] == (48, 60)


def test_loading_takes_other_dtypes_and_only_what_is_there(tmp_path):
    np.save(tmp_path / 'a.npy', SCENE.label.astype(np.int64))
    np.save(tmp_path / 'b.npy', SCENE.depth[..., 0].astype(np.float64))
    paths = {'seg_map_path': str(tmp_path / 'a.npy')}
    paths['depth_path'] = str(tmp_path / 'b.npy')
    results = LoadMultiTaskAnnotations()(paths)
    assert (results['gt_seg_map'] == 255).sum() == (SCENE.label == -1).sum()
    assert results['gt_depth'].dtype == np.float32
    assert 'img' not in results


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, str]:
    """The scene as picture files, depth in millimetres."""
    rgb = np.rint(SCENE.image * 255).astype(np.uint8)
    label = np.where(SCENE.label == -1, 255, SCENE.label)
    label = Image.fromarray(label.astype(np.uint8), mode='P')
    label.putpalette(np.arange(768)[::-1].astype(np.uint8).tobytes())
    depth = np.rint(SCENE.depth[..., 0] * 1000).astype(np.uint16)
    Image.fromarray(rgb).save(tmp_path / 'image.png')
    label.save(tmp_path / 'label.png')
    Image.fromarray(depth).save(tmp_path / 'depth.png')
    names = {k: n for n, k in KEYS.items() if n != 'normal'}
    return {key: str(tmp_path / f'{n}.png') for key, n in names.items()}


def test_picture_files_give_what_npy_files_give(pictures, sample):
    results = LoadMultiTaskAnnotations(depth_unit=0.001)(pictures)
    assert np.abs(results['img'] - sample['img']).max() <= 0.5
    np.testing.assert_array_equal(results['gt_seg_map'], sample['gt_seg_map'])
    assert np.abs(results['gt_depth'] - sample['gt_depth']).max() <= 5.1e-4
    assert results['gt_depth'].dtype == results['img'].dtype == np.float32
    results['gt_label'] = 3
    element = PackMultiTaskInputs()(results)['data_samples']
    assert element.gt_label.dtype == torch.int64
    assert element.gt_label == 3


def test_picture_files_that_do_not_say_enough(pictures):
    with pytest.raises(ValueError, match='depth_unit must be given'):
        LoadMultiTaskAnnotations()(pictures)
    with pytest.raises(ValueError, match='depth_unit must be metres above 0'):
        LoadMultiTaskAnnotations(depth_unit=0)
    with pytest.raises(ValueError, match='normals must be in an npy file'):
        LoadMultiTaskAnnotations()({'normal_path': pictures['img_path']})
    Path(pictures['depth_path']).write_bytes(b'\x89PNG\r\n\x1a\n')
    with pytest.raises(
        ValueError, match=r'depth\.png must be a whole picture'
    ):
        LoadMultiTaskAnnotations(depth_unit=1)(pictures)


def changed(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[7, 5] = value
    return array


@pytest.mark.parametrize(
    ('key', 'array', 'message'),
    [
        ('seg_map_path', changed(SCENE.label, 1.5), 'classes must be whole'),
        ('seg_map_path', changed(SCENE.label, -2), r'\[-1, 255\], got -2'),
        ('depth_path', changed(SCENE.depth, -1), 'depth must be at least 0'),
        ('depth_path', changed(SCENE.depth, np.inf), 'values must be finite'),
        ('normal_path', changed(SCENE.normal, np.nan), 'must be finite'),
        ('img_path', changed(SCENE.image, np.nan), 'must be finite'),
        ('img_path', SCENE.image[..., 0], r'shape \(H, W, 3\), got \(48, 60'),
        ('depth_path', SCENE.normal, r'shape \(H, W\), got \(48, 60, 3\)'),
        ('depth_path', np.array([{}], object), 'an npy file of numbers'),
    ],
)
def test_bad_files_are_named(tmp_path, key, array, message):
    path = tmp_path / 'x.npy'
    np.save(path, array, allow_pickle=True)
    with pytest.raises(ValueError, match=message) as error:
        LoadMultiTaskAnnotations()({key: str(path)})
    assert str(path) in str(error.value)
    if array.ndim and array.shape[:2] == (48, 60) and 'shape' not in message:
        assert '(y=7, x=5)' in str(error.value)


@pytest.mark.parametrize(
    ('direction', 'window', 'signs'),
    [
        ('horizontal', np.s_[:, ::-1], (-1, 1, 1)),
        ('vertical', np.s_[::-1], (1, -1, 1)),
        ('diagonal', np.s_[::-1, ::-1], (-1, -1, 1)),
    ],
)
def test_flips_mirror_normals(sample, direction, window, signs):
    flip = MultiTaskRandomFlip(prob=1.0, direction=direction)
    results = flip(copied(sample))
    expected = sample['gt_normal'][window] * np.array(signs, np.float32)
    np.testing.assert_array_equal(results['gt_normal'], expected)
    for key in ('img', 'gt_seg_map', 'gt_depth'):
        np.testing.assert_array_equal(results[key], sample[key][window])


def assert_sound(results: dict) -> None:
    """Normals are unit or zero, labels and depths occur in the source."""
    length = np.linalg.norm(results['gt_normal'], axis=-1)
    valid = results['gt_normal'].any(-1)
    np.testing.assert_allclose(length[valid], 1, atol=1e-5)
    assert (length[~valid] == 0).all()
    assert {len(results[key]) for key in MAPS} == {results['img_shape'][0]}
    assert results['gt_seg_map'].dtype == np.uint8


@pytest.mark.parametrize('size', [(120, 96), (30, 24), (73, 41)])
def test_resize(sample, size):
    results = MultiTaskResize(scale=size)(copied(sample))
    assert_sound(results)
    assert results['img'].shape == (size[1], size[0], 3)
    # Depth is that of a source pixel; invalid for depth is so for normals.
    assert np.isin(results['gt_depth'], sample['gt_depth']).all()
    assert np.isin(results['gt_seg_map'], sample['gt_seg_map']).all()
    invalid = results['gt_depth'] == 0
    assert (results['gt_normal'].any(-1) == ~invalid).mean() > 0.99
    assert not results['gt_normal'][invalid].any()


def test_resized_normals_of_a_plane_stay(sample):
    """Next to invalid pixels, too: zeros turn no normal."""
    normal = np.zeros((8, 8, 3), np.float32)
    normal[:] = np.array([0.6, 0.0, -0.8])
    normal[2:4, 3:6] = 0
    img = np.zeros((8, 8, 3), np.float32)
    results = MultiTaskResize(scale=(19, 19))(
        {'img': img, 'gt_normal': normal}
    )
    valid = results['gt_normal'].any(-1)
    assert 0.7 < valid.mean() < 0.95
    np.testing.assert_allclose(
        results['gt_normal'][valid],
        np.broadcast_to([0.6, 0.0, -0.8], (valid.sum(), 3)),
        atol=1e-6,
    )


@pytest.mark.parametrize('scale', [1.2, 1.5, 2.0])
def test_enlarged_depth_is_divided_and_keeps_the_geometry(scale):
    """x = (u - cu) * z is that of the source, cu moved along."""
    height, width = 48, 60
    columns = np.arange(width, dtype=np.float32)[None].repeat(height, 0)
    rows = np.arange(height, dtype=np.float32)[:, None].repeat(width, 1)
    depth = 1 + rows * width + columns  # Tells which pixel it is of.
    maps = {'img': np.stack([columns, rows, rows], -1), 'gt_depth': depth}
    np.random.seed(1)
    results = MultiTaskRandomScaleCrop(scales=(scale,))(dict(maps))
    source = results['gt_depth'] * np.float32(scale) - 1
    np.testing.assert_allclose(source, np.rint(source), atol=2e-3)
    u, v = np.rint(source) % width, np.rint(source) // width
    # The picture shows where the pixel was: within half a source pixel.
    inner = np.s_[2:-2, 2:-2]
    assert np.abs(results['img'][..., 0] - u)[inner].max() <= 0.76
    assert np.abs(results['img'][..., 1] - v)[inner].max() <= 0.76
    # Pixels of the result are 1 / scale apart in the source.
    steps = np.diff(results['img'][24, 4:-4, 0])
    np.testing.assert_allclose(steps.mean(), 1 / scale, rtol=0.03)
    # One principal point fits all pixels: x = (u - cu) * z is kept.
    source_x = (results['img'][..., 0] - 29.5) * (source + 1)
    centre = columns - source_x / results['gt_depth']
    assert np.ptp(centre[inner]) < 0.1


def test_scale_crop_of_a_scene(sample):
    crop = MultiTaskRandomScaleCrop()
    drawn = set()
    for seed in range(12):
        np.random.seed(seed)
        results = crop(copied(sample))
        assert_sound(results)
        assert results['img'].shape == sample['img'].shape
        scale = sample['gt_depth'].max() / results['gt_depth'].max()
        nearest = min((1.0, 1.2, 1.5), key=lambda s: abs(s - scale))
        drawn.add(nearest)
        depths = results['gt_depth'] * np.float32(nearest)
        if scale == pytest.approx(nearest, rel=1e-3):
            gap = np.abs(
                depths.ravel()[:, None] - np.unique(sample['gt_depth'])
            ).min(1)
            assert gap.max() < 1e-5
    assert len(drawn) > 1
    np.random.seed(0)
    same = MultiTaskRandomScaleCrop(scales=[1.0])(copied(sample))
    for key in ('img', 'gt_seg_map', 'gt_depth'):
        np.testing.assert_allclose(same[key], sample[key], atol=1e-6)


def test_bad_scales():
    with pytest.raises(ValueError, match=r'at least 1, got \(0\.5, 1\)'):
        MultiTaskRandomScaleCrop(scales=(0.5, 1))


def test_packing(sample):
    packed = PackMultiTaskInputs()(sample)
    element = packed['data_samples']
    assert packed['inputs'].shape == (3, 48, 60)
    assert packed['inputs'].dtype == torch.float32
    assert element.gt_sem_seg.data.shape == (1, 48, 60)
    assert element.gt_sem_seg.data.dtype == torch.int64
    assert element.gt_depth.data.shape == (1, 48, 60)
    assert element.gt_normal.data.shape == (3, 48, 60)
    np.testing.assert_array_equal(
        element.gt_normal.data.numpy().transpose(1, 2, 0), SCENE.normal
    )
    assert element.ori_shape == (48, 60)
    assert 'flip' not in element.metainfo_keys()
