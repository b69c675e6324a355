"""Facts of samples that were never on a disk, and all rules run on them."""

from collections.abc import Sequence

from mmext.checks.findings import Finding, Severity
from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import (
    ImageFacts,
    MaskFacts,
    Sample,
    SampleFacts,
)
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.totals import SplitTotals

CLASSES = ('road', 'car', 'sky')
EXPECTED = Expectations(num_classes=3, classes=CLASSES)


def mask_of(values: dict[int, int], **fields) -> MaskFacts:
    """A label map whose values come one after another, 10 pixels wide."""
    pairs = tuple(sorted(values.items()))
    first, total = [], 0
    for _, count in pairs:
        first.append(total)
        total += count
    fields = {'width': 10, 'height': total // 10, 'mode': 'L'} | fields
    return MaskFacts(values=pairs, first=tuple(first), **fields)


def sample_of(index: int = 0, split: str = 'train', **fields) -> SampleFacts:
    """A good sample with some of its fields replaced."""
    mask = mask_of({0: 40, 1: 30, 2: 20, 255: 10})
    name = f'{split}/{index}'
    own = fields.pop('sample', {})
    digest = f'{split}-{index:08d}'
    image = ImageFacts(width=10, height=10, mode='RGB', digest=digest)
    fields = {'image': image, 'mask': mask} | fields
    own = {'image': f'{name}.jpg', 'mask': f'{name}.png'} | own
    return SampleFacts(
        split=split, sample=Sample(index=index, **own), **fields
    )


def totals_of(samples: Sequence[SampleFacts], split: str) -> SplitTotals:
    """Totals of a split, with its images."""
    totals = SplitTotals(split=split)
    own = [sample for sample in samples if sample.split == split]
    for sample in own:
        totals.add(sample)
    return totals


def findings_of(
    samples: Sequence[SampleFacts], *expected: Expectations
) -> list[Finding]:
    """What all rules say; one Expectations for each split."""
    expected = expected or (EXPECTED,)
    totals = [totals_of(samples, value.split) for value in expected]
    results = []
    for rule in RULES.values():
        if rule.scope == 'run':
            results += rule.check(totals, expected)
            continue
        for own, wanted in zip(totals, expected):
            if rule.scope == 'split':
                results += rule.check(own, wanted)
            elif rule.scope == 'sample':
                for value in samples:
                    if value.split == wanted.split:
                        results += rule.check(value, wanted)
    return results


def only(
    rule: str, samples: Sequence[SampleFacts], *expected: Expectations
) -> list[Finding]:
    """Findings of a rule; no other may be an error."""
    findings = findings_of(samples, *expected)
    errors = {
        finding.rule
        for finding in findings
        if finding.severity == Severity.ERROR
    }
    assert errors - {rule} == set(), findings
    own = [finding for finding in findings if finding.rule == rule]
    assert own, findings
    return own
