"""Named pipes and devices among the files of a dataset.

Without a guard, opening a pipe waits for a writer, and a link to /dev/zero is
read until memory ends.
"""

import os
import signal
from pathlib import Path

import pytest
from helpers.label_sets import clean
from helpers.new_configs import run
from helpers.toy_ranks import load_tool

from mmext.datasets.unlabelled import UnlabelledImages

_SECONDS = 60
PIDNET = 'mmext::pidnet/pidnet_s_2xb6_120k_cityscapes.py'
# Kind of dataset, and a file of it.
FILES = [
    *(
        ('semantic', name)
        for name in ('images/train/1.png', 'masks/val/1.png')
    ),
    *(
        ('folders', name)
        for name in ('images/train/1.jpg', 'masks/train/1.png')
    ),
    *(('coco', name) for name in ('images/train/1.jpg', 'train.json')),
    ('coco_bare', 'images/train/1.jpg'),
    ('coco_bare', 'train.json'),
    ('openmmlab', 'train.json'),
    *(('panoptic', name) for name in ('train/1.png', 'train.json')),
    ('voc', 'Annotations/train_1.xml'),
    ('voc', 'ImageSets/Main/train.txt'),
    ('voc', 'JPEGImages/train_1.jpg'),
    ('voc_bare', 'Annotations/train_1.xml'),
    ('voc_bare', 'ImageSets/Main/train.txt'),
    ('yolo', 'labels/train/1.txt'),
    ('yolo', 'images/train/1.jpg'),
    *(('yolo_bare', name) for name in ('labels/train/1.txt', 'data.yaml')),
    *(('nyuv2', f'train/{name}/1.npy') for name in ('image', 'label')),
]
SPECIAL = {
    'a named pipe (FIFO)': os.mkfifo,
    'a character device': lambda path: path.symlink_to('/dev/zero'),
}


@pytest.fixture(autouse=True)
def _time_limit():
    """Fail a test whose tool waits or reads without an end."""

    def fail(*_):
        raise AssertionError(f'the tool has not ended within {_SECONDS} s')

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replace(path: Path, kind: str) -> None:
    path.unlink()
    SPECIAL[kind](path)


def exit_code(main, argv) -> int:
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize('special', SPECIAL)
@pytest.mark.parametrize(('kind', 'file'), FILES)
def test_validate_labels(kind, file, special, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = clean(kind, tmp_path / 'data')
    replace(data.root / file, special)
    main = load_tool('validate_labels').main
    assert exit_code(main, data.argv()) in (1, 2)
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert f'data/{file}' in text
    assert f'must be a regular file, got {special}' in text
    assert 'Traceback' not in text


@pytest.mark.parametrize('special', SPECIAL)
@pytest.mark.parametrize(
    ('kind', 'file'),
    [
        ('coco', 'train.json'),
        ('voc', 'Annotations/train_0.xml'),
        ('voc', 'Annotations/train_1.xml'),
        ('voc', 'ImageSets/Main/train.txt'),
        ('yolo', 'data.yaml'),
        ('semantic', 'images/train/1.png'),
        ('semantic', 'masks/train/0.png'),
    ],
)
def test_new_config(kind, file, special, tmp_path, capsys):
    data = clean(kind, tmp_path / 'data')
    replace(data.root / file, special)
    options = dict(base=PIDNET) if kind == 'semantic' else {}
    argv = [data.root, tmp_path / 'my.py', '--no-check']
    assert exit_code(lambda args: run(*args, **options), argv) == 2
    printed = capsys.readouterr().err
    assert f'data/{file}' in printed
    assert f'must be a regular file, got {special}' in printed


def test_pictures_without_labels(tmp_path):
    (tmp_path / 'a.jpg').touch()
    (tmp_path / 'gone.jpg').symlink_to('nowhere')
    (tmp_path / 'sub').mkdir()
    assert len(UnlabelledImages(data_root=str(tmp_path))) == 1
    os.mkfifo(tmp_path / 'sub/b.jpg')
    with pytest.raises(OSError, match=r'sub/b.jpg.* got a named pipe'):
        UnlabelledImages(data_root=str(tmp_path))
