"""Pictures and predictions are complete, and images stay as they are."""

import importlib
import json
import os

import numpy as np
import pytest
from PIL import Image

from mmext.apis.detector import load_detector
from mmext.apis.infer_to_folder import infer_to_folder
from mmext.apis.samples import GroundTruth


@pytest.fixture
def finder(monkeypatch, checkout):
    monkeypatch.syspath_prepend(checkout / 'tests' / 'reference')
    return importlib.import_module('rectangle_finder')


@pytest.fixture
def model(finder, tmp_path):
    return load_detector(
        finder.write_config(tmp_path),
        finder.write_checkpoint(tmp_path),
        device='cpu',
    )


@pytest.fixture
def images(finder, tmp_path):
    return [
        finder.paint(tmp_path / 'in/a.png', (64, 48), red=(5, 6, 25, 30)),
        finder.paint(tmp_path / 'in/b.png', (64, 48), blue=(9, 9, 40, 40)),
        finder.paint(tmp_path / 'in/c.png', (64, 48)),
    ]


def test_writes_a_picture_of_each_image_and_the_numbers(
    model, images, tmp_path
):
    out = tmp_path / 'out'
    report = infer_to_folder(model, images, out, score_thr=0.3)
    assert sorted(os.listdir(out)) == [
        'a.png',
        'b.png',
        'c.png',
        'predictions.json',
    ]
    content = json.loads((out / 'predictions.json').read_text())
    assert [row['image'] for row in content['images']] == [
        str(image) for image in images
    ]
    assert [row['names'] for row in content['images']] == [
        ['red'],
        ['blue'],
        [],
    ]
    assert content['score_thr'] == 0.3
    assert report.pictures == tuple(out / f'{name}.png' for name in 'abc')
    assert report.num_objects == 2
    assert report.json_path == out / 'predictions.json'
    assert report.sheet is None
    assert report.failed == ()
    assert np.array(Image.open(out / 'a.png')).shape == (480, 640, 3)


def test_threshold_counts_for_all(model, images, tmp_path):
    report = infer_to_folder(model, images, tmp_path / 'out', score_thr=0.5)
    assert report.num_objects == 1


def test_running_again_replaces(model, images, tmp_path):
    out = tmp_path / 'out'
    infer_to_folder(model, images, out)
    first = {name: (out / name).read_bytes() for name in os.listdir(out)}
    (out / 'a.png').write_text('old')
    (out / 'other.txt').write_text('mine')
    infer_to_folder(model, images, out)
    again = {name: (out / name).read_bytes() for name in os.listdir(out)}
    assert again == {**first, 'other.txt': b'mine'}


def test_ground_truth_and_sheet(model, images, tmp_path):
    truth = GroundTruth(
        path=images[0],
        boxes=np.array([[5, 6, 25, 30]], np.float32),
        labels=np.array([0]),
        classes=('red', 'blue'),
    )
    report = infer_to_folder(
        model, images, tmp_path / 'out', truths=[truth], sheet=True
    )
    wide = [Image.open(path).width for path in report.pictures]
    assert wide[0] > 2 * 640
    assert wide[1:] == [640, 640]
    assert report.sheet == tmp_path / 'out' / 'contact_sheet.png'
    assert Image.open(report.sheet).width > 640


def test_finishes_the_others(model, images, tmp_path):
    images[1].write_bytes(b'no image')
    report = infer_to_folder(model, images, tmp_path / 'out')
    assert [path.name for path in report.pictures] == ['a.png', 'c.png']
    ((path, reason),) = report.failed
    assert path == images[1]
    assert 'b.png' in reason
    content = json.loads(report.json_path.read_text())
    assert content['failed'] == [{'image': str(path), 'reason': reason}]


def test_nothing_readable_still_says_so(model, tmp_path):
    path = tmp_path / 'bad.png'
    path.write_bytes(b'')
    report = infer_to_folder(model, [path], tmp_path / 'out', sheet=True)
    assert report.pictures == ()
    assert report.sheet is None
    assert len(report.failed) == 1


def test_images_stay_as_they_are(model, images, tmp_path):
    before = [image.read_bytes() for image in images]
    infer_to_folder(model, images, tmp_path / 'out', sheet=True)
    assert [image.read_bytes() for image in images] == before


def test_rejects_the_folder_of_the_images(model, images):
    before = os.listdir(images[0].parent)
    with pytest.raises(ValueError, match='out must not be a folder of the'):
        infer_to_folder(model, images, images[0].parent)
    assert os.listdir(images[0].parent) == before


def test_rejects_predictions_in_place_of_an_image(model, images, tmp_path):
    with pytest.raises(ValueError, match='out must not be one of the images'):
        infer_to_folder(model, images, tmp_path / 'out', json_path=images[2])


def test_rejects_a_threshold_out_of_range(model, images, tmp_path):
    with pytest.raises(ValueError, match='score_thr must be in'):
        infer_to_folder(model, images, tmp_path / 'out', score_thr=2)
    assert not (tmp_path / 'out').exists()
