"""The files: they agree with each other, and come whole or not at all."""

import hashlib
import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from mmext.datasets import (
    SHAPE_CLASSES,
    ShapesSpec,
    write_shapes_dataset,
)

SPEC = ShapesSpec(image_size=(64, 48), max_objects=5, empty_fraction=0.2)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.md5(
            path.read_bytes()
        ).hexdigest()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


@pytest.fixture(scope='module')
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('shapes') / 'set'
    write_shapes_dataset(folder, SPEC, num_train=12, num_val=5)
    return folder


def test_layout_and_report(tmp_path: Path):
    folder = tmp_path / 'new' / 'set'
    calls = []
    report = write_shapes_dataset(
        folder,
        SPEC,
        num_train=3,
        num_val=2,
        on_image=lambda: calls.append(1),
    )
    assert len(calls) == 5
    assert set(digests(folder)) == {
        'annotations/train.json',
        'annotations/val.json',
        'shapes_dataset.json',
        *(f'img_dir/train/00000{i}.jpg' for i in (1, 2, 3)),
        *(f'ann_dir/train/00000{i}.png' for i in (1, 2, 3)),
        *(f'img_dir/val/00000{i}.jpg' for i in (1, 2)),
        *(f'ann_dir/val/00000{i}.png' for i in (1, 2)),
    }
    content = json.loads((folder / 'annotations/train.json').read_text())
    assert report['train']['images'] == 3
    assert report['train']['objects'] == len(content['annotations'])
    by_class = [report['train'][name] for name in SHAPE_CLASSES]
    assert sum(by_class) == report['train']['objects']
    assert [path.name for path in folder.parent.iterdir()] == ['set']


@pytest.mark.parametrize('split', ['train', 'val'])
def test_coco_masks_boxes_and_semantic_map_agree(written: Path, split: str):
    coco = COCO(str(written / f'annotations/{split}.json'))
    for image_id, info in coco.imgs.items():
        stem = Path(info['file_name']).stem
        image = cv2.imread(str(written / f'img_dir/{split}/{stem}.jpg'))
        assert image.shape == (48, 64, 3) == (info['height'], 64, 3)
        semantic = cv2.imread(
            str(written / f'ann_dir/{split}/{stem}.png'), cv2.IMREAD_UNCHANGED
        )
        painted = np.zeros((48, 64), dtype=np.uint8)
        for annotation in coco.loadAnns(coco.getAnnIds(imgIds=image_id)):
            mask = coco.annToMask(annotation).astype(bool)
            ys, xs = np.nonzero(mask)
            left, top = xs.min(), ys.min()
            assert annotation['bbox'] == [
                left,
                top,
                xs.max() - left + 1,
                ys.max() - top + 1,
            ]
            assert annotation['area'] == mask.sum()
            assert not painted[mask].any()
            painted[mask] = annotation['category_id']
        np.testing.assert_array_equal(painted, semantic)


def test_ids_are_unique_and_start_at_one(written: Path):
    content = json.loads((written / 'annotations/train.json').read_text())
    ids = [annotation['id'] for annotation in content['annotations']]
    assert ids == list(range(1, len(ids) + 1))
    assert [image['id'] for image in content['images']] == list(range(1, 13))
    names = [category['name'] for category in content['categories']]
    assert tuple(names) == SHAPE_CLASSES
    marker = json.loads((written / 'shapes_dataset.json').read_text())
    assert marker['counts'] == {'train': 12, 'val': 5}
    assert marker['seed'] == content['info']['settings']['seed'] == 0


def test_same_seed_same_bytes(written: Path, tmp_path: Path):
    write_shapes_dataset(tmp_path / 'a', SPEC, num_train=12, num_val=5)
    assert digests(tmp_path / 'a') == digests(written)


def test_larger_set_begins_with_the_smaller(written: Path, tmp_path: Path):
    write_shapes_dataset(tmp_path / 'a', SPEC, num_train=4, num_val=0)
    small, large = digests(tmp_path / 'a'), digests(written)
    names = [name for name in small if not name.endswith('.json')]
    assert len(names) == 8
    assert all(small[name] == large[name] for name in names)


def test_split_of_zero_pictures_is_left_out(tmp_path: Path):
    report = write_shapes_dataset(tmp_path / 'a', SPEC, num_train=0, num_val=1)
    assert list(report) == ['val']
    assert not (tmp_path / 'a/img_dir/train').exists()


@pytest.mark.parametrize(
    ('counts', 'message'),
    [
        ((-1, 5), 'num_train must be at least 0, got -1'),
        ((5, -2), 'num_val must be at least 0, got -2'),
        ((0, 0), 'num_train or num_val must be positive'),
    ],
)
def test_rejects_counts(tmp_path: Path, counts: tuple, message: str):
    train, val = counts
    with pytest.raises(ValueError, match=message):
        write_shapes_dataset(
            tmp_path / 'a', SPEC, num_train=train, num_val=val
        )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('name', 'overwrite', 'message'),
    [
        ('notes.txt', False, 'out must be a folder'),
        ('.', False, 'pass overwrite'),
        ('.', True, r'no shapes_dataset\.json'),
    ],
)
def test_never_overwrites_what_it_did_not_make(
    tmp_path: Path, name: str, overwrite: bool, message: str
):
    (tmp_path / 'notes.txt').write_text('mine')
    out = tmp_path / name
    with pytest.raises(FileExistsError, match=message):
        write_shapes_dataset(
            out, SPEC, num_train=1, num_val=1, overwrite=overwrite
        )
    assert (tmp_path / 'notes.txt').read_text() == 'mine'


def test_overwrite_replaces_all_and_empty_folder_is_taken(tmp_path: Path):
    folder = tmp_path / 'set'
    folder.mkdir()
    write_shapes_dataset(folder, SPEC, num_train=3, num_val=1)
    write_shapes_dataset(folder, SPEC, num_train=1, num_val=0, overwrite=True)
    assert len(digests(folder)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ['set']


def test_follows_a_link_to_another_disk(tmp_path: Path):
    disk = tmp_path / 'disk'
    disk.mkdir()
    (tmp_path / 'link').symlink_to(disk)
    write_shapes_dataset(tmp_path / 'link', SPEC, num_train=1, num_val=0)
    assert (tmp_path / 'link').is_symlink()
    assert (disk / 'shapes_dataset.json').is_file()


@pytest.mark.parametrize('error', [KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize('existing', [True, False])
def test_stopped_half_way_leaves_everything_as_it_was(
    tmp_path: Path, error: type, existing: bool
):
    folder = tmp_path / 'set'
    if existing:
        write_shapes_dataset(folder, SPEC, num_train=1, num_val=0)
    before = digests(tmp_path)

    def stop():
        raise error

    with pytest.raises(error):
        write_shapes_dataset(
            folder, SPEC, num_train=3, num_val=0, overwrite=True, on_image=stop
        )
    assert digests(tmp_path) == before
    assert folder.exists() == existing
    assert len(list(tmp_path.iterdir())) == int(existing)


def test_failed_swap_puts_the_old_set_back(tmp_path: Path, monkeypatch):
    folder = tmp_path / 'set'
    write_shapes_dataset(folder, SPEC, num_train=1, num_val=0)
    before = digests(tmp_path)
    replace = os.replace

    def refuse(source, target):
        if Path(source).name == 'tree':
            raise OSError('disk gone')
        return replace(source, target)

    monkeypatch.setattr(os, 'replace', refuse)
    with pytest.raises(OSError, match='disk gone'):
        write_shapes_dataset(
            folder, SPEC, num_train=2, num_val=0, overwrite=True
        )
    monkeypatch.undo()
    assert digests(tmp_path) == before
