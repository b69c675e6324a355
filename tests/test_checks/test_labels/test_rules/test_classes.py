from helpers.label_facts import EXPECTED, findings_of, mask_of, only, sample_of
from msgspec.structs import replace

from mmext.checks.findings import Severity

VAL = replace(EXPECTED, split='val')


def test_classes_without_a_name_are_the_matter_of_the_config():
    """A head of 80 classes for a data set of 3 has one error, not 78."""
    wide = replace(EXPECTED, num_classes=80)
    sample = sample_of(mask=mask_of({0: 50, 1: 50}))
    findings = findings_of([sample], wide)
    absent = [
        finding.value for finding in findings if finding.rule == 'CLS001'
    ]
    assert absent == ['2']
    bare = replace(EXPECTED, num_classes=5, classes=())
    findings = findings_of([sample], bare)
    absent = [
        finding.value for finding in findings if finding.rule == 'CLS001'
    ]
    assert absent == ['2', '3', '4']


def test_a_class_that_no_split_has_is_said_once():
    """Of the training, where it has to be mended."""
    mask = mask_of({0: 50, 1: 50})
    samples = [sample_of(mask=mask), sample_of(split='val', mask=mask)]
    findings = findings_of(samples, EXPECTED, VAL)
    assert 'CLS002' not in rules(findings)
    assert rules(findings).count('CLS001') == 1


def part(number: int, *values: int):
    """A part of a joined training set, and what it holds."""
    split = f'train[{number}]'
    counts = dict.fromkeys(values, 100 // len(values))
    return (
        sample_of(split=split, mask=mask_of(counts)),
        replace(EXPECTED, split=split),
    )


def test_parts_of_a_joined_set_make_up_for_each_other():
    samples, expected = zip(part(0, 0, 1), part(1, 2))
    assert 'CLS001' not in rules(findings_of(samples, *expected))
    samples, expected = zip(part(0, 0, 1), part(1, 1))
    (finding,) = only('CLS001', samples, *expected)
    assert (finding.split, finding.value) == ('train[0]', '2')


def rules(result) -> list[str]:
    return [item.rule for item in result]


def test_models_of_texts_are_evaluated_on_other_classes():
    train = sample_of(mask=mask_of({0: 50, 1: 50}))
    val = sample_of(split='val')
    expected = [
        replace(value, classes_are_texts=True) for value in (EXPECTED, VAL)
    ]
    assert 'CLS003' not in rules(findings_of([train, val], *expected))


def test_labels_that_are_kept_back():
    """Public sets have evaluation files without objects."""
    images = sample_of(mask=None, sample={'mask': '', 'annotation': 'a.json'})
    for split, severity in (
        ('train', Severity.ERROR),
        ('val', Severity.WARNING),
        ('test', Severity.WARNING),
    ):
        expected = replace(EXPECTED, task='detection', split=split)
        sample = replace(images, split=split)
        (finding,) = (
            item
            for item in findings_of([sample], expected)
            if item.rule == 'CLS005'
        )
        assert finding.severity == severity
    expected = replace(EXPECTED, task='unlabelled')
    assert 'CLS005' not in rules(findings_of([images], expected))
