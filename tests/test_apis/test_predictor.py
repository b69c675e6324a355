"""A model that is called: its results are those of the tool, however asked."""

import json
import re
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers import random_checkpoints
from helpers.toy_ranks import load_tool
from mmdet.structures import DetDataSample
from mmseg.structures import SegDataSample
from PIL import Image

import mmext
from mmext.apis import Predictor
from mmext.apis.prediction_files import write_video

RED, BLUE = (10, 20, 50, 60), (80, 30, 120, 70)


@pytest.fixture
def predictor(model):
    return Predictor(model)


@pytest.fixture
def image(finder, tmp_path):
    return finder.paint(tmp_path / 'in/a.png', (160, 80), red=RED, blue=BLUE)


def boxes(results):
    return [result.boxes.round().tolist() for result in results]


def test_what_is_given_decides_what_comes(predictor, finder, image):
    """One picture: a result; a list: a list; else an iterator."""
    finder.paint(image.with_name('b.png'), (100, 90), blue=BLUE)
    one = predictor(image)
    assert isinstance(one, DetDataSample)
    assert one.names == ['red', 'blue']
    array = cv2.imread(str(image))
    with Image.open(image) as picture:
        many = predictor([str(image), array, picture, picture.convert('RGBA')])
        assert boxes([predictor(array), predictor(picture)]) == boxes(
            [one] * 2
        )
    assert isinstance(many, list)
    assert boxes(many) == boxes([one] * 4)
    assert [str(item.path) for item in many[1:]] == [
        f'array_{n}' for n in (1, 2, 3)
    ]
    for images in (
        str(image.parent),
        image.parent / '*.png',
        iter(sorted(image.parent.iterdir())),
    ):
        results = predictor(images, batch_size=2)
        assert next(results).path.name == 'a.png'
        assert [item.path.name for item in results] == ['b.png']


def test_frames_of_a_video(predictor, image, tmp_path):
    frames = [np.array(Image.open(image))] * 3
    with write_video(tmp_path / 'a.mp4', 5) as write:
        for frame in frames:
            write(frame)
    results = predictor(tmp_path / 'a.mp4', batch_size=2)
    assert not isinstance(results, list)
    names = [frame.names for frame in results]
    assert names == [['red', 'blue']] * 3
    with pytest.raises(ValueError, match=r'name one video, got .*a\.mp4'):
        predictor(str(tmp_path))


def test_a_turned_photo(predictor, image, tmp_path):
    """As OpenCV reads it, when Pillow has it."""
    with Image.open(image) as picture:
        exif = picture.getexif()
        exif[0x0112] = 6
        picture.save(tmp_path / 'turned.png', exif=exif)
    with Image.open(tmp_path / 'turned.png') as picture:
        result = predictor(picture)
    assert result.image.shape == (160, 80, 3)
    assert boxes([result]) == boxes([predictor(tmp_path / 'turned.png')])


def test_threshold_and_picture(predictor, image, tmp_path):
    for threshold, names in ((0.3, ['red', 'blue']), (0.5, ['red']), (1, [])):
        result = predictor(image, threshold=threshold)
        assert result.names == names
        assert len(result.pred_instances) == len(names)
    assert predictor(image).names == ['red', 'blue']
    picture = predictor(image).plot(tmp_path / 'new/drawn.png')
    np.testing.assert_array_equal(
        picture, Image.open(tmp_path / 'new/drawn.png')
    )
    tool = load_tool('infer')
    assert tool.main([*arguments(image, tmp_path), '--device', 'cpu']) == 0
    np.testing.assert_array_equal(picture, Image.open(tmp_path / 'out/a.png'))


def arguments(image, folder):
    args = [image, '--config', folder / 'finder.py', '--out', folder / 'out']
    return list(map(str, [*args, '--checkpoint', folder / 'finder.pth']))


def test_results_can_be_moved_and_copied(predictor, image):
    result = predictor(image)
    for copy in (result.new(), result.clone(), result.cpu(), result.detach()):
        assert type(copy) is type(result)
        assert copy.path == image
    np.testing.assert_array_equal(copy.plot(), result.plot())


def test_device(predictor):
    assert predictor.device == torch.device('cpu')
    assert predictor.to('cpu') is predictor
    assert predictor.classes == ('red', 'blue')
    with pytest.raises(ValueError, match="got 'gpu'"):
        predictor.to('gpu')


GREY = np.zeros((40, 30, 3), np.uint8)


@pytest.mark.parametrize(
    ('images', 'options', 'kind', 'message'),
    [
        ([], {}, ValueError, 'images must be at least one picture, got an em'),
        (GREY, {'threshold': 50}, ValueError, r'threshold.*\[0, 1\], got 50'),
        (GREY, {'batch_size': 0}, ValueError, 'batch_size must be at least 1'),
        (GREY[..., 0], {}, ValueError, r'\(H, W, 3\).*got \(40, 30\), uint8'),
        (GREY / 255, {}, ValueError, r'uint8.*got \(40, 30, 3\), float64'),
        (GREY[None], {}, ValueError, r'got \(1, 40, 30, 3\).*given as a list'),
        (
            Image.new('I;16', (30, 40)),
            {},
            ValueError,
            r'uint8.*got \(40, 30\), uint16',
        ),
        ([None], {}, TypeError, 'must be paths, NumPy arrays or .*NoneType'),
        (torch.zeros(2, 3, 4), {}, TypeError, 'NumPy arrays or .*got Tensor'),
        ('no.png', {}, FileNotFoundError, r'no\.png \(does not exist\)'),
        (['no.png'], {}, ValueError, r'whole image file, got no\.png'),
    ],
)
def test_rejects(predictor, images, options, kind, message):
    with pytest.raises(kind, match=message):
        list(predictor(images, **options))


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    """Folders as ``tools/share.py`` writes them, and pictures."""
    folder = tmp_path_factory.mktemp('shared')
    for name, kind in (('cells', 'co_dino'), ('streets', 'pidnet')):
        checkpoint = folder / f'{kind}.pth'
        getattr(random_checkpoints, f'write_{kind}')(checkpoint)
        mmext.save_pretrained(checkpoint, folder / name)
    (folder / 'pictures').mkdir()
    rng = np.random.default_rng(0)
    sizes = {'a': (60, 90), 'b': (96, 64), 'c': (60, 90), 'd': (50, 50)}
    for name, size in sizes.items():
        noise = rng.integers(0, 255, (*size, 3), np.uint8)
        Image.fromarray(noise).save(folder / f'pictures/{name}.jpg')
    with write_video(folder / 'film.mp4', 5) as write:
        for _ in range(2):
            write(noise)
    return SimpleNamespace(
        path=folder, images=sorted((folder / 'pictures').iterdir())
    )


@pytest.mark.parametrize('name', ['cells', 'streets'])
def test_batches_and_the_tool_give_the_same(shared, tmp_path, name):
    """Pictures of three sizes, alone, together, and as JSON."""
    predictor = mmext.from_pretrained(shared.path / name, device='cpu')
    alone = [predictor(image, threshold=0.1) for image in shared.images]
    batch = predictor(shared.images, threshold=0.1, batch_size=4)
    args = ['--score-thr', '0.1', '--batch-size', '3', '--device', 'cpu']
    args += ['--checkpoint', shared.path / name, '--out', tmp_path]
    args = [shared.path / 'pictures', *args]
    assert load_tool('infer').main(list(map(str, args))) == 0
    rows = json.loads((tmp_path / 'predictions.json').read_text())['images']
    for one, other, row in zip(alone, batch, rows, strict=True):
        assert row['image'] == str(one.path) == str(other.path)
        if name == 'streets':
            assert isinstance(one, SegDataSample)
            np.testing.assert_array_equal(one.label_map, other.label_map)
            written = np.array(Image.open(row['label_map']))
            np.testing.assert_array_equal(one.label_map, written)
            continue
        assert len(one.scores) > 0
        assert one.names == other.names == row['names']
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        np.testing.assert_allclose(
            one.boxes, other.boxes, rtol=1e-5, atol=1e-4
        )
        np.testing.assert_allclose(one.scores, row['scores'], atol=1e-5)
        np.testing.assert_allclose(one.boxes, row['boxes'], atol=1e-3)


def test_the_checkpoint_of_a_training(shared):
    predictor = mmext.from_pretrained(shared.path / 'pidnet.pth')
    assert predictor.classes == random_checkpoints.CLASSES


def test_the_page_runs(shared, checkout, monkeypatch, capsys):
    """Block after block of docs/python.md, as they are pasted."""
    (page,) = (checkout / 'docs').rglob('python.md')
    monkeypatch.chdir(shared.path)
    names = {}
    for code in re.findall(
        r'```python\n(.*?)```', page.read_text(), re.DOTALL
    ):
        exec(compile(code, page, 'exec'), names)
    assert len(names['three']) == 3
    assert list(names['counts']) == ['a.jpg', 'b.jpg', 'c.jpg', 'd.jpg']
    assert names['number'] == 1
    assert (shared.path / 'a.png').is_file()
    assert '%' in capsys.readouterr().out
