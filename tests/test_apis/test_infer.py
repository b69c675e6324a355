"""What comes out is what is in the image, in its own pixels."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.apis import inference_detector
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from mmext import config_path
from mmext.apis.detector import load_detector
from mmext.apis.infer import (
    UnreadableImageError,
    infer_images,
    is_video,
    list_images,
    output_paths,
)
from mmext.apis.prediction_files import infer_to_folder

RED, BLUE = (10, 20, 50, 60), (80, 30, 120, 70)


@pytest.fixture
def image(finder, tmp_path):
    """Half as high and as wide as the input of the model."""
    return finder.paint(tmp_path / 'a.png', (160, 80), red=RED, blue=BLUE)


def test_boxes_are_in_pixels_of_the_image(model, image):
    (prediction,) = infer_images(model, [image])
    # The pipeline makes 200 x 100 of 160 x 80: patches stay whole pixels
    # within one pixel of the input.
    np.testing.assert_allclose(prediction.boxes, [RED, BLUE], atol=0.8)
    assert prediction.labels.tolist() == [0, 1]
    np.testing.assert_allclose(prediction.scores, [0.9, 0.4])
    assert prediction.path == image
    assert prediction.boxes.dtype == prediction.scores.dtype == np.float32
    assert prediction.labels.dtype == np.int64
    assert prediction.masks is None


def test_a_folder_and_arrays(finder, model, image):
    finder.paint(image.with_name('0.png'), (160, 80), blue=BLUE)
    image.with_name('film.mp4').write_bytes(b'no picture')
    one, two = infer_images(model, str(image.parent))
    assert [one.path.name, two.path] == ['0.png', image]
    array = cv2.imread(str(image))
    for images in (array, [array], [image, array]):
        *_, prediction = infer_images(model, images, batch_size=2)
        np.testing.assert_array_equal(prediction.boxes, two.boxes)
        np.testing.assert_array_equal(prediction.image, two.image)
    assert str(prediction.path) == 'array_1'
    with pytest.raises(ValueError, match=r'\(H, W, 3\), uint8, blue green'):
        list(infer_images(model, array / 255))
    with pytest.raises(FileNotFoundError, match='does not exist'):
        infer_images(model, str(image.parent / 'none'))


def test_boxes_where_width_and_height_scale_differently(finder, model):
    path = finder.paint(Path(image_dir(model), 'b.png'), (50, 200), red=RED)
    (prediction,) = infer_images(model, [path])
    # 4 times wider, half as high: blurred by at most two pixels.
    np.testing.assert_allclose(prediction.boxes, [RED], atol=2.01)


def image_dir(model):
    return Path(model.cfg.data_root)


@pytest.mark.parametrize(
    ('threshold', 'labels'), [(0, [0, 1]), (0.4, [0, 1]), (0.5, [0]), (1, [])]
)
def test_threshold(model, image, threshold, labels):
    model.scores.data = torch.tensor([0.875, 0.4])
    (prediction,) = infer_images(
        model, [image], score_thr=np.float32(threshold)
    )
    assert prediction.labels.tolist() == labels
    assert prediction.boxes.shape == (len(labels), 4)


def test_batches_change_nothing(finder, model, tmp_path):
    images = [
        finder.paint(tmp_path / f'{i}.png', (100, 50), red=(i, 5, i + 20, 30))
        for i in range(5)
    ]
    one = list(infer_images(model, images))
    assert model.batch_sizes == [1] * 5
    model.batch_sizes.clear()
    two = list(infer_images(model, images, batch_size=2))
    assert model.batch_sizes == [2, 2, 1]
    assert [item.path for item in two] == images
    for left, right in zip(one, two):
        np.testing.assert_array_equal(left.boxes, right.boxes)


def test_masks(finder, model, image):
    model.masks = True
    (prediction,) = infer_images(model, [image], score_thr=0.5)
    assert prediction.masks.shape == (1, 80, 160)
    assert prediction.masks.dtype == bool
    expected = np.zeros((80, 160), bool)
    expected[RED[1] : RED[3], RED[0] : RED[2]] = True
    union = (prediction.masks[0] | expected).sum()
    assert (prediction.masks[0] & expected).sum() > 0.95 * union


def damaged(folder):
    """Files that are cut off, of another kind, and empty."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(folder / 'cut.jpg')
    content = (folder / 'cut.jpg').read_bytes()
    (folder / 'cut.jpg').write_bytes(content[: len(content) // 2])
    (folder / 'text.jpg').write_bytes(b'no image')
    (folder / 'empty.jpg').touch()
    return [folder / f'{name}.jpg' for name in ('cut', 'text', 'empty')]


@pytest.mark.parametrize('batch_size', [1, 3])
def test_goes_on_after_damaged_images(model, image, tmp_path, batch_size):
    bad = [*damaged(tmp_path), tmp_path / 'missing.png']
    reported = []
    predictions = infer_images(
        model,
        [bad[0], image, *bad[1:]],
        batch_size=batch_size,
        on_unreadable=lambda path, error: reported.append((path, str(error))),
    )
    assert [item.path for item in predictions] == [image]
    assert [path for path, _ in reported] == bad
    assert all(str(path) in reason for path, reason in reported)
    with pytest.raises(UnreadableImageError, match=r'cut\.jpg.*repair'):
        list(infer_images(model, bad))


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'score_thr': -0.1}, 'score_thr must be in'),
        ({'score_thr': float('nan')}, 'score_thr must be in'),
        ({'batch_size': 0}, 'batch_size must be at least 1'),
        ({}, 'model must be in eval mode'),
    ],
)
def test_rejects_arguments(model, image, options, message):
    model.train(not options)
    with pytest.raises(ValueError, match=message):
        infer_images(model, [image], **options)


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_rejects_broken_weights(model, image, value):
    model.scores.data[0] = value
    with pytest.raises(ValueError, match='must predict finite numbers'):
        list(infer_images(model, [image]))


def test_rejects_models_of_another_kind(model, image, monkeypatch):
    pipeline = model.cfg.test_dataloader.dataset.pipeline
    with monkeypatch.context() as patch:
        patch.setattr(model, 'test_step', lambda data: [object()])
        with pytest.raises(ValueError, match='must predict instances'):
            list(infer_images(model, [image]))
    pipeline[0].type = 'LoadOther'
    with pytest.raises(ValueError, match='must begin with LoadImageFromFile'):
        list(infer_images(model, [cv2.imread(str(image))]))
    pipeline[:] = [{'type': 'mmdet.PackDetInputs', 'meta_keys': ['img_path']}]
    with pytest.raises(ValueError, match='pipeline must load an image'):
        list(infer_images(model, [image]))


@pytest.mark.filterwarnings('ignore:DeprecationWarning.*num_anchors')
@pytest.mark.parametrize(
    'name',
    ['mae/mae_vit_mini_retinanet_shapes.py', 'co_dino/co_dino_r18_shapes.py'],
)
def test_matches_mmdet_on_a_shipped_config(tmp_path, name):
    config = Config.fromfile(config_path(name))
    with DefaultScope.overwrite_default_scope('mmdet'):
        weights = MODELS.build(config.model).state_dict()
    torch.save({'state_dict': weights}, tmp_path / 'random.pth')
    model = load_detector(config, tmp_path / 'random.pth', device='cpu')
    noise = np.random.default_rng(0).integers(0, 255, (50, 90, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / 'a.png')
    (prediction,) = infer_images(model, [tmp_path / 'a.png'], score_thr=0)
    expected = inference_detector(model, str(tmp_path / 'a.png'))
    expected = expected.pred_instances
    assert len(prediction.boxes) == len(expected) > 0
    order = expected.scores.argsort(descending=True, stable=True)
    for name, mine in (
        ('scores', prediction.scores),
        ('bboxes', prediction.boxes),
        ('labels', prediction.labels),
    ):
        np.testing.assert_array_equal(mine, expected[name][order].numpy())
    assert prediction.boxes.min() >= 0
    assert (prediction.boxes.max(axis=0) <= [90, 50, 90, 50]).all()
    assert len(model.dataset_meta['classes']) == 6


@pytest.fixture
def folder(tmp_path):
    for name in (
        *('b.png', 'a.JPG', 'notes.txt', '.hidden.png', 'sub/c.jpg'),
        *('clip.MP4', 'sub/d.webm'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(paths):
    return [path.name for path in paths]


def test_folders_and_patterns_give_images_sorted(folder):
    images = list_images([folder])
    assert names(images) == ['a.JPG', 'b.png', 'clip.MP4']
    assert [is_video(path) for path in images] == [False, False, True]
    images = names(list_images([f'{folder}/**/*.*']))
    assert images == ['a.JPG', 'b.png', 'clip.MP4', 'c.jpg', 'd.webm']


def test_files_keep_their_order_and_come_once(folder):
    (folder / 'link.png').symlink_to(folder / 'b.png')
    images = list_images([folder / 'sub/c.jpg', folder / 'b.png', folder])
    assert names(images) == ['c.jpg', 'b.png', 'a.JPG', 'clip.MP4']
    # A file may have any suffix, and the characters of a pattern.
    (folder / 'img[1].png').touch()
    files = [folder / 'notes.txt', folder / 'img[1].png']
    assert list_images(files) == files


def test_rejects_what_is_not_there_and_names_all(folder):
    (folder / 'empty').mkdir()
    sources = [folder / 'b.png', folder / 'no.png', folder / 'empty']
    with pytest.raises(FileNotFoundError) as caught:
        list_images([*sources, f'{folder}/*.bmp'])
    for part in (
        'no.png (does not exist)',
        'empty (a directory without images)',
        '*.bmp (does not exist)',
    ):
        assert part in str(caught.value)
    assert 'b.png' not in str(caught.value)
    with pytest.raises(ValueError, match='images must name at least one'):
        list_images([])


def test_same_names_keep_their_folders():
    names = ['s/x.png', 't/x.png', 't/y.tif', 't/z.mp4', 't/z.avi']
    images = [Path('a', name) for name in names]
    assert output_paths(images, 'out') == [
        Path('out/s/x.png'),
        Path('out/t/x.png'),
        Path('out/t/y.tif.png'),
        Path('out/t/z.mp4'),
        Path('out/t/z.avi.mp4'),
    ]
    paths = output_paths([Path('x.png'), Path('x.bmp')], 'out')
    assert len(set(paths)) == 2


@pytest.mark.parametrize('how', ['plain', 'link', 'relative'])
def test_rejects_writing_over_an_image(folder, how):
    out = folder
    if how == 'link':
        out = folder / 'out'
        out.symlink_to(folder)
    elif how == 'relative':
        out = os.path.relpath(folder)
    with pytest.raises(ValueError, match='would be written over'):
        infer_to_folder(None, [folder / 'b.png'], out)
