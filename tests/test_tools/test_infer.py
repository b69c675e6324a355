"""The command line of inference: exit code first."""

import importlib
import json
import os

import cv2
import numpy as np
import pytest
from helpers import recited
from helpers.hostile import Hostile
from helpers.random_checkpoints import CLASSES, PALETTE, write_pidnet
from helpers.toy_ranks import load_segmentation, load_tool
from PIL import Image

from mmext.utils.draw import class_palette


@pytest.fixture
def finder(monkeypatch, checkout):
    monkeypatch.syspath_prepend(checkout / 'tests' / 'reference')
    return importlib.import_module('rectangle_finder')


@pytest.fixture
def tool():
    return load_tool('infer')


@pytest.fixture
def location(finder, tmp_path):
    """A config, a checkpoint that holds it, and two validation images."""
    config = finder.write_config(tmp_path)
    finder.write_checkpoint(tmp_path, cfg=config.read_text())
    for index, box in enumerate([(5, 6, 25, 30), (9, 9, 40, 40)]):
        finder.paint(tmp_path / f'images/{index}.png', (64, 48), red=box)
    content = {
        'images': [
            {'id': i, 'file_name': f'{i}.png', 'width': 64, 'height': 48}
            for i in range(2)
        ],
        'annotations': [
            {
                'id': 1,
                'image_id': 1,
                'category_id': 1,
                'bbox': [9, 9, 31, 31],
                'area': 961,
                'iscrowd': 0,
            }
        ],
        'categories': [{'id': 1, 'name': 'red'}, {'id': 2, 'name': 'blue'}],
    }
    (tmp_path / 'val.json').write_text(json.dumps(content))
    return tmp_path


def arguments(location, *more):
    fixed = [
        '--checkpoint',
        location / 'finder.pth',
        '--out',
        location / 'out',
    ]
    return [str(arg) for arg in [*more, *fixed]]


def rejected(tool, args, capsys):
    """The message of a call that exits with 2."""
    with pytest.raises(SystemExit) as caught:
        tool.main(args)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_writes_pictures_and_numbers(tool, location, capsys, monkeypatch):
    kept = []
    monkeypatch.setattr(
        'mmext.engine.keep_freed_memory', lambda: kept.append('memory')
    )
    more = ['--config', str(location / 'finder.py'), '--device', 'cpu']
    assert tool.main([*arguments(location, location / 'images'), *more]) == 0
    printed = capsys.readouterr()
    assert '2 objects in 2 images' in printed.out
    assert kept == ['memory']
    assert '2/2' in printed.err
    assert sorted(os.listdir(location / 'out')) == [
        '0.png',
        '1.png',
        'predictions.json',
    ]


def test_config_of_the_checkpoint_and_json_elsewhere(tool, location, capfd):
    args = arguments(location, location / 'images', '--json', '-')
    assert tool.main([*args, '--batch-size', '2']) == 0
    printed = capfd.readouterr()
    assert '2 objects in 2 images' in printed.err
    # Standard output has the predictions only.
    content = json.loads(printed.out)
    assert content['classes'] == ['red', 'blue']
    (box,) = content['images'][0]['boxes']
    assert box == pytest.approx([5, 6, 25, 30], abs=0.8)
    assert 'predictions.json' not in os.listdir(location / 'out')


def test_validation_set_with_ground_truth(tool, location, capsys):
    assert tool.main(arguments(location, '--from-val', '5', '--with-gt')) == 0
    assert 'contact_sheet.png' in os.listdir(location / 'out')
    assert 'contact_sheet.png' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('name', 'make', 'message'),
    [
        ('0.png', lambda path: path.write_bytes(b'no image'), ''),
        ('0.png', os.mkfifo, 'got a named pipe (FIFO)'),
        ('0.mp4', os.mkfifo, 'got a named pipe (FIFO)'),
        (
            '0.png',
            lambda path: path.symlink_to('/dev/zero'),
            'got a character device',
        ),
    ],
)
def test_damaged_images_are_reported_and_others_finished(
    tool, location, capsys, name, make, message
):
    (location / 'images' / '0.png').unlink()
    make(location / 'images' / name)
    assert tool.main(arguments(location, location / 'images')) == 1
    assert '1.png' in os.listdir(location / 'out')
    printed = capsys.readouterr().err
    assert name in printed
    assert message in printed


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['images', '--device', 'cuda:99'], 'device must exist'),
        (['images', '--device', 'gpu'], 'device must be'),
        (['images', '--score-thr', '2'], 'score_thr must be in'),
        (['images', '--config', 'no.py'], 'config must be an existing file'),
        (
            ['images', '--cfg-options', 'model.extra=3'],
            'must hold all weights',
        ),
        (['images', '--checkpoint', 'no.pth'], 'checkpoint must be an exist'),
        (['images', 'no.png'], 'no.png (does not exist)'),
        (['images', '--out', 'images'], 'choose another folder'),
        (['images', '--json', 'finder.pth'], 'the input --checkpoint, too'),
        (
            ['--from-val', '2', '--cfg-options', 'data_root=elsewhere/'],
            'elsewhere',
        ),
        ([], 'from-val'),
        (['a.png', '--from-val', '2'], 'from-val'),
        (['a.png', '--with-gt'], 'from-val'),
    ],
)
def test_wrong_arguments_fail_with_a_message(
    tool, location, capsys, monkeypatch, args, message
):
    """Before anything is written."""
    monkeypatch.chdir(location)
    before = {
        path: path.read_bytes()
        for path in location.rglob('*')
        if path.is_file()
    }
    fixed = ['--checkpoint', 'finder.pth', '--out', 'out']
    assert message in rejected(tool, [*fixed, *args], capsys)
    after = [path for path in location.rglob('*') if path.is_file()]
    assert before == {path: path.read_bytes() for path in after}


def test_interrupted_has_its_own_exit_code(tool, location, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr('mmext.apis.infer_to_folder', interrupt)
    assert tool.main(arguments(location, location / 'images')) == 130


def test_hostile_checkpoint_is_not_run(tool, location, finder, capsys):
    trap = location / 'trap'
    config = (location / 'finder.py').read_text()
    args = arguments(location, location / 'images')
    for meta, words in (
        (dict(cfg=config, a=Hostile(trap)), 'posix.mkdir'),
        (dict(cfg=f'import os\nos.mkdir({str(trap)!r})\n{config}'), 'line 1'),
        (
            dict(cfg=config.replace('mmengine.RectangleFinder', 'os.mkdir')),
            "'os.mkdir'",
        ),
    ):
        finder.write_checkpoint(location, **meta)
        error = rejected(tool, args, capsys)
        assert words in error
        assert '--trust-checkpoint' in error
        assert not trap.exists()
    finder.write_checkpoint(location, cfg=config, a=Hostile(trap))
    assert tool.main([*args, '--trust-checkpoint']) == 0
    assert trap.is_dir()


def write_noise(path, size, seed=0):
    """A picture of width and height."""
    noise = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3))
    path.parent.mkdir(exist_ok=True)
    assert cv2.imwrite(str(path), noise.astype(np.uint8))
    return path


def test_a_segmentor_writes_label_maps_and_shares(tool, tmp_path):
    """Those of mmseg's own function; a broken file stops nothing."""
    from mmseg.apis import inference_model, init_model

    load_segmentation()
    config = write_pidnet(tmp_path / 'pidnet.pth')
    images = tmp_path / 'images'
    sizes = {'a.png': (96, 64), 'c.jpg': (50, 33)}
    for seed, (name, size) in enumerate(sizes.items()):
        write_noise(images / name, size, seed)
    (images / 'b.png').write_bytes(b'no image')
    checkpoint = str(tmp_path / 'pidnet.pth')
    args = ['--checkpoint', checkpoint, '--out', str(tmp_path / 'out')]
    args += ['--device', 'cpu', '--batch-size', '2']
    assert tool.main([str(images), *args]) == 1
    content = json.loads((tmp_path / 'out/predictions.json').read_text())
    (failed,) = content['failed']
    assert 'b.png' in failed['image']
    assert content['classes'] == list(CLASSES)
    assert len(content['images']) == len(sizes)
    model = init_model(config, checkpoint, device='cpu')
    for row, (name, size) in zip(content['images'], sizes.items()):
        assert (row['width'], row['height']) == size
        array = np.array(Image.open(row['label_map']))
        assert array.dtype == np.uint8
        expected = inference_model(model, str(images / name)).pred_sem_seg
        np.testing.assert_array_equal(array, expected.data[0].numpy())
        counts = np.bincount(array.ravel(), minlength=7)
        np.testing.assert_allclose(
            row['shares'], counts / array.size, atol=1e-6
        )
    picture = np.array(Image.open(content['images'][0]['picture']))
    image = np.array(Image.open(images / 'a.png')).repeat(6, 0).repeat(6, 1)
    array = np.array(Image.open(content['images'][0]['label_map']))
    tinted = picture[-64 * 6 :, : 96 * 6].astype(float)
    flat = np.ones((6, 6))
    wanted = np.array(PALETTE)[np.kron(array, flat).astype(int)]
    # The image below the colours is smoothed, so on average.
    assert abs((tinted - 0.45 * image - 0.55 * wanted).mean()) < 1
    assert np.abs(tinted - 0.45 * 127 - 0.55 * wanted).max() < 0.45 * 129


def write_video(path, size, count=10, fps=12.5):
    """Grey frames with a white patch that moves."""
    code = cv2.VideoWriter_fourcc(
        *('mp4v' if path.suffix == '.mp4' else 'MJPG')
    )
    writer = cv2.VideoWriter(str(path), code, fps, size)
    assert writer.isOpened()
    for index in range(count):
        frame = np.full((*size[::-1], 3), 60, np.uint8)
        frame[20:50, 5 + 8 * index : 45 + 8 * index] = 255
        writer.write(frame)
    writer.release()
    return path


def read_video(path):
    """Frames and frame rate."""
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (frame := capture.read()[1]) is not None:
        frames.append(frame)
    return frames, capture.get(cv2.CAP_PROP_FPS)


def recited_arguments(folder, config):
    args = ['--config', config, '--out', folder / 'out']
    args += ['--checkpoint', recited.write_checkpoint(folder, 3)]
    return [str(arg) for arg in args]


def test_a_video_keeps_frames_size_and_rate(tool, tmp_path, capsys):
    """Each frame has its box; broken ones are named, others finished."""
    config = recited.write_patches(tmp_path, (160, 90), [], (160, 90))
    folder = tmp_path / 'clips'
    folder.mkdir()
    video = write_video(folder / 'a.avi', (160, 90))
    (folder / 'b.mp4').write_bytes(b'no video')
    write_video(folder / 'c.mp4', (160, 90), 2)
    os.truncate(folder / 'c.mp4', 900)
    (folder / 'd.png').write_bytes(
        (tmp_path / 'images/patches.png').read_bytes()
    )
    args = recited_arguments(tmp_path, config)
    assert tool.main([str(folder), *args, '--batch-size', '3']) == 1
    printed = capsys.readouterr()
    assert '10 objects in 1 images and 1 videos' in printed.out
    for name in ('b.mp4', 'c.mp4'):
        assert f'OpenCV can read, got {folder / name}' in printed.err
    out = tmp_path / 'out'
    names = ['a.avi.mp4', 'd.png', 'predictions.json']
    assert sorted(os.listdir(out)) == names
    # A codec that browsers play.
    written = cv2.VideoCapture(str(out / 'a.avi.mp4'))
    codec = int(written.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, 'little')
    assert codec == b'VP90'
    frames, rate = read_video(out / 'a.avi.mp4')
    assert (len(frames), frames[0].shape, rate) == (10, (90, 160, 3), 12.5)
    (row,) = json.loads((out / 'predictions.json').read_text())['videos']
    assert (row['width'], row['height'], row['fps']) == (160, 90, 12.5)
    assert row['video'] == str(video)
    for index, frame in enumerate(row['frames']):
        (box,) = frame['boxes']
        x = 5 + 8 * index
        assert box == pytest.approx([x, 20, x + 40, 50], abs=2)


def test_a_segmented_video(tool, tmp_path):
    """Shares of each frame; the picture keeps its size."""
    maps = np.zeros((2, 8, 8), np.uint8)
    config = recited.write_segmentation(tmp_path, {'a': maps}, ('a', 'b', 'c'))
    video = tmp_path / 'a.mp4'
    write_video(video, (96, 64), 3)
    args = recited_arguments(tmp_path, config)
    assert tool.main([str(video), *args]) == 0
    content = json.loads((tmp_path / 'out/predictions.json').read_text())
    assert content['images'] == []
    (row,) = content['videos']
    assert [len(frame['shares']) for frame in row['frames']] == [3] * 3
    frames, _ = read_video(tmp_path / 'out/a.mp4')
    assert (len(frames), frames[0].shape) == (3, (64, 96, 3))


def test_a_segmentor_beside_the_annotation(tool, tmp_path):
    """Ground truth left, prediction right, what is void in grey."""
    told = np.repeat([[0, 1], [2, 1]], 48, 0).repeat(64, 1).astype(np.uint8)
    right = told.copy()
    right[:48, 64:], right[48:, :64] = 2, 255
    pair = {'a': (right, told)}
    config = recited.write_segmentation(tmp_path, pair, ('a', 'b', 'c'))
    with config.open('a') as file:
        file.write('val_dataloader = test_dataloader\n')
    args = recited_arguments(tmp_path, str(config))
    assert tool.main(['--from-val', '1', '--with-gt', *args]) == 0
    out = tmp_path / 'out'
    assert (out / 'contact_sheet.png').is_file()
    (row,) = json.loads((out / 'predictions.json').read_text())['images']
    assert row['shares'] == [0.25, 0.5, 0.25]
    np.testing.assert_array_equal(Image.open(row['label_map']), told)
    picture = np.array(Image.open(row['picture'])).astype(float)
    # Five times enlarged, below a title; 6 pixels apart.
    palette = np.array([*class_palette(3), (120, 120, 120)])
    image = recited.COLOURS[told]
    for labels, left in ((np.minimum(right, 3), 0), (told, 128 * 5 + 6)):
        panel = picture[-96 * 5 :, left : left + 128 * 5][2::5, 2::5]
        wanted = 0.45 * image + 0.55 * palette[labels]
        inner = np.r_[2:46, 50:94], np.r_[2:62, 66:126]
        difference = (panel - wanted)[np.ix_(*inner)]
        assert np.abs(difference).max() <= 1
