"""Panoptic annotation files that are right."""

import io
import json

from mmext.checks.labels.readers.coco import holds_key, read_panoptic


def content() -> dict:
    """An image of two segments; ids are those of Cityscapes, names."""
    return {
        'images': [
            {'id': 'a_0', 'file_name': 'a.png', 'width': 9, 'height': 7}
        ],
        'annotations': [
            {
                'image_id': 'a_0',
                'file_name': 'a_panoptic.png',
                'segments_info': [
                    {'id': 26001, 'category_id': 26, 'area': 30, 'bbox': BOX},
                    {'id': 7, 'category_id': 7, 'area': 33.0, 'bbox': BOX},
                ],
            }
        ],
        'categories': [
            {'id': 7, 'name': 'road', 'isthing': 0},
            {'id': 26, 'name': 'car', 'isthing': 1},
        ],
    }


BOX = [0, 0, 9, 7]


def read(result: dict):
    return read_panoptic(json.dumps(result).encode())


def test_a_right_file():
    file = read(content())
    assert file.coco.errors == ()
    (image,) = file.coco.images.id.tolist()
    assert file.coco.annotations.image_id.tolist() == [image, image]
    assert file.coco.annotations.index.tolist() == [0, 0]
    assert file.maps == {image: 'a_panoptic.png'}
    assert [
        (segment.id, segment.area) for segment in file.segments[image]
    ] == [
        (26001, 30),
        (7, 33),
    ]
    assert file.coco.things == {'road': False, 'car': True}


def test_names_for_ids_of_images_and_categories():
    result = content()
    result['categories'][0]['id'] = 'r'
    result['annotations'][0]['segments_info'][1]['category_id'] = 'r'
    result['annotations'][0]['segments_info'][0]['category_id'] = 26.0
    file = read(result)
    assert file.coco.errors == ()
    (image,) = file.maps
    road, car = file.coco.categories.id.tolist()
    assert file.coco.annotations.category_id.tolist() == [car, road]
    assert file.coco.images.id.tolist() == [image] == [*file.segments]
    assert file.coco.ids == {image: 'a_0', road: 'r'}


def test_form_of_a_large_file_is_found(monkeypatch):
    """The key is found where two blocks meet, too."""
    monkeypatch.setattr('mmext.checks.labels.readers.coco._BLOCK', 5)
    text = b'{"a": 1, "segments_info": []}'
    assert holds_key(io.BytesIO(text))
    assert not holds_key(io.BytesIO(text.replace(b'_', b' ')))
