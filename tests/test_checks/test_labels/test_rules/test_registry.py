"""The label check's own list of rules."""

from mmext.checks.labels.fix.coco import COCO_RULES
from mmext.checks.labels.fix.masks import MASK_RULES
from mmext.checks.labels.fix.voc import VOC_RULES
from mmext.checks.labels.rules import RULES


def test_what_fix_can_do():
    boxes = {'DET001', 'DET002', 'DET004', 'DET005', 'DET010', 'PAIR004'}
    assert boxes == VOC_RULES
    assert boxes < COCO_RULES
    assert {'SEG002', 'SEG012'} < MASK_RULES
    for rule in RULES.values():
        assert bool(rule.fix) == bool(rule.fixed_in)
