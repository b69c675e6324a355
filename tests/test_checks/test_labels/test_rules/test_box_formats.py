"""Faults that all boxes or labels of a set have, through the tool."""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers import box_sets
from helpers.box_sets import RIGHT, WRONG, BoxSet, convert, lines_of, write
from helpers.label_boxes import edit_json
from helpers.right_sets import check

FORMATS = tuple(RIGHT)


def checked(root: Path, way: dict, **more) -> tuple[int, dict[str, dict]]:
    """Exit code and the groups of a report by rule, without duplicates."""
    code, report = check(root, ignore=['DUP'], **way, **more)
    return code, {group['rule']: group for group in report['groups']}


def counts(groups: dict[str, dict]) -> dict[str, int]:
    return {rule: group['count'] for rule, group in groups.items()}


@pytest.mark.parametrize('form', FORMATS)
def test_each_fault_is_one_finding_with_the_line_that_mends_it(form, tmp_path):
    boxes = box_sets.colonies()
    boxes.images = boxes.images[:60]
    for number, (fault, writer) in enumerate(WRONG[form].items()):
        root = tmp_path / str(number)
        way = write(boxes, form, root, writer)
        code, groups = checked(tmp_path, way)
        assert list(groups) == ['DET013'], fault
        group = groups['DET013']
        assert (code, group['severity']) == (
            (0, 1) if 'one-based' in fault else (1, 2)
        )
        assert fault in group['message']
        assert group['count'] == len(boxes)
        # Three boxes, and where they are.
        assert len(re.findall(r'\(-?[\d.e-]+, ', group['message'])) == 3
        keys = ('annotations[', 'object[', 'line ')
        position = group['examples'][0]['position']
        assert sum(position.count(key) for key in keys) in range(1, 4)
        # What the remedy says, followed to the end.
        (line,) = lines_of(group['remedy'])
        convert(form, root, line)
        assert checked(tmp_path, way) == (0, {}), fault


@cache
def all_sets(shared: Path, folder: Path) -> dict[str, BoxSet]:
    return {
        'bccd': box_sets.bccd(shared),
        'shapes': box_sets.shapes(folder / 'shapes'),
        'street': box_sets.street(),
        'colonies': box_sets.colonies(),
    }


NAMES = 'bccd', 'shapes', 'street', 'colonies'


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'form'), product(NAMES, FORMATS))
def test_faults_are_named_in_all_sets(
    name, form, shared_path, tmp_path, tmp_path_factory
):
    folder = tmp_path_factory.getbasetemp()
    boxes = all_sets(shared_path('data/bccd'), folder)[name]
    for number, (fault, writer) in enumerate(WRONG[form].items()):
        way = write(boxes, form, tmp_path / str(number), writer)
        _, groups = checked(tmp_path, way)
        found = groups['DET013']
        assert fault in found['message']
        assert len(lines_of(found['remedy'])) == 1


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'form'), product(NAMES, FORMATS))
def test_right_sets_have_no_such_finding(
    name, form, shared_path, tmp_path, tmp_path_factory
):
    """Nor have those with boxes that leave their images."""
    folder = tmp_path_factory.getbasetemp()
    boxes = all_sets(shared_path('data/bccd'), folder)[name]
    for share in (0, 0.05, 0.2, 0.4):
        way = write(boxes.leaving(share), form, tmp_path / str(share))
        code, groups = checked(tmp_path, way)
        assert groups.keys() <= {'DET005', 'DET010', 'DET011'}
        assert code == 0
        if share:
            moved = groups['DET005']['count'] / len(boxes)
            assert abs(moved - share) < 0.06


@pytest.mark.parametrize('offset', [-1, 1])
def test_category_ids_are_off_by_one(offset, tmp_path):
    boxes = box_sets.street()
    way = write(boxes, 'coco', tmp_path / 'set', offset=offset)
    code, groups = checked(tmp_path, way)
    assert (code, list(groups)) == (1, ['DET014'])
    assert groups['DET014']['count'] == len(boxes)
    (line,) = lines_of(groups['DET014']['remedy'])
    convert('coco', tmp_path / 'set', line)
    assert checked(tmp_path, way) == (0, {})


def test_labels_of_yolo_count_from_one(tmp_path):
    way = write(box_sets.street(), 'yolo', tmp_path / 'set', offset=1)
    code, groups = checked(tmp_path, way)
    assert (code, list(groups)) == (1, ['DET014'])
    (line,) = lines_of(groups['DET014']['remedy'])
    assert line.strip() == 'label = label - 1'
    convert('yolo', tmp_path / 'set', line)
    assert checked(tmp_path, way) == (0, {})


@pytest.mark.parametrize('form', FORMATS)
def test_few_boxes_prove_nothing(form, tmp_path):
    boxes = box_sets.colonies()
    for number, (fault, writer) in enumerate(WRONG[form].items()):
        way = write(boxes.first(11), form, tmp_path / str(number), writer)
        assert 'DET013' not in checked(tmp_path, way)[1], fault


def drawn(seed: int, number: int, size: tuple[int, int], draw) -> BoxSet:
    """A set of one box an image."""
    rng, images = np.random.default_rng(seed), []
    for index in range(number):
        box = tuple(float(side) for side in draw(rng, *size))
        images.append((size, [(index % 3, box)]))
    return BoxSet(images)


def _large(rng, width, height):
    x1, y1, x2, y2 = rng.uniform(0, 0.12, 4)
    return x1 * width, y1 * height, (1 - x2) * width, (1 - y2) * height


def _in_a_corner(rng, width, height):
    x, y, w, h = rng.uniform(1, 0.2 * width, 4)
    return x, y, x + w, y + h * height / width


def _whole(rng, width, height):
    return 0, 0, width, height


def _in_a_quarter(rng, width, height):
    x, y = rng.uniform(0, 0.4, 2)
    return (
        *(x * width, y * height),
        *((x + 0.1) * width, (y + 0.1) * height),
    )


def _tiny(rng, width, height):
    x, y = rng.integers(0, (width - 2, height - 2)).tolist()
    return x, y, x + rng.integers(1, 3).item(), y + 2


def _of_a_tall_crowd(rng, width, height):
    """Amodal, so that some feet are below the image."""
    x, y, w = rng.uniform((0, 0.1, 0.02), (0.93, 0.7, 0.07))
    return x * width, y * height, (x + w) * width, (y + 4 * w) * height + 20


RIGHT_SCENES = {
    'one large object an image': (_large, (640, 480)),
    'a logo in the corner': (_in_a_corner, (640, 480)),
    'whole images': (_whole, (64, 64)),
    'the first quarter of mosaics': (_in_a_quarter, (640, 480)),
    'tiny boxes in tiny images': (_tiny, (16, 16)),
    'crowds': (_of_a_tall_crowd, (1280, 720)),
}


@pytest.mark.parametrize('form', FORMATS)
@pytest.mark.parametrize('scene', RIGHT_SCENES)
def test_right_scenes_that_may_look_wrong(scene, form, tmp_path):
    draw, size = RIGHT_SCENES[scene]
    boxes = drawn(3, 120, size, draw)
    for share in (0, 0.3):
        way = write(boxes.leaving(share), form, tmp_path / str(share))
        assert 'DET013' not in checked(tmp_path, way)[1]


def test_exchanged_sides_of_squares_cannot_be_known(tmp_path):
    boxes = box_sets.colonies()
    boxes.images = [((500, 500), own) for _, own in boxes.images]
    for form in ('coco', 'voc'):
        writer = WRONG[form]['x and y swapped']
        way = write(boxes, form, tmp_path / form, writer)
        assert checked(tmp_path, way) == (0, {})


def outlined(path: Path, change) -> None:
    """Give each annotation the outline of its box, then change it."""

    def edit(content: dict) -> None:
        for note in content['annotations']:
            x, y, w, h = note['bbox']
            points = [x, y, x + w, y, x + w, y + h, x, y + h]
            note['segmentation'] = [points]
            change(note)

    edit_json(path, edit)


def _to_corners(note: dict) -> None:
    x, y, w, h = note['bbox']
    note['bbox'] = [x, y, x + w, y + h]


def test_outlines_prove_what_the_boxes_leave_open(tmp_path):
    """Corners that fit their images as width and height, too."""
    way = write(drawn(1, 12, (640, 480), _in_a_corner), 'coco', tmp_path / 'a')
    edit_json(way['coco'], lambda it: [*map(_to_corners, it['annotations'])])
    assert checked(tmp_path, way) == (0, {})
    way = write(drawn(1, 12, (640, 480), _in_a_corner), 'coco', tmp_path / 'b')
    outlined(way['coco'], _to_corners)
    code, groups = checked(tmp_path, way)
    assert (code, list(groups)) == (1, ['DET013'])
    assert 'which the polygons confirm' in groups['DET013']['message']


def test_outlines_refute_what_the_boxes_seem_to_be(tmp_path):
    """Large objects that nearly all leave their images."""

    def draw(rng, width, height):
        x1, y1, *_ = _large(rng, width, height)
        return x1, y1, width + x1 / 2, height + y1 / 2

    boxes = drawn(2, 200, (640, 480), draw)
    way = write(boxes, 'coco', tmp_path / 'a')
    assert 'DET013' in checked(tmp_path, way)[1]
    outlined(way['coco'], lambda note: None)
    assert list(checked(tmp_path, way)[1]) == ['DET005']


def test_outlines_with_the_same_fault(tmp_path):
    boxes = box_sets.colonies()
    way = write(boxes, 'coco', tmp_path / 'a')

    def halve(note: dict) -> None:
        note['bbox'] = [side / 2 for side in note['bbox']]
        (points,) = note['segmentation']
        note['segmentation'] = [[number / 2 for number in points]]

    outlined(way['coco'], halve)
    _, groups = checked(tmp_path, way)
    assert list(groups) == ['DET013']
    assert (
        'points of segmentation in the same way'
        in (groups['DET013']['remedy'])
    )


def test_crowds_and_images_of_unknown_size_are_no_evidence(tmp_path):
    boxes = box_sets.colonies()
    way = write(boxes, 'coco', tmp_path / 'a')

    def spoil(content: dict) -> None:
        for note in content['annotations'][:500]:
            note['iscrowd'] = 1
            _to_corners(note)

    edit_json(way['coco'], spoil)
    assert 'DET013' not in checked(tmp_path, way)[1]
    way = write(
        boxes, 'coco', tmp_path / 'b', WRONG['coco']['centre and size']
    )
    edit_json(
        way['coco'],
        lambda content: [image.pop('width') for image in content['images']],
    )
    groups = checked(tmp_path, {'coco': way['coco']})[1]
    assert 'COCO013' in groups
    assert 'DET013' not in groups


def test_two_meanings_that_fit_alike_are_both_said(tmp_path):
    """Small objects that are near no border."""

    def draw(rng, width, height):
        x, y = rng.uniform(0.2, 0.7, 2)
        return x * width, y * height, x * width + 20, y * height + 15

    boxes = drawn(4, 60, (640, 480), draw)
    writer = WRONG['voc']['(left, top, width, height) in fractions']
    way = write(boxes, 'voc', tmp_path / 'a', writer)
    _, groups = checked(tmp_path, way)
    assert list(groups) == ['DET013']
    remedy = groups['DET013']['remedy']
    assert remedy.startswith('see in the images (--html) what is meant')
    assert len(lines_of(remedy)) == 2


def test_nothing_is_fixed_in_a_file_that_is_read_wrongly(tmp_path):
    """Not even what would be safe elsewhere, whatever is selected."""
    boxes = box_sets.colonies()
    way = write(
        boxes,
        'coco',
        tmp_path / 'a',
        WRONG['coco']['corners (x1, y1, x2, y2)'],
    )

    def spoil(content: dict) -> None:
        content['annotations'][3]['bbox'][2:] = 0, 0
        del content['annotations'][4]['iscrowd']

    edit_json(way['coco'], spoil)
    for number, select in enumerate(([], ['DET002', 'COCO014'])):
        out = tmp_path / f'fixed{number}'
        code, groups = checked(
            tmp_path, way, fix=out, **({'select': select} if select else {})
        )
        assert code == 1
        assert 'DET013' in groups
        fixed = out / 'train.json'
        assert fixed.read_bytes() == way['coco'].read_bytes()
        left = json.loads((out / 'fixes.json').read_bytes())['left']
        assert left['DET013'] == len(boxes)


def test_other_rules_go_on_beside_it(tmp_path):
    """What is wrong with a class, or with the file, is said, too."""
    way = write(
        box_sets.street(),
        'voc',
        tmp_path / 'a',
        WRONG['voc']['centre and size'],
    )
    path = tmp_path / 'a/Annotations/3.xml'
    path.write_text(path.read_text().replace('RBC', '', 1))
    code, groups = checked(tmp_path, way)
    assert code == 1
    assert {'DET013', 'VOC002'} == groups.keys()
