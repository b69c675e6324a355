"""Errors of annotation files in COCO's format as a whole."""

from collections.abc import Callable

from helpers.label_boxes import edit_json
from helpers.label_plants import Planted, plant
from helpers.label_sets import DataSet

COCO = ('coco', 'coco_bare')


def change_coco(
    data: DataSet, change: Callable[[dict], object], **expected
) -> Planted:
    """Change the annotation file of the training."""
    edit_json(data.annotation(), change)
    return Planted(data.annotation(), **expected)


def change_note(
    data: DataSet, index: int, expected: dict, **fields
) -> Planted:
    """Change fields of an annotation; None takes a field away."""

    def change(content: dict) -> None:
        note = content['annotations'][index]
        for name, value in fields.items():
            note[name] = value
            if value is None:
                del note[name]

    return change_coco(data, change, **expected)


@plant('COCO001', *COCO)
def text_for_a_number(data: DataSet) -> Planted:
    expected = {'position': 'annotations[7].bbox[2]'}
    return change_note(data, 7, expected, bbox=[4, 5, 'wide', 9])


@plant('COCO001', *COCO)
def number_beyond_64_bits(data: DataSet) -> Planted:
    expected = {'position': 'annotations[7].iscrowd'}
    return change_note(data, 7, expected, iscrowd=2**70)


@plant('COCO001', *COCO)
def cut_off(data: DataSet) -> Planted:
    path = data.annotation()
    path.write_bytes(path.read_bytes()[:-100])
    return Planted(path)


@plant('COCO001', *COCO, 'panoptic_bare')
def byte_order_mark(data: DataSet) -> Planted:
    path = data.annotation()
    path.write_bytes(b'\xef\xbb\xbf' + path.read_bytes())
    return Planted(path)


@plant('COCO001', *COCO)
def utf_16(data: DataSet) -> Planted:
    path = data.annotation()
    path.write_text(path.read_text(), 'utf-16')
    return Planted(path)


@plant('COCO002', *COCO)
def annotation_id_twice(data: DataSet) -> Planted:
    value = '1002, first in annotations[2]'
    expected = {'position': 'annotations[9]', 'value': value}
    return change_note(data, 9, expected, id=1002)


@plant('COCO003', *COCO)
def image_id_twice(data: DataSet) -> Planted:
    """Another image that has the id of one."""

    def change(content: dict) -> None:
        content['images'][3]['id'] = 101
        for note in content['annotations']:
            if note['image_id'] == 103:
                note['image_id'] = 101

    value = '101, first in images[1]'
    return change_coco(data, change, position='images[3]', value=value)


@plant('COCO004', *COCO)
def file_name_twice(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        content['images'][3]['file_name'] = '1.jpg'

    value = '1.jpg, first in images[1]'
    return change_coco(data, change, position='images[3]', value=value)


@plant('COCO005', *COCO)
def image_id_of_none(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        for index in (3, 4, 8):
            content['annotations'][index]['image_id'] = 777

    position = 'annotations[3], annotations[4], annotations[8]'
    return change_coco(data, change, position=position, value='777', count=3)


@plant('COCO006', *COCO)
def category_id_of_none(data: DataSet) -> Planted:
    expected = {'position': 'annotations[5]', 'value': '0'}
    return change_note(data, 5, expected, category_id=0)


@plant('COCO006', *COCO)
def category_id_in_quotes(data: DataSet) -> Planted:
    expected = {'position': 'annotations[5]', 'value': "'3'"}
    return change_note(data, 5, expected, category_id='3')


@plant('COCO007', 'coco')
def class_is_misspelt(data: DataSet) -> Planted:
    for split in ('train', 'val'):
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['metainfo']['classes'] = ['road', 'Car', 'sky']
    return Planted(data.annotation(), value='Car', count=2, files=2)


@plant('COCO012', *COCO)
def category_of_no_class(data: DataSet) -> Planted:
    """Without a config, the classes have to be named."""
    if not data.config:
        data.settings['classes'] = ['road', 'car']
    else:
        data.config['model']['bbox_head']['num_classes'] = 2
    for split in data.config and ('train', 'val'):
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['metainfo']['classes'] = ['road', 'car']
    files = 2 if data.config else 1
    return Planted(
        data.annotation(),
        'categories[2]',
        'sky',
        count=10 if data.config else 6,
        files=files,
    )


@plant('COCO012', 'coco')
def category_of_a_class_written_otherwise(data: DataSet) -> Planted:
    """A second category for the same class, whose objects are dropped."""

    def change(content: dict) -> None:
        content['categories'].append({'id': 9, 'name': 'Car '})
        content['annotations'][1]['category_id'] = 9

    position = 'categories[3]'
    return change_coco(data, change, position=position, value='Car ')


@plant('COCO008', 'coco')
def classes_in_another_order(data: DataSet) -> Planted:
    for split in ('train', 'val'):
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['metainfo']['classes'] = ['road', 'sky', 'car']
    value = 'sky and car'
    path = data.annotation()
    return Planted(path, 'categories', value, count=2, files=2)


@plant('COCO009', *COCO)
def marked_to_be_ignored(data: DataSet) -> Planted:
    return change_note(data, 6, {'position': 'annotations[6]'}, ignore=1)


@plant('COCO009', *COCO)
def no_area_by_its_own_account(data: DataSet) -> Planted:
    return change_note(data, 6, {'position': 'annotations[6]'}, area=0)


@plant('COCO010', *COCO)
def category_twice(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        content['categories'].append({'id': 9, 'name': 'car'})

    value = 'car, first in categories[1]'
    return change_coco(data, change, position='categories[3]', value=value)


@plant('COCO011', *COCO)
def no_area(data: DataSet) -> Planted:
    expected = {'position': 'annotations[10]', 'value': 'area'}
    return change_note(data, 10, expected, area=None)


@plant('COCO011', *COCO)
def no_box(data: DataSet) -> Planted:
    expected = {'position': 'annotations[10]', 'value': 'bbox'}
    return change_note(data, 10, expected, bbox=None)


def change_evaluated(data: DataSet, change: Callable) -> Planted:
    """Change the same annotation of a training and of its evaluation."""
    path = data.annotation(split='val')
    metric = {'type': 'CocoMetric', 'ann_file': str(path)}
    data.config['val_evaluator'] = metric
    for value in (path, data.annotation()):
        edit_json(value, lambda content: change(content['annotations'][3]))
    return Planted(path, 'annotations[3]')


@plant('COCO014', 'coco')
def no_iscrowd_to_evaluate_on(data: DataSet) -> Planted:
    """pycocotools fails at the first evaluation; trainings do not."""
    return change_evaluated(data, lambda note: note.pop('iscrowd'))


@plant('COCO015', 'coco')
def annotation_id_zero_to_evaluate_on(data: DataSet) -> Planted:
    """pycocotools takes it for no match; a training does not mind."""
    return change_evaluated(data, lambda note: note.update(id=0))


@plant('COCO015', 'coco')
def word_for_an_id_to_evaluate_on(data: DataSet) -> Planted:
    """pycocotools puts ids into an array of numbers."""
    return change_evaluated(data, lambda note: note.update(id='a'))


@plant('COCO014', 'coco_bare')
def no_iscrowd(data: DataSet) -> Planted:
    expected = {'position': 'annotations[5]'}
    return change_note(data, 5, expected, iscrowd=None)


@plant('COCO016', 'coco')
def no_mask_of_those_that_are_loaded(data: DataSet) -> Planted:
    """Of five without a segmentation, three are dropped by the loader."""
    steps = data.config['train_dataloader']['dataset']['pipeline']
    steps[0]['with_mask'] = True

    def change(content: dict) -> None:
        notes = content['annotations']
        for index in (3, 4, 5, 6, 7):
            notes[index]['segmentation'] = []
        notes[3] |= {'iscrowd': 1}
        notes[5] |= {'ignore': 1}
        notes[6] |= {'area': 0}
        notes[7] |= {'ignore': 1, 'iscrowd': 1}

    position = 'annotations[3], annotations[4]'
    return change_coco(data, change, position=position, count=2)


@plant('COCO013', *COCO)
def image_of_no_size(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        del content['images'][1]['width']
        content['images'][4]['height'] = 0

    return change_coco(data, change, position='images[1], images[4]', count=2)


@plant('COCO017', *COCO)
def keypoints_of_another_number(data: DataSet) -> Planted:
    """The category names two, and one of them is not labelled elsewhere."""

    def change(content: dict) -> None:
        content['categories'][0]['keypoints'] = ['head', 'tail']
        notes = content['annotations']
        for index, points in {
            0: [5, 6, 2, 0, 0, 0],
            3: [5, 6, 2, 7, 8, 1, 9, 9, 1],
            6: [5, 6, 2, 7, 'low', 1],
            9: [],
        }.items():
            notes[index]['keypoints'] = points

    position = 'annotations[3], annotations[6]'
    return change_coco(data, change, position=position, count=2)


@plant('COCO017', *COCO)
def keypoint_outside(data: DataSet) -> Planted:
    """Without names of key points; one that is not labelled may be."""
    points = [5, 6, 2, 70, 8, 1]
    edit_json(
        data.annotation(),
        lambda content: content['annotations'][4].update(
            keypoints=[5, 6, 2, 70, 8, 0]
        ),
    )
    return change_note(
        data, 7, {'position': 'annotations[7]'}, keypoints=points
    )


@plant('COCO018', *COCO)
def list_of_no_category(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        content['images'][1]['not_exhaustive_category_ids'] = [1, 77]
        content['images'][2]['neg_category_ids'] = []

    return change_coco(data, change, position='images[1]', value='77')


@plant('COCO018', *COCO)
def absent_category_with_objects(data: DataSet) -> Planted:
    """All images but one have objects of all categories."""

    def change(content: dict) -> None:
        del content['annotations'][8]
        for index in (1, 2):
            content['images'][index]['neg_category_ids'] = [3]
        content['images'][3]['not_exhaustive_category_ids'] = [3]

    return change_coco(data, change, position='images[1]', value='3')
