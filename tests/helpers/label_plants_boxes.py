"""Errors of boxes in annotation files, and files of Pascal VOC and YOLO."""

import copy
import math
from pathlib import Path
from xml.etree import ElementTree

from helpers.label_boxes import edit_xml
from helpers.label_plants import Planted, plant
from helpers.label_plants_coco import COCO, change_coco, change_note
from helpers.label_sets import DataSet

_VOC = ('voc', 'voc_bare')
_YOLO = ('yolo', 'yolo_bare')


def _box(data: DataSet, box: list, value: str, index: int = 4) -> Planted:
    """Give an annotation another box and the polygon around it."""
    left, top, wide, high = box
    right, low = left + wide, top + high
    outline = [left, top, right, top, right, low, left, low]
    if not all(map(math.isfinite, outline)):
        outline = [1, 1, 9, 1, 9, 9]
    position = f'annotations[{index}] of {data.image(index // 3)}'
    expected = {'position': position, 'value': value}
    return change_note(data, index, expected, bbox=box, segmentation=[outline])


def _corners(data: DataSet, box: tuple, value: str) -> Planted:
    """Give the second object of an XML file another box."""

    def change(root: ElementTree.Element) -> None:
        ends = root.findall('object')[1].find('bndbox')
        for name, side in zip(('xmin', 'ymin', 'xmax', 'ymax'), box):
            ends.find(name).text = str(side)

    path = data.annotation(2)
    edit_xml(path, change)
    position = f'object[1] of {data.image(2)}'
    return Planted(path, position=position, value=value)


@plant('DET001', *COCO)
def nan_in_json(data: DataSet) -> Planted:
    box = [math.nan, 4, 5, 6]
    return _box(data, box, '(nan, 4, nan, 10)')


@plant('DET001', *_VOC)
def nan_in_xml(data: DataSet) -> Planted:
    return _corners(data, ('nan', 2, 9, 9), '(nan, 2, 9, 9)')


@plant('DET002', *COCO)
def negative_width(data: DataSet) -> Planted:
    return _box(data, [20, 8, -6, 9], '(20, 8, 14, 17)')


@plant('DET002', *_VOC)
def corners_exchanged(data: DataSet) -> Planted:
    return _corners(data, (30, 4, 12, 20), '(30, 4, 12, 20)')


@plant('DET003', *COCO)
def smaller_than_a_pixel(data: DataSet) -> Planted:
    return _box(data, [20, 8, 0.5, 9], '(20, 8, 20.5, 17)')


@plant('DET004', *COCO)
def outside(data: DataSet) -> Planted:
    return _box(data, [60, 8, 6, 9], '(60, 8, 66, 17)')


@plant('DET004', *_VOC)
def outside_in_xml(data: DataSet) -> Planted:
    return _corners(data, (50, 40, 60, 50), '(50, 40, 60, 50)')


@plant('DET005', *COCO)
def beyond(data: DataSet) -> Planted:
    return _box(data, [40, 8, 20, 9], '(40, 8, 60, 17)')


@plant('DET005', *_VOC)
def beyond_in_xml(data: DataSet) -> Planted:
    return _corners(data, (10, 4, 99, 20), '(10, 4, 99, 20)')


@plant('DET006', 'voc')
def unknown_class(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        for item in root.findall('object')[:2]:
            item.find('name').text = 'Road '

    path = data.annotation(3)
    edit_xml(path, change)
    return Planted(path, value='Road ', count=2)


@plant('DET006', 'voc')
def name_on_a_line_of_its_own(data: DataSet) -> Planted:
    """As some editors save it; the loader does not strip the name."""

    def change(root: ElementTree.Element) -> None:
        root.find('object/name').text = '\n  road\n  '

    path = data.annotation(3)
    edit_xml(path, change)
    return Planted(path, value='\n  road\n  ')


@plant('DET006', 'openmmlab')
def label_below_all(data: DataSet) -> Planted:
    return _label(data, -1)


@plant('DET007', 'openmmlab')
def label_beyond_all(data: DataSet) -> Planted:
    return _label(data, 3)


def _label(data: DataSet, label: int) -> Planted:
    def change(content: dict) -> None:
        content['data_list'][2]['instances'][1]['bbox_label'] = label

    position = str(data.image(2))
    return change_coco(data, change, position=position, value=str(label))


@plant('DET008', *COCO)
def box_beside_its_polygon(data: DataSet) -> Planted:
    """Polygons are decoded only of boxes with which more may be wrong.

    This one reaches beyond the image, too, of which DET005 warns.
    """
    position = f'annotations[4] of {data.image(1)}'
    expected = {'position': position, 'value': '(30, 3, 55, 13)'}
    return change_note(data, 4, expected, bbox=[30, 3, 25, 10])


@plant('DET008', *COCO)
def polygon_of_another_object(data: DataSet) -> Planted:
    """Nothing but the two of them is wrong."""
    position = f'annotations[4] of {data.image(1)}'
    expected = {'position': position, 'value': '(21, 6, 36, 17)'}
    outline = [[2, 20, 12, 20, 12, 30, 2, 30]]
    return change_note(data, 4, expected, segmentation=outline)


@plant('DET008', 'coco_bare')
def run_lengths_of_another_object(data: DataSet) -> Planted:
    """Three columns of five pixels each, elsewhere."""
    position = f'annotations[4] of {data.image(1)}'
    expected = {'position': position, 'value': '(21, 6, 36, 17)'}
    counts = [40, 5, 31, 5, 31, 5, 48 * 36 - 117]
    runs = {'size': [36, 48], 'counts': counts}
    return change_note(data, 4, expected, segmentation=runs)


@plant('DET008', 'coco_bare')
def corners_for_width_and_height(data: DataSet) -> Planted:
    position = f'annotations[3] of {data.image(1)}'
    expected = {'position': position, 'value': '(5, 5, 22, 19)'}
    return change_note(data, 3, expected, bbox=[5, 5, 17, 14])


@plant('DET009', 'coco_bare')
def run_lengths_of_nothing(data: DataSet) -> Planted:
    position = f'annotations[4] of {data.image(1)}'
    expected = {'position': position, 'value': '(21, 6, 36, 17)'}
    runs = {'size': [36, 48], 'counts': [48 * 36]}
    return change_note(data, 4, expected, segmentation=runs)


@plant('DET009', *COCO)
def polygon_of_two_points(data: DataSet) -> Planted:
    position = f'annotations[4] of {data.image(1)}'
    expected = {'position': position, 'value': '(21, 6, 36, 17)'}
    return change_note(data, 4, expected, segmentation=[[21, 6, 36, 17]])


@plant('DET010', *COCO)
def object_twice(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        again = copy.deepcopy(content['annotations'][4])
        content['annotations'].append(again | {'id': 5000})

    position = f'annotations[18] of {data.image(1)}'
    return change_coco(
        data, change, position=position, value='(21, 6, 36, 17)'
    )


@plant('DET010', 'coco')
def object_nearly_twice(data: DataSet) -> Planted:
    """Of other annotators, who differ by two pixels."""

    def change(content: dict) -> None:
        box = {'id': 5000, 'bbox': [23, 6, 15, 11], 'segmentation': []}
        content['annotations'].append(content['annotations'][4] | box)

    position = f'annotations[18] of {data.image(1)}'
    return change_coco(
        data, change, position=position, value='(23, 6, 38, 17)'
    )


@plant('DET010', *_VOC)
def object_twice_in_xml(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        root.append(copy.deepcopy(root.findall('object')[1]))

    path = data.annotation(0)
    edit_xml(path, change)
    position = f'object[3] of {data.image(0)}'
    return Planted(path, position=position, value='(20, 6, 35, 17)')


@plant('DET012', 'coco')
def object_of_two_classes(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        other = {'id': 5000, 'category_id': 1}
        content['annotations'].append(content['annotations'][4] | other)

    position = f'annotations[18] of {data.image(1)}'
    return change_coco(
        data, change, position=position, value='(21, 6, 36, 17)'
    )


@plant('DET012', 'voc_bare')
def object_of_two_classes_in_xml(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        other = copy.deepcopy(root.findall('object')[1])
        other.find('name').text = 'sky'
        root.append(other)

    path = data.annotation(0)
    edit_xml(path, change)
    position = f'object[3] of {data.image(0)}'
    return Planted(path, position=position, value='(20, 6, 35, 17)')


@plant('DET011', *COCO)
def nothing_annotated(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        del content['annotations'][6:9]

    change_coco(data, change)
    return Planted(data.image(2))


@plant('DET011', *_VOC)
def nothing_annotated_in_xml(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        for item in root.findall('object'):
            root.remove(item)

    edit_xml(data.annotation(2), change)
    return Planted(data.image(2))


def _all(data: DataSet, file: Path, value: str, *keys: str) -> Planted:
    """What is said of all 18 boxes of a split; keys have an image, too."""
    places = [f'{key[1:]} of {data.image(int(key[0]))}' for key in keys]
    position = ', '.join(places)
    if keys[1:]:
        position += f' and {18 - len(keys)} more'
    return Planted(file, position=position, value=value, count=18)


@plant('DET013', *COCO)
def corners_in_json(data: DataSet) -> Planted:
    """Outlines stay what they are, and prove it."""

    def change(content: dict) -> None:
        for note in content['annotations']:
            x, y, w, h = note['bbox']
            note['bbox'] = [x, y, x + w, y + h]

    change_coco(data, change)
    value = 'corners (x1, y1, x2, y2)'
    keys = '0annotations[1]', '0annotations[2]', '1annotations[4]'
    return _all(data, data.annotation(), value, *keys)


@plant('DET013', *_VOC)
def width_and_height_in_xml(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        for item in root.findall('object'):
            x1, y1, x2, y2 = item.find('bndbox')
            x2.text = str(int(x2.text) - int(x1.text))
            y2.text = str(int(y2.text) - int(y1.text))

    for index in range(6):
        edit_xml(data.annotation(index), change)
    value = '(left, top, width, height)'
    keys = '0object[1]', '0object[2]'
    return _all(data, data.annotation(0), value, *keys)


@plant('DET013', *_YOLO)
def lines_in_pixels(data: DataSet) -> Planted:
    for index in range(6):
        path = data.annotation(index)
        lines = []
        for line in path.read_text().splitlines():
            label, x, y, w, h = map(float, line.split())
            numbers = int(label), x * 48, y * 36, w * 48, h * 36
            lines.append(' '.join(f'{number:g}' for number in numbers))
        path.write_text('\n'.join(lines))
    value = 'centre and size (cx, cy, width, height) in pixels'
    keys = '0line 1', '0line 2', '0line 3'
    return _all(data, data.annotation(0), value, *keys)


@plant('DET014', *COCO)
def category_ids_from_zero(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        for note in content['annotations']:
            note['category_id'] -= 1

    change_coco(data, change)
    keys = '0annotations[0]', '1annotations[3]', '2annotations[6]'
    return _all(data, data.annotation(), 'category_id + 1', *keys)


@plant('DET014', *_YOLO)
def classes_from_one(data: DataSet) -> Planted:
    for index in range(6):
        path = data.annotation(index)
        lines = path.read_text().splitlines()
        path.write_text(
            '\n'.join(f'{int(line[0]) + 1}{line[1:]}' for line in lines)
        )
    return _all(data, data.annotation(0), 'label - 1', '0line 3')


@plant('PAIR004', *COCO)
def another_size(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        content['images'][2] |= {'width': 96, 'height': 72}

    change_coco(data, change)
    return Planted(data.image(2), value='96 x 72')


@plant('PAIR004', *_VOC)
def another_size_in_xml(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        root.find('size/width').text = '480'

    edit_xml(data.annotation(2), change)
    return Planted(data.image(2), value='480 x 36')


@plant('PAIR009', 'semantic')
def mask_of_no_image(data: DataSet) -> Planted:
    path = data.mask(3)
    data.image(3).unlink()
    return Planted(path)


@plant('PAIR009', 'voc_bare')
def annotation_of_no_list(data: DataSet) -> Planted:
    path = data.annotation(2)
    text = path.read_text()
    path = path.with_name('left_over.xml')
    path.write_text(text)
    return Planted(path)


@plant('PAIR010', 'coco_bare', 'voc_bare')
def image_of_nobody(data: DataSet) -> Planted:
    path = data.image(2).with_name('left_over.jpg')
    path.write_bytes(data.image(2).read_bytes()[::-1])
    return Planted(path)


@plant('VOC001', *_VOC)
def annotation_missing(data: DataSet) -> Planted:
    path = data.annotation(1)
    path.unlink()
    return Planted(path)


@plant('VOC002', *_VOC)
def xml_cut_off(data: DataSet) -> Planted:
    path = data.annotation(1)
    path.write_bytes(path.read_bytes()[:-60])
    return Planted(path)


@plant('VOC002', *_VOC)
def no_number(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        root.findall('object')[2].find('bndbox/ymax').text = '3o'

    path = data.annotation(1)
    edit_xml(path, change)
    return Planted(path, position='object[2].bndbox.ymax')


def _text(data: DataSet, path: str, text: str | None) -> Planted:
    def change(root: ElementTree.Element) -> None:
        root.find(path).text = text

    edit_xml(data.annotation(1), change)
    position = path.replace('object', 'object[0]').replace('/', '.')
    return Planted(data.annotation(1), position=position)


@plant('VOC002', 'voc')
def difficult_is_empty(data: DataSet) -> Planted:
    return _text(data, 'object/difficult', None)


@plant('VOC002', 'voc_bare')
def width_is_empty(data: DataSet) -> Planted:
    return _text(data, 'size/width', None)


@plant('VOC002', 'voc_bare')
def height_is_no_whole_number(data: DataSet) -> Planted:
    return _text(data, 'size/height', '36.0')


@plant('VOC004', 'voc_bare')
def size_of_zero(data: DataSet) -> Planted:
    for side in ('width', 'height'):
        _text(data, f'size/{side}', '0')
    return Planted(data.annotation(1), position='size', value='0 x 0')


@plant('VOC004', 'voc')
def size_of_zero_that_is_filtered(data: DataSet) -> Planted:
    dataset = data.config['train_dataloader']['dataset']
    dataset['filter_cfg'] = {'min_size': 16}
    return size_of_zero(data)


@plant('VOC003', *_VOC)
def name_of_another_image(data: DataSet) -> Planted:
    def change(root: ElementTree.Element) -> None:
        root.find('filename').text = 'train_0.jpg'

    path = data.annotation(1)
    edit_xml(path, change)
    return Planted(path, position='filename', value='train_0.jpg')


def _line(data: DataSet, line: str, value: str = '') -> Planted:
    """Give the second object of a label file of YOLO another line."""
    path = data.annotation(2)
    lines = path.read_text().splitlines()
    lines[1] = line
    path.write_text('\n'.join(lines))
    position = f'line 2 of {data.image(2)}' if value else 'line 2'
    return Planted(path, position=position, value=value)


@plant('DET001', *_YOLO)
def nan_in_line(data: DataSet) -> Planted:
    return _line(data, '1 nan 0.5 0.2 0.2', '(nan, 14.4, nan, 21.6)')


@plant('DET002', *_YOLO)
def line_without_width(data: DataSet) -> Planted:
    return _line(data, '1 0.5 0.5 0 0.5', '(24, 9, 24, 27)')


@plant('DET003', 'yolo_bare')
def line_of_less_than_a_pixel(data: DataSet) -> Planted:
    return _line(data, '1 0.5 0.5 0.01 0.5', '(23.76, 9, 24.24, 27)')


@plant('DET005', *_YOLO)
def line_beyond(data: DataSet) -> Planted:
    return _line(data, '1 0.875 0.5 0.5 0.5', '(30, 9, 54, 27)')


@plant('DET007', *_YOLO)
def class_without_name(data: DataSet) -> Planted:
    path = data.annotation(2)
    path.write_text(f'{path.read_text()}3 0.5 0.5 0.5 0.5\n')
    return Planted(path, value='3')


@plant('DET010', 'yolo_bare')
def line_twice(data: DataSet) -> Planted:
    path = data.annotation(0)
    path.write_text(path.read_text() + path.read_text().splitlines()[1])
    position = f'line 4 of {data.image(0)}'
    return Planted(path, position=position, value='(20, 6, 35, 17)')


@plant('DET011', *_YOLO)
def picture_without_label_file(data: DataSet) -> Planted:
    """Which is how YOLO says that there is no object."""
    data.annotation(2).unlink()
    return Planted(data.image(2))


@plant('PAIR009', 'yolo_bare')
def label_file_without_picture(data: DataSet) -> Planted:
    path = data.annotation(2).with_name('left_over.txt')
    path.write_text(data.annotation(2).read_text())
    return Planted(path)


@plant('YOLO001', *_YOLO)
def line_of_four_columns(data: DataSet) -> Planted:
    return _line(data, '1 0.5 0.5 0.2')


@plant('YOLO001', 'yolo_bare')
def line_with_a_name(data: DataSet) -> Planted:
    return _line(data, 'car 0.5 0.5 0.2 0.2')


@plant('YOLO001', 'yolo_bare')
def class_of_a_fraction(data: DataSet) -> Planted:
    return _line(data, '1.5 0.5 0.5 0.2 0.2')


@plant('YOLO001', 'yolo')
def label_file_of_bytes(data: DataSet) -> Planted:
    data.annotation(2).write_bytes(b'\xff\xfe\x00')
    return Planted(data.annotation(2))


@plant('YOLO002', *_YOLO)
def line_in_pixels(data: DataSet) -> Planted:
    return _line(data, '1 24 18 12 9')
