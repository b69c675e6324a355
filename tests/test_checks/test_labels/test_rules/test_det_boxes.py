"""Each error of a box is found by its rule, and by no other."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mmext.checks.labels.expectations import Expectations
from mmext.checks.labels.facts import (
    BoxFacts,
    ErrorKind,
    ImageFacts,
    ReadError,
    Sample,
    SampleFacts,
)
from mmext.checks.labels.rules import RULES

CORRUPT = ReadError(ErrorKind.CORRUPT, 'no data')

EXPECTED = Expectations(
    task='instance', num_classes=3, classes=('a', 'b', 'c')
)
GOOD = BoxFacts(
    box=(10.0, 20.0, 30.0, 50.0),
    label=1,
    class_name='b',
    location='annotation 7',
    mask_box=(10.0, 20.0, 30.0, 49.0),
)
NAN = math.nan


def sample(*boxes: BoxFacts, **image) -> SampleFacts:
    image = {'width': 100, 'height': 80, **image}
    return SampleFacts(
        split='train',
        sample=Sample(
            index=0, image='x.jpg', annotation='ann.json', boxes=boxes
        ),
        image=ImageFacts(**image),
    )


def findings(facts: SampleFacts, expected: Expectations = EXPECTED) -> list:
    return [
        finding
        for rule_id, rule in RULES.items()
        if rule_id.startswith('DET') and rule.scope == 'sample'
        for finding in rule.check(facts, expected)
    ]


def test_nearly_the_same_object():
    near = replace(GOOD, box=(12.0, 20.0, 30.0, 51.0), mask_box=())
    (finding,) = findings(sample(GOOD, near))
    assert finding.rule == 'DET010'
    assert 'nearly the same box' in finding.message
    far = replace(GOOD, box=(12.5, 20.0, 32.5, 50.0), mask_box=())
    assert findings(sample(GOOD, far)) == []


def test_small_objects_may_stand_closely():
    one = replace(GOOD, box=(10.0, 20.0, 16.0, 26.0), mask_box=())
    other = replace(GOOD, box=(12.0, 22.0, 18.0, 28.0), mask_box=())
    assert findings(sample(one, other)) == []


def test_what_is_no_number_is_named_once():
    """By the rule for the file, which knows what is written there."""
    box = replace(GOOD, box=(NAN, 20.0, 30.0, 50.0), location='object[1]')
    assert [finding.rule for finding in findings(sample(box))] == ['DET001']
    facts = sample(replace(box, unreadable=True))
    assert 'DET001' not in {finding.rule for finding in findings(facts)}


def test_a_label_with_a_name_is_the_matter_of_the_config():
    facts = sample(replace(GOOD, label=2, class_name='c'))
    assert findings(facts, replace(EXPECTED, num_classes=2)) == []
    bare = replace(EXPECTED, num_classes=2, classes=())
    assert [finding.rule for finding in findings(facts, bare)] == ['DET007']


def test_a_box_without_a_name_is_another_matter():
    assert findings(sample(replace(GOOD, label=-1, class_name=''))) == []


def test_size_of_a_damaged_file_does_not_count():
    facts = sample(GOOD, width=5, error=CORRUPT)
    noted = replace(facts, sample=replace(facts.sample, width=200, height=80))
    assert findings(noted) == []
    assert [finding.rule for finding in findings(sample(GOOD, width=5))]


def test_images_that_are_turned_when_loaded():
    """A box is of the loaded image, unless the annotation says else."""
    tall = replace(GOOD, box=(10.0, 60.0, 30.0, 95.0), mask_box=())
    facts = sample(tall, orientation=6)
    assert not list(findings(facts))
    assert list(findings(sample(tall)))
    # PAIR005 says that boxes are of the stored image: that is one error.
    wide = replace(GOOD, box=(60.0, 20.0, 95.0, 50.0), mask_box=())
    stored = replace(facts.sample, boxes=(wide,), width=100, height=80)
    assert not list(findings(replace(facts, sample=stored)))


def test_without_a_size_nothing_is_outside():
    facts = sample(replace(GOOD, box=(9e5, 0.0, 9e6, 50.0), mask_box=()))
    assert findings(replace(facts, image=None)) == []


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(*[st.floats(width=32) for _ in range(4)]),
    st.integers(-1, 4),
)
def test_no_box_is_lost(box, label):
    """Whatever the numbers: a box is fine, or something is said of it."""
    facts = sample(BoxFacts(box=box, label=label, class_name='a'))
    rules = {finding.rule for finding in findings(facts)}
    x1, y1, x2, y2 = box
    finite = all(math.isfinite(side) for side in box)
    fine = (
        finite
        and -1 <= x1 <= x2 - 1
        and -1 <= y1 <= y2 - 1
        and x2 <= 101
        and y2 <= 81
        and x1 < 100
        and y1 < 80
        and x2 > 0
        and y2 > 0
    )
    geometric = rules & {'DET001', 'DET002', 'DET003', 'DET004', 'DET005'}
    assert bool(geometric) != fine
    assert ('DET006' in rules) == (label < 0)
    assert ('DET007' in rules) == (label >= 3)
