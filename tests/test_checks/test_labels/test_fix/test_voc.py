"""XML files before and after their repair, as the rules see them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import ImageFacts, Sample, SampleFacts
from mmext.checks.labels.fix.voc import fix_voc
from mmext.checks.labels.readers.boxes import read_voc
from mmext.checks.labels.rules import RULES

EXPECTED = Expectations(task='detection', num_classes=1, classes=('cat',))
IMAGE = ImageFacts(width=64, height=48, mode='RGB')


def object_of(box, name='cat', more=''):
    corners = ''.join(
        f'\n      <{corner}>{side}</{corner}>'
        for corner, side in zip(('xmin', 'ymin', 'xmax', 'ymax'), box)
    )
    return (
        f'\n  <object>\n    <name>{name}</name>{more}'
        f'\n    <bndbox>{corners}\n    </bndbox>\n  </object>'
    )


def voc(*boxes, size=(64, 48), more='') -> bytes:
    noted = ''
    if size is not None:
        noted = (
            f'\n  <size><width>{size[0]}</width><height>{size[1]}</height>'
            '<depth>3</depth></size>'
        )
    objects = ''.join(
        box if isinstance(box, str) else object_of(box) for box in boxes
    )
    return (
        '<annotation>\n  <by>Ägidius</by>\n'
        f'  <filename>0.jpg</filename>{noted}{objects}{more}\n</annotation>\n'
    ).encode()


def rules_of(content: bytes, image=IMAGE) -> set[str]:
    file = read_voc(content)
    sample = Sample(
        index=0, boxes=file.boxes, width=file.width, height=file.height
    )
    facts = SampleFacts(
        split='train', sample=sample, image=image, annotation=file
    )
    return {
        finding.rule
        for rule in RULES.values()
        if rule.scope == 'sample'
        for finding in rule.check(facts, EXPECTED)
        if finding.rule not in ('DET006', 'DET011')
    }


GOOD = (4, 5, 20, 30)
# What the plants of test_fix_labels.py do not have; name: (rule, file, file
# after the repair, locations of the changes)
REPAIRED = {
    'beyond': (
        'DET005',
        voc((-5, 5, 70, 30), GOOD),
        voc((1, 5, 64, 30), GOOD),
        ['object[0].bndbox.xmin', 'object[0].bndbox.xmax'],
    ),
    'size': (
        'PAIR004',
        voc(GOOD, size=(100, 50)),
        voc(GOOD),
        ['size.width', 'size.height'],
    ),
}


@pytest.mark.parametrize('case', REPAIRED)
def test_repairs(case):
    rule, content, wanted, locations = REPAIRED[case]
    assert rules_of(content) == {rule}
    fixed = fix_voc(content, IMAGE)
    assert fixed.content.decode() == wanted.decode()
    assert rules_of(fixed.content) == set()
    assert [change.location for change in fixed.changes] == locations
    assert {change.rule for change in fixed.changes} == {rule}
    again = fix_voc(fixed.content, IMAGE)
    assert (again.content, again.changes) == (fixed.content, ())


def test_says_what_was_changed():
    first, second = fix_voc(REPAIRED['beyond'][1], IMAGE).changes
    assert (first.was, first.now) == ('-5', '1')
    assert (second.was, second.now) == ('70', '64')
    (change,) = fix_voc(voc((9, 9, 3, 4), GOOD), IMAGE).changes
    assert change.was == object_of((9, 9, 3, 4)).strip()
    assert change.now == ''


def test_size_of_zero_is_written():
    fixed = fix_voc(voc(GOOD, size=(0, 0)), IMAGE)
    assert fixed.content == voc(GOOD)


def test_size_that_is_not_noted_is_not_added():
    content = voc(GOOD, (-5, 5, 70, 30), size=None)
    fixed = fix_voc(content, IMAGE)
    assert fixed.content == voc(GOOD, (1, 5, 64, 30), size=None)
    assert fix_voc(content).content == content


LEFT = {
    'scaled': ('PAIR004', voc(GOOD, size=(128, 96))),
    'objects': ('PAIR004', voc((20, 30, 40, 60), size=(48, 64))),
    'objects_too': ('DET005', voc((20, 30, 40, 60), size=(48, 64))),
    'sliver': ('DET005', voc((-9, 2, 1, 9))),
}


@pytest.mark.parametrize('case', LEFT)
def test_leaves_what_would_be_a_guess(case):
    rule, content = LEFT[case]
    assert rule in rules_of(content)
    fixed = fix_voc(content, IMAGE)
    assert (fixed.content, fixed.changes) == (content, ())


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'<annotation>',
        b'<boxes/>',
        voc(object_of((1, 2, 3, 'x')), (7, 7, 7, 9)),
        voc((7, 7, 7, 9)).replace(b'<ymax>9</ymax>', b''),
        b'<!DOCTYPE a [<!ENTITY x "y">]>' + voc((7, 7, 7, 9)),
    ],
)
def test_files_that_cannot_be_read_are_left(content):
    fixed = fix_voc(content, IMAGE)
    assert (fixed.content, fixed.changes) == (content, ())


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16', 'latin-1'])
def test_a_file_with_a_declaration_is_written_in_utf8(encoding):
    before = voc(GOOD, (7, 7, 7, 9)).decode()
    before = f'<?xml version="1.0" encoding="{encoding}"?>\n{before}'
    fixed = fix_voc(before.encode(encoding))
    declared = b"<?xml version='1.0' encoding='utf-8'?>\n"
    assert fixed.content == declared + voc(GOOD)


sides = st.sampled_from([-7, -1, 0, 1, 2, 40, 47, 48, 50, 64, 65, 66, 90])
odd = sides | st.sampled_from(['nan', '-inf', '12.75', '1e3', ' 5 '])
boxes = st.tuples(odd, sides, odd, sides) | st.just(GOOD)
sizes = st.sampled_from(
    [(64, 48), (64, 48), (100, 50), (0, 0), (48, 64), None]
)
pictures = st.sampled_from(
    [None, IMAGE, IMAGE, ImageFacts(width=64, height=48, orientation=6)]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(boxes, max_size=4), sizes, pictures)
def test_right_boxes_stay(boxes, size, image):
    content = voc(*boxes, size=size)
    fixed = fix_voc(content, image)
    again = fix_voc(fixed.content, image)
    assert (again.content, again.changes) == (fixed.content, ())
    kept = [box.box for box in read_voc(fixed.content).boxes]
    for facts in read_voc(content).boxes:
        x1, y1, x2, y2 = facts.box
        if 0 <= x1 < x2 <= 64 and 0 <= y1 < y2 <= 48 and size != (48, 64):
            assert facts.box in kept
