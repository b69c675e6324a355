"""Rules for XML files."""

import pytest

from mmext.label_check.expectations import Expectations
from mmext.label_check.facts import Sample, SampleFacts, VocFile
from mmext.label_check.rules import RULES


def judge(file: VocFile | None, image: str = 'x/a.jpg') -> list[tuple]:
    sample = Sample(
        index=0, image=image, annotation='y/a.xml', annotation_kind='voc'
    )
    facts = SampleFacts(split='train', sample=sample, annotation=file)
    return [
        (found.rule, found.file, found.place, found.value)
        for name, rule in RULES.items()
        if name.startswith('VOC')
        for found in rule.check(facts, Expectations(task='detection'))
    ]


@pytest.mark.parametrize(
    'file',
    [
        None,
        VocFile(),
        VocFile(image='a.jpg'),
        VocFile(image='a.png'),
        VocFile(image='C:\\data\\a.jpg'),
    ],
)
def test_clean(file):
    assert judge(file) == []


def test_missing():
    file = VocFile(error='missing: no such file')
    assert judge(file) == [('VOC001', 'y/a.xml', '', '')]


def test_each_error_with_its_place():
    file = VocFile(
        error="object[1].bndbox.xmin must be a number, got 'x'; "
        'object[3].name is missing'
    )
    assert judge(file) == [
        ('VOC002', 'y/a.xml', 'object[1].bndbox.xmin', ''),
        ('VOC002', 'y/a.xml', 'object[3].name', ''),
    ]
    malformed = VocFile(error='malformed XML: no element found: line 1')
    assert judge(malformed) == [('VOC002', 'y/a.xml', '', '')]


def test_another_image():
    file = VocFile(image='b.jpg')
    assert judge(file) == [('VOC003', 'y/a.xml', 'filename', 'b.jpg')]
    assert judge(file, image='') == []
