import pytest
from helpers.label_facts import EXPECTED, findings_of, mask_of, sample_of
from msgspec.structs import replace

from mmext.checks.findings import Severity
from mmext.checks.labels.rules import RULES
from mmext.utils.label_spec import HeadSpec, IgnoreLocation

HEAD = HeadSpec(location='model.decode_head', num_classes=3, ignore_index=255)
SAMPLES = [sample_of()]
PAD = 'model.data_preprocessor.seg_pad_val'


def expect(head: dict | None = None, **fields):
    return replace(EXPECTED, heads=(replace(HEAD, **(head or {})),), **fields)


def test_good_config():
    locations = (
        IgnoreLocation(location='model.decode_head.ignore_index', value=255),
        IgnoreLocation(location=PAD, value=255, role='pad', pads='always'),
    )
    good = expect(ignore_locations=locations)
    assert findings_of(SAMPLES, good) == []


def test_detectors_may_weigh_the_background():
    weights = (('model.bbox_head.loss_cls', (1.0,) * 4),)
    good = expect({'class_weights': weights}, task='detection')
    rules = {finding.rule for finding in findings_of(SAMPLES, good)}
    assert 'CFG002' not in rules


def fill(**fields) -> list:
    """Findings on a location that fills or ignores, with 3 classes and 255."""
    fields = {
        'location': 'x.pipeline[1].seg_pad_val',
        'role': 'fill',
        **fields,
    }
    classes = fields.pop('classes', EXPECTED.classes)
    good = expect(
        ignore_locations=(IgnoreLocation(**fields),), classes=classes
    )
    return findings_of(SAMPLES, good)


def test_filling_with_a_background_may_be_meant():
    (finding,) = fill(value=0, classes=('Background', 'b', 'c'))
    assert finding.severity is Severity.WARNING
    (finding,) = fill(value=0)
    assert finding.severity is Severity.ERROR


def test_padding_that_may_not_happen():
    (finding,) = fill(value=7, role='pad', pads='perhaps')
    assert finding.severity is Severity.WARNING
    assert 'where an image is smaller' in finding.message
    # The images are 10 x 10.
    stored = {'value': 7, 'role': 'pad', 'pads': 'stored'}
    (finding,) = fill(**stored, size=(80, 80))
    assert finding.severity is Severity.ERROR
    (finding,) = fill(**stored, size=(9, 9))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize('role', ['loss', 'metric', 'look'])
def test_another_ignored_value_without_such_pixels(role):
    """The sample of a binary task has no void at all."""
    location = IgnoreLocation(location='x.ignore_index', value=7, role=role)
    samples = [
        sample_of(index, split, mask=mask_of({0: 50, 1: 30, 2: 20}))
        for index, split in enumerate(('train', 'val'))
    ]
    good = expect(ignore_locations=(location,))
    assert findings_of(samples, good, replace(good, split='val')) == []


def test_a_metric_is_held_against_its_own_split():
    location = IgnoreLocation(
        location='val_evaluator.ignore_index', value=7, role='metric'
    )
    void, none = {0: 50, 1: 30, 2: 10, 255: 10}, {0: 50, 1: 30, 2: 20}
    wrong = expect(ignore_locations=(location,))
    for val, result in ((void, 1), (none, 0)):
        samples = [
            sample_of(0, mask=mask_of(void)),
            sample_of(1, 'val', mask=mask_of(val)),
        ]
        split = replace(wrong, split='val')
        findings = findings_of(samples, wrong, split)
        assert [finding.rule for finding in findings] == ['CFG001'] * result


def test_a_default_that_is_not_known_to_matter():
    """Without label maps, as in the preflight."""
    for said, severity in ((True, Severity.ERROR), (False, Severity.WARNING)):
        location = IgnoreLocation(
            location='x.ignore_label', value=7, said=said, kind='Ohem'
        )
        wrong = expect(ignore_locations=(location,))
        (finding,) = RULES['CFG001'].check((), (wrong,))
        assert finding.severity is severity
    assert finding.remedy.startswith('set ignore_label=255 of Ohem')


@pytest.mark.parametrize(
    ('values', 'right'),
    [
        ({0: 50, 1: 30, 2: 20}, False),
        ({0: 40, 1: 30, 2: 20, 3: 10}, True),
        ({0: 70, 1: 30}, None),
    ],
)
def test_the_values_tell_which_reduction_is_right(values, right):
    """3 is out of range unless it is reduced; 0 is what is ignored then."""
    wrong = expect(reduce_zero_label=True, dataset_reduces=False)
    if right is False:
        wrong = replace(wrong, ignore_index=0)
    samples = [
        sample_of(index, split, mask=mask_of(values))
        for index, split in enumerate(('train', 'val'))
    ]
    val = replace(wrong, split='val', reduce_zero_label=False)
    findings = [
        finding
        for finding in findings_of(samples, wrong, val)
        if finding.rule in ('CFG008', 'CFG009')
    ]
    assert [(finding.rule, finding.split) for finding in findings] == [
        ('CFG009', 'train')
    ]
    if right is None:
        assert 'data set alone' in findings[0].remedy
    else:
        assert f'reduce_zero_label={right} of' in findings[0].remedy
