"""The label check's own list of rules."""

import pytest

from mmext.checks.labels.fix.coco import COCO_RULES
from mmext.checks.labels.fix.masks import MASK_RULES
from mmext.checks.labels.fix.voc import VOC_RULES
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.rules.registry import select_rules


def test_select_rules_by_id_and_beginning():
    assert [rule.id for rule in select_rules(['SEG001'])] == ['SEG001']
    chosen = {rule.id for rule in select_rules(['SEG'], ['SEG00'])}
    assert chosen == {name for name in RULES if name.startswith('SEG01')}
    assert [rule.id for rule in select_rules()] == list(RULES)


@pytest.mark.parametrize('argument', ['select', 'ignore'])
@pytest.mark.parametrize('word', ['XYZ', 'SEG0001', ''])
def test_rejects_unknown_rules(argument, word):
    with pytest.raises(ValueError, match=f'{argument} must hold ids'):
        select_rules(**{argument: [word]})


def test_what_fix_can_do():
    boxes = {'DET001', 'DET002', 'DET004', 'DET005', 'DET010', 'PAIR004'}
    assert boxes == VOC_RULES
    assert boxes < COCO_RULES
    assert {'SEG002', 'SEG012'} < MASK_RULES
    for rule in RULES.values():
        assert bool(rule.fix) == bool(rule.fixed_in)
