"""Annotation files in COCO's format, as they stand."""

import json

import pytest

from mmext.label_check.check import check_labels
from mmext.label_check.expectations import Expectations
from mmext.label_check.readers import read_coco
from mmext.label_check.sources.coco_split import coco_task, split_of_coco
from mmext.label_check.store import FactStore

DETECTION = Expectations(task='detection')


def content(**more) -> dict:
    """Two images, three boxes, one of them a crowd."""
    boxes = [(1, 1, [2, 2, 8, 8], 0), (1, 2, [4, 4, 9, 9], 0)]
    boxes.append((2, 2, [1, 1, 5, 5], 1))
    return {
        'images': [
            {'id': i, 'file_name': f'{i}.jpg', 'width': 32, 'height': 24}
            for i in (1, 2)
        ],
        'annotations': [
            {
                'id': index,
                'image_id': image,
                'category_id': category,
                'bbox': box,
                'area': box[2] * box[3],
                'iscrowd': crowd,
            }
            for index, (image, category, box, crowd) in enumerate(boxes)
        ],
        'categories': [{'id': 1, 'name': 'dog'}, {'id': 2, 'name': 'cat'}],
        **more,
    }


def write(tmp_path, **more) -> str:
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(content(**more)))
    return str(path)


def check(source, tmp_path):
    with FactStore(tmp_path / 'facts.sqlite') as store:
        return check_labels([source], store)


def test_clean(tmp_path):
    source = split_of_coco(write(tmp_path), '', DETECTION)
    assert source.expected.task == 'detection'
    assert source.expected.classes == ('dog', 'cat')
    report = check(source, tmp_path)
    assert report.groups == ()
    (split,) = report.splits
    # The crowd does not count.
    assert [(c.boxes, c.images) for c in split.classes] == [(1, 1), (1, 1)]
    assert (split.num_samples, split.num_boxes) == (2, 2)


def test_errors_of_the_file_and_of_boxes(tmp_path):
    notes = content()['annotations']
    notes[1]['bbox'] = [4, 4, 0, 9]
    notes[2]['image_id'] = 77
    source = split_of_coco(write(tmp_path, annotations=notes), '', DETECTION)
    groups = {each.rule: each for each in check(source, tmp_path).groups}
    assert {'COCO005', 'DET002'} <= set(groups)
    (example,) = groups['DET002'].examples
    assert example.place == 'annotations[1]'


def test_a_file_that_is_no_json(tmp_path):
    path = tmp_path / 'a.json'
    path.write_text('{"images": [')
    source = split_of_coco(str(path), '', DETECTION)
    rules = [each.rule for each in check(source, tmp_path).groups]
    assert 'COCO001' in rules


def test_images_of_nobody(tmp_path):
    images = tmp_path / 'images'
    (images / 'sub').mkdir(parents=True)
    for name in ('1.jpg', '2.jpg', 'sub/3.jpg'):
        (images / name).touch()
    path, images = write(tmp_path), str(images)
    source = split_of_coco(path, images, DETECTION, find_orphans=True)
    (orphan,) = source.orphans()
    assert orphan.path == f'{images}/sub/3.jpg'
    assert list(split_of_coco(path, images, DETECTION).orphans()) == []


def test_label_maps(tmp_path):
    source = split_of_coco(
        write(tmp_path), 'img', DETECTION, seg_maps='seg', seg_map_suffix='.x'
    )
    assert [(each.image, each.mask) for each in source.samples()] == [
        ('img/1.jpg', 'seg/1.x'),
        ('img/2.jpg', 'seg/2.x'),
    ]


def test_task():
    notes = content()['annotations']
    assert coco_task(read_coco(json.dumps(content()).encode())) == 'detection'
    notes[0]['segmentation'] = [[1, 1, 5, 1, 5, 5]]
    data = json.dumps(content(annotations=notes)).encode()
    assert coco_task(read_coco(data)) == 'instance'


def test_rejects_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        split_of_coco(str(tmp_path / 'none.json'), '', DETECTION)
