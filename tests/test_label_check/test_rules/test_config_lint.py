import pytest
from helpers.label_facts import EXPECTED, findings_of, mask_of, only, sample_of
from msgspec.structs import replace

from mmext.label_check import HeadFacts

HEAD = HeadFacts(place='model.decode_head', num_classes=3, ignore_index=255)
SAMPLES = [sample_of()]


def expect(head: dict | None = None, **fields):
    return replace(EXPECTED, heads=(replace(HEAD, **(head or {})),), **fields)


def test_good_config():
    places = (('model.decode_head.ignore_index', 255),)
    good = expect(seg_pad_val=255, ignore_places=places)
    assert findings_of(SAMPLES, good) == []


@pytest.mark.parametrize(
    'place',
    [
        'val_evaluator.ignore_index',
        'train_dataloader.dataset.pipeline[3].seg_pad_val',
    ],
)
def test_one_ignored_value(place):
    wrong = expect(ignore_places=((place, 1),))
    (finding,) = only('CFG001', SAMPLES, wrong)
    assert finding.place == place
    assert 'must be 255' in finding.message
    assert 'got 1, which is a class (car)' in finding.message


def test_ignored_value_of_a_head():
    (finding,) = only('CFG001', SAMPLES, expect({'ignore_index': 11}))
    assert finding.place == 'model.decode_head.ignore_index'


@pytest.mark.parametrize('length', [2, 4])
def test_weight_length(length):
    weights = (('model.decode_head.loss_decode', (1.0,) * length),)
    (finding,) = only('CFG002', SAMPLES, expect({'class_weights': weights}))
    assert f'must have 3 numbers (num_classes=3), got {length}' in (
        finding.message
    )


def test_detectors_may_weigh_the_background():
    weights = (('model.bbox_head.loss_cls', (1.0,) * 4),)
    good = expect({'class_weights': weights}, task='detection')
    rules = {each.rule for each in findings_of(SAMPLES, good)}
    assert 'CFG002' not in rules


def test_class_count():
    wrong = expect({'num_classes': 4})
    (finding,) = only('CFG003', SAMPLES, wrong)
    assert 'model.decode_head.num_classes must be 3' in finding.message


def test_padding():
    place = 'model.data_preprocessor.seg_pad_val'
    wrong = expect(seg_pad_val=0, ignore_places=((place, 0),))
    (finding,) = only('CFG004', SAMPLES, wrong)
    assert 'got 0, which is a class (road)' in finding.message


def test_ignored_class():
    wrong = expect({'ignore_index': 1}, ignore_index=1)
    samples = [sample_of(mask=mask_of({0: 50, 1: 30, 2: 20}))]
    assert only('CFG005', samples, wrong)


def test_reduced_class():
    wrong = expect(reduce_zero_label=True)
    samples = [sample_of(mask=mask_of({0: 50, 1: 30, 2: 20}))]
    (finding,) = only('CFG006', samples, wrong)
    assert finding.count == 50


def test_reduced_background_is_fine():
    good = expect(reduce_zero_label=True)
    samples = [sample_of(mask=mask_of({0: 40, 1: 30, 2: 20, 3: 10}))]
    assert findings_of(samples, good) == []


def test_named_twice():
    assert only('CFG007', SAMPLES, expect(classes=('a', 'b', 'a')))


@pytest.mark.parametrize('field', ['classes', 'reduce_zero_label'])
def test_splits_differ(field):
    other = {'classes': ('car', 'road', 'sky'), 'reduce_zero_label': True}
    val = expect(split='val', **{field: other[field]})
    values = {0: 50, 1: 30, 2: 20}
    if field != 'classes':
        values = {0: 40, 1: 30, 2: 20, 3: 10}
    mask = mask_of(values)
    samples = [*SAMPLES, sample_of(1, 'val', mask=mask)]
    (finding,) = only('CFG008', samples, expect(), val)
    assert (finding.split, finding.value) == ('val', field)


def test_splits_share_a_finding():
    wrong = expect({'num_classes': 4})
    samples = [*SAMPLES, sample_of(1, 'val')]
    found = only('CFG003', samples, wrong, replace(wrong, split='val'))
    assert len(found) == 1
