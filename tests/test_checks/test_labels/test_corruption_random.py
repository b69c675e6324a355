"""Random errors at random places: each is found there, and nothing else is.

What must be found is written down as an error is planted, by its rule, its
file and its place.
"""

import copy
import json
import math
import re
import tempfile
from collections import Counter
from pathlib import Path

from helpers.label_boxes import BOXES, coco_records, edit_xml
from helpers.label_sets import CLASSES, SIZES, DataSet, clean, noise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmext.checks.findings import Finding
from mmext.checks.labels.check import check_sources
from mmext.checks.labels.inputs import sources_of
from mmext.checks.labels.rules.registry import select_rules
from mmext.checks.labels.store import FactStore

HEIGHT, WIDTH = 24, 32
FILES = SIZES['train']
random_examples = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def findings(data: DataSet, *ignore: str) -> list[Finding]:
    """All findings; not those of rules for whole splits."""
    rules = select_rules((), ('CLS', 'DUP', 'SEG007', 'DET011', *ignore))
    sources = sources_of(**data.settings)
    with FactStore(data.root / 'facts.sqlite') as store:
        report = check_sources(sources, store, rules=rules, num_examples=10**6)
    return [each for group in report.groups for each in group.examples]


pixel = st.tuples(st.integers(0, HEIGHT - 1), st.integers(0, WIDTH - 1))
painted = st.dictionaries(pixel, st.integers(3, 254), min_size=1, max_size=9)
broken = st.sampled_from(
    ['empty', 'cut', 'flip', 'resize', 'no image', 'no mask', 'colour']
)
mask_plants = st.dictionaries(
    st.integers(0, FILES - 1),
    st.tuples(st.one_of(painted, broken), st.floats(0.2, 0.9)),
    max_size=FILES - 1,
)


def paint(data: DataSet, index: int, values: dict) -> set[tuple]:
    pixels = data.pixels(index)
    for place, value in values.items():
        pixels[place] = value
    path = data.mask(index)
    Image.fromarray(pixels).save(path)
    wanted = set()
    for value, count in Counter(values.values()).items():
        y, x = min(at for at, each in values.items() if each == value)
        rule = 'SEG006' if value == 254 else 'SEG001'
        wanted.add((rule, str(path), f'y={y}, x={x}', str(value), count))
    return wanted


def break_mask(data: DataSet, index: int, kind: str, where: float) -> tuple:
    path, image = data.mask(index), data.image(index)
    content = path.read_bytes()
    at = int(where * len(content))
    if kind == 'no image':
        image.unlink()
        return 'PAIR007', str(path), '', '', 1
    if kind == 'no mask':
        path.unlink()
        return 'PAIR006', str(image), '', '', 1
    if kind == 'resize':
        noise([index], HEIGHT + 3, WIDTH).save(image)
        return 'PAIR001', str(path), '', f'{WIDTH} x {HEIGHT}', 1
    if kind == 'colour':
        Image.open(path).convert('RGB').save(path)
        return 'SEG010', str(path), '', 'RGB', 1
    if kind == 'empty':
        path.write_bytes(b'')
        return 'SEG016', str(path), '', '', 1
    if kind == 'cut':
        path.write_bytes(content[:at])
        return 'SEG017', str(path), '', '', 1
    # In the data of the chunk of pixels.
    at = content.index(b'IDAT') + 4 + int(where * 20)
    changed = bytes([content[at] ^ 1 << index])
    path.write_bytes(content[:at] + changed + content[at + 1 :])
    return 'SEG018', str(path), '', '', 1


@random_examples
@given(mask_plants)
def test_masks(plants):
    with tempfile.TemporaryDirectory() as folder:
        data = clean('folders', Path(folder, 'data'))
        wanted = set()
        for index, (plant, where) in plants.items():
            if isinstance(plant, dict):
                wanted |= paint(data, index, plant)
            else:
                wanted.add(break_mask(data, index, plant, where))
        found = [
            (each.rule, each.file, each.place, each.value, each.count)
            for each in findings(data)
        ]
        assert set(found) == wanted
        assert len(found) == len(wanted)


_FIELDS = {
    'COCO001': {'bbox': 'seven'},
    'COCO002': {'id': 1000},
    'COCO005': {'image_id': 4},
    'COCO006': {'category_id': 4},
    'COCO009': {'ignore': 1},
    'COCO011': {'area': None},
    'DET001': {'bbox': [math.inf, 1, 2, 3]},
    'DET002': {'bbox': [9, 9, 5, 0]},
    'DET003': {'bbox': [9, 9, 5, 0.25]},
    'DET004': {'bbox': [-9, 9, 5, 5]},
    'DET005': {'bbox': [9, 30, 5, 9]},
    'DET009': {'segmentation': [[1, 2, 3, 4, 5]]},
    'DET010': None,
}
coco_plants = st.dictionaries(
    st.integers(1, FILES * len(BOXES) - 1),
    st.sampled_from(sorted(_FIELDS)),
    max_size=9,
)


def spoil_coco(content: dict, plants: dict[int, str]) -> set[tuple]:
    """Change annotations; rule and index of each."""
    notes = content['annotations']
    wanted = set()
    for index, rule in plants.items():
        if _FIELDS[rule] is None:
            notes.append(copy.deepcopy(notes[index]) | {'id': 9000 + index})
            index = len(notes) - 1
        elif rule == 'COCO011':
            del notes[index]['area']
        else:
            if 'bbox' in _FIELDS[rule]:
                del notes[index]['segmentation']
            notes[index].update(_FIELDS[rule])
        wanted.add((rule, index))
    return wanted


@random_examples
@given(coco_plants)
def test_annotations_of_coco(plants):
    names = [f'{index}.jpg' for index in range(FILES)]
    content = coco_records(names, CLASSES, (48, 36))
    wanted = spoil_coco(content, plants)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'train.json')
        path.write_text(json.dumps(content))
        data = DataSet(path.parent, 'coco', {}, {'coco': path})
        found = []
        # Two plants of an image may be one box of two classes.
        for each in findings(data, 'DET012'):
            rows = re.findall(r'annotations\[(\d+)\]', each.place)
            found += [(each.rule, int(row)) for row in rows]
            assert each.file == str(path)
            assert rows
            assert each.count == len(rows)
    assert set(found) == wanted
    assert len(found) == len(wanted)


_CORNERS = {
    'VOC002': {'ymax': 'x'},
    'DET001': {'xmin': 'nan'},
    'DET002': {'xmax': '1'},
    'DET004': {'xmin': '90', 'xmax': '99'},
    'DET005': {'ymax': '50'},
}
voc_plants = st.dictionaries(
    st.tuples(st.integers(0, FILES - 1), st.integers(0, len(BOXES) - 1)),
    st.sampled_from(sorted(_CORNERS)),
    max_size=9,
)


@random_examples
@given(voc_plants)
def test_objects_of_voc(plants):
    with tempfile.TemporaryDirectory() as folder:
        data = clean('voc_bare', Path(folder, 'data'))
        wanted = set()
        for (file, number), rule in plants.items():

            def change(root, number=number, rule=rule) -> None:
                ends = root.findall('object')[number].find('bndbox')
                for corner, text in _CORNERS[rule].items():
                    ends.find(corner).text = text

            path = data.annotation(file)
            edit_xml(path, change)
            place = f'object[{number}] of {data.image(file)}'
            if rule == 'VOC002':
                place = f'object[{number}].bndbox.ymax'
            wanted.add((rule, str(path), place))
        found = [(e.rule, e.file, e.place) for e in findings(data)]
        assert set(found) == wanted
        assert len(found) == len(wanted)


@random_examples
@given(st.integers(0, FILES - 1), painted, st.integers(1, 3))
def test_a_changed_file_is_looked_at_again(index, values, repeats):
    """A second check of a changed file tells what is in it now."""
    with tempfile.TemporaryDirectory() as folder:
        data = clean('folders', Path(folder, 'data'))
        before = data.mask(index).read_bytes()
        for _ in range(repeats):
            assert findings(data) == []
            wanted = paint(data, index, values)
            found = [
                (each.rule, each.file, each.place, each.value, each.count)
                for each in findings(data)
            ]
            assert sorted(found) == sorted(wanted)
            data.mask(index).write_bytes(before)
