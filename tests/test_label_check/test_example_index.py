"""Findings, looked up by the sample that they are about."""

from label_report import finding

from mmext.label_check import BoxFacts, Sample
from mmext.label_check._example_index import ExampleIndex, wrong_boxes


def box(place: str, label: int = 0, name: str = 'cat', **fields) -> BoxFacts:
    sides = fields.pop('box', (0.0, 0.0, 1.0, 1.0))
    return BoxFacts(
        box=sides, label=label, class_name=name, place=place, **fields
    )


def index_of(*findings) -> ExampleIndex:
    return ExampleIndex(enumerate(findings))


def test_by_image_and_mask():
    index = index_of(
        finding('SEG001', file='a.png', place='y=1, x=2', value='7'),
        finding('IMG001', file='a.jpg'),
        finding('SEG001', file='b.png'),
    )
    sample = Sample(index=0, image='a.jpg', mask='a.png')
    assert list(index.take(sample)) == [0, 1]
    assert index.take(sample) == {}
    assert len(index) == 1


def test_in_a_file_of_all_images():
    """The image, a box or a class tells which sample it is."""
    index = index_of(
        finding('DET002', file='all.json', place='instance 1 of x of y.jpg'),
        finding('DET006', file='all.json', value='dog'),
        finding('DET007', file='all.json', value='9'),
        finding('COCO009', file='all.json', place='annotations[4] and 2 more'),
        finding('COCO001', file='all.json', place='categories'),
    )

    def sample(image: str, *boxes: BoxFacts) -> Sample:
        return Sample(index=0, image=image, annotation='all.json', boxes=boxes)

    assert index.take(sample('y.jpg', box('instance 1'))) == {}
    assert list(index.take(sample('x of y.jpg', box('instance 1')))) == [0]
    assert index.take(sample('1.jpg', box('', 0, 'dog'))) == {}
    assert list(index.take(sample('2.jpg', box('', -1, 'dog')))) == [1]
    assert list(index.take(sample('3.jpg', box('', 9, 'x')))) == [2]
    assert list(index.take(sample('4.jpg', box('annotations[4]')))) == [3]
    assert len(index) == 1


def test_an_annotation_file_of_its_own():
    index = index_of(finding('VOC002', file='a.xml', place='size.width'))
    sample = Sample(
        index=0, image='a.jpg', annotation='a.xml', annotation_kind='voc'
    )
    assert list(index.take(sample)) == [0]


def test_no_name_is_not_a_name():
    index = index_of(finding('CFG001', file='', place='model'))
    assert index.take(Sample(index=0)) == {}


def test_wrong_boxes():
    boxes = (
        box('instance 0'),
        box('instance 1', box=(1.5, 2.0, 3.0, 4.0)),
        box('', -1, 'dog'),
        box('', 9, 'x'),
    )
    sample = Sample(index=0, image='a.jpg', boxes=boxes)

    def found(**fields) -> list[int]:
        own = wrong_boxes(finding('DET002', **fields), sample)
        return [boxes.index(each) for each in own]

    assert found(place='instance 1 of a.jpg') == [1]
    assert found(place='instance 1, instance 0 and 3 more') == [0, 1]
    assert found(place='a.jpg', value='(1.5, 2, 3, 4)') == [1]
    assert found(value='dog') == [2]
    assert found(value='9') == [3]
    assert found(place='a.jpg') == []
    assert found() == []
