"""What a folder is taken for."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.label_sets import CLASSES, clean
from PIL import Image

from mmext.apis.data_folders import find_data


def picture(path: Path, values: int = 0, mode: str = 'RGB') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (8, 12, 3) if mode == 'RGB' else (8, 12)
    pixels = np.arange(np.prod(shape)).reshape(shape) % max(values, 1)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.mark.parametrize(
    ('images', 'masks', 'end'),
    [
        ('{split}', '{split}annot', '.png'),
        ('images/{split}', 'masks/{split}', '.png'),
        ('{split}/images', '{split}/labels', '.png'),
        ('img_dir/{split}', 'ann_dir/{split}', '_gtFine_labelTrainIds.png'),
    ],
)
def test_folders_of_masks(images, masks, end, tmp_path):
    for split, number in (('train', 3), ('val', 2), ('test', 1)):
        for index in range(number):
            name = images.format(split=split)
            picture(tmp_path / name / f'{index}.jpg')
            name = masks.format(split=split)
            picture(tmp_path / name / f'{index}{end}', 4, 'L')
    data = find_data(tmp_path, semantic=True)
    assert (data.form, list(data.splits)) == (
        'masks',
        ['train', 'val', 'test'],
    )
    assert data.classes == ('class 0', 'class 1', 'class 2', 'class 3')
    assert 'have no names' in data.notes[0]
    assert data.splits['val'].names == ['0', '1']
    assert data.splits['val'].dataset == {
        'data_prefix': {
            'img_path': images.format(split='val'),
            'seg_map_path': masks.format(split='val'),
        },
        'img_suffix': '.jpg',
        'seg_map_suffix': end,
    }
    (tmp_path / 'classes.txt').write_text('road\ncar\nsky\nvoid\n')
    data = find_data(tmp_path, semantic=True)
    assert data.classes == ('road', 'car', 'sky', 'void')


def test_a_base_that_segments_needs_masks(tmp_path):
    """And one of boxes is not given masks."""
    root = clean('voc_bare', tmp_path / 'voc').root
    with pytest.raises(ValueError, match='forms pictures and masks'):
        find_data(root, semantic=True)
    picture(tmp_path / 'm/images/a.jpg')
    picture(tmp_path / 'm/masks/a.png', 3, 'L')
    with pytest.raises(ValueError, match='need a base that segments'):
        find_data(tmp_path / 'm', semantic=False)


def coco(root: Path) -> Path:
    return clean('coco', root).root


def test_category_0_of_roboflow(tmp_path):
    root = coco(tmp_path / 'data')
    for has_boxes in (False, True):
        for split in ('train', 'val'):
            path = root / f'{split}.json'
            content = json.loads(path.read_text())
            kinds = content['categories']
            if not has_boxes:
                kinds.insert(0, {'id': 0, 'name': 'all'})
            else:
                content['annotations'][0]['category_id'] = 0
            path.write_text(json.dumps(content))
        data = find_data(root, semantic=False)
        wanted = ('all', *CLASSES) if has_boxes else CLASSES
        assert data.classes == wanted
        assert bool(data.notes) == (not has_boxes)


def test_nan_and_panoptic_segments(tmp_path):
    """A box that is wrong is for the label check; segments are no boxes."""
    root = coco(tmp_path / 'data')
    path = root / 'train.json'
    content = json.loads(path.read_text())
    content['annotations'][0]['bbox'][0] = float('nan')
    del content['annotations'][1]['category_id']
    path.write_text(json.dumps(content))
    assert find_data(root, semantic=False).classes == CLASSES
    panoptic = clean('panoptic', tmp_path / 'panoptic').root
    with pytest.raises(ValueError, match='DATA must have one of the forms'):
        find_data(panoptic, semantic=False)


def test_annotation_files_of_other_labels(tmp_path):
    """As COCO's own folder has them; JSON files of other things, too."""
    root = coco(tmp_path / 'data')
    (root / 'annotations').mkdir()
    for split in ('train', 'val'):
        old = root / f'{split}.json'
        old.rename(root / f'annotations/instances_{split}2017.json')
        content = {'images': [], 'annotations': [{'caption': 'a'}]}
        other = root / f'annotations/captions_{split}2017.json'
        other.write_text(json.dumps(content))
    (root / 'info.json').write_text('[1]')
    data = find_data(root, semantic=False)
    assert data.splits['train'].dataset == {
        'ann_file': 'annotations/instances_train2017.json',
        'data_prefix': {'img': 'images/train/'},
    }
    again = root / 'annotations/instances_train_more.json'
    again.write_bytes(
        (root / 'annotations/instances_train2017.json').read_bytes()
    )
    with pytest.raises(ValueError, match='must have one annotation file'):
        find_data(root, semantic=False)
    for path in (root / 'images/train').iterdir():
        path.unlink()
    again.unlink()
    with pytest.raises(ValueError, match=r"none of the name '0\.jpg'"):
        find_data(root, semantic=False)


def test_xml_files_beside_pictures(tmp_path):
    """A folder for each split, as Roboflow writes them."""
    root = clean('voc_bare', tmp_path / 'voc').root
    new = tmp_path / 'new'
    for split, folder in (('train', 'train'), ('val', 'valid')):
        (new / folder).mkdir(parents=True)
        for kind in ('Annotations/{}_*.xml', 'JPEGImages/{}_*.jpg'):
            for path in root.glob(kind.format(split)):
                path.rename(new / folder / path.name)
    data = find_data(new, semantic=False)
    assert data.form == 'voc'
    assert data.classes == tuple(sorted(CLASSES))
    assert not data.splits['val'].whole
    assert data.splits['val'].dataset == {
        'data_prefix': {'sub_data_root': ''},
        'img_subdir': 'valid',
        'ann_subdir': 'valid',
    }
    for path in (new / 'train').glob('*.jpg'):
        path.rename(path.with_suffix('.png'))
    with pytest.raises(ValueError, match=r'must be \.jpg'):
        find_data(new, semantic=False)


def test_no_split_for_training(tmp_path):
    root = coco(tmp_path / 'data')
    (root / 'train.json').unlink()
    with pytest.raises(ValueError, match='must have a split for training'):
        find_data(root, semantic=False)
