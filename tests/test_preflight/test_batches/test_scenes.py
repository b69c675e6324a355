import numpy as np
import pytest

from mmext.preflight.batches.scenes import make_scene

SIZE = (96, 160)


def scene(kind, size=SIZE, seed=0, **options):
    options = {'num_classes': 7, **options}
    return make_scene(kind, size, rng=np.random.default_rng(seed), **options)


@pytest.mark.parametrize('kind', ['normal', 'empty', 'one-class', 'crowded'])
@pytest.mark.parametrize('size', [SIZE, (32, 32)])
def test_everything_is_inside_and_of_its_type(kind, size):
    made = scene(kind, size)
    height, width = size
    assert made.size == size
    assert made.image.shape == (*size, 3)
    assert made.image.dtype == np.uint8
    assert made.boxes.dtype == np.float32
    assert made.labels.dtype == np.int64
    assert len(made.boxes) == len(made.labels) == len(made.ignored)
    x1, y1, x2, y2 = made.boxes.T
    assert (x1 >= 0).all()
    assert (y1 >= 0).all()
    assert (x2 <= width).all()
    assert (y2 <= height).all()
    assert (x2 - x1 >= 3.9).all()
    assert (y2 - y1 >= 3.9).all()
    assert ((made.labels >= 0) & (made.labels < 7)).all()


def test_kinds_differ_as_told():
    normal, crowded = scene('normal'), scene('crowded')
    assert len(normal.boxes) == 6
    assert len(set(normal.labels)) == 6
    assert not normal.ignored.any()
    assert len(crowded.boxes) == 200
    assert crowded.ignored.sum() == 20
    assert len(scene('empty').boxes) == 0
    assert set(scene('one-class').labels) == {0}


def test_objects_are_of_many_sizes():
    boxes = scene('normal', (160, 256)).boxes
    sides = np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    assert sides.min() < 32
    assert sides.max() > 120


def test_few_classes():
    assert set(scene('normal', num_classes=1).labels) == {0}


def test_labels_of_pixels():
    labels = scene('normal').pixel_labels(5, ignore_index=9)
    assert set(np.unique(labels)) == {0, 1, 2, 3, 4, 9}
    assert set(np.unique(scene('empty').pixel_labels(5))) == {255}
    one = scene('one-class').pixel_labels(5)
    assert set(np.unique(one)) == {0, 255}
    assert scene('normal').pixel_labels(5, first=20).min() == 20


def test_objects_lie_on_stuff():
    made = scene('normal')
    labels = made.panoptic_labels(7, 4)
    top = made.bitmaps()[-1].astype(bool)
    assert (labels[top] == made.labels[-1]).all()
    stuff = set(np.unique(labels)) - set(made.labels.tolist()) - {255}
    assert stuff
    assert stuff <= {7, 8, 9, 10}


def test_masks_fill_their_boxes():
    made = scene('normal')
    masks = made.bitmaps()
    assert masks.shape == (6, *SIZE)
    for mask, box, (outline,) in zip(masks, made.boxes, made.polygons()):
        area = (box[2] - box[0]) * (box[3] - box[1])
        assert 0.6 * area < mask.sum() < 0.95 * area
        points = outline.reshape(-1, 2)
        assert (points >= box[:2] - 1e-3).all()
        assert (points <= box[2:] + 1e-3).all()


def test_channels_and_seed():
    assert scene('normal', channels=25).image.shape[2] == 25
    first, again, other = (scene('normal', seed=s).image for s in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()
