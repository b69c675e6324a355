"""Families of the label check's rules.

A rule is a generator function in a file of its family; what it is called with
follows from its scope:

========== =========================================== =====================
scope      facts                                       expected
========== =========================================== =====================
``sample`` :class:`~mmext.checks.labels.SampleFacts`     ``Expectations``
``coco``   :class:`~..readers.coco.CocoFile`         ``Expectations``
``orphan`` :class:`~mmext.checks.labels.facts.Orphan`    ``Expectations``
``split``  :class:`~mmext.checks.labels.totals.SplitTotals` ``Expectations``
``run``    a sequence of SplitTotals                   a sequence of them
========== =========================================== =====================
"""

from collections.abc import Iterator, Sequence

from ...findings import Family, Finding, rules_of
from ..expectations import Expectations
from ..totals import SplitTotals

RULES = rules_of('label_check')
Findings = Iterator[Finding]
# Of all splits, for rules of the scope 'run'.
Totals = Sequence[SplitTotals]
Expected = Sequence[Expectations]


def _family(letters: str, title: str, **common: object) -> Family:
    return Family(letters, 'label_check', title, common)


CFG = _family(
    'CFG',
    'The config, beside the values of the label maps',
    scope='run',
    subject='position',
)
CLS = _family(
    'CLS',
    'Classes: how much there is of each',
    scope='split',
    subject='split',
)
COCO = _family(
    'COCO',
    "Annotation files in COCO's format",
    scope='coco',
)
DET = _family(
    'DET',
    'Boxes and objects',
    scope='sample',
    needs='boxes',
    subject='image',
    unit='object',
    of_records=True,
)
DUP = _family(
    'DUP',
    'Images that occur twice',
    subject='image',
    unit='file',
    picture='alike',
)
IMG = _family(
    'IMG',
    'Image files',
    scope='sample',
    needs='image',
    subject='image',
    picture='image',
)
MTL = _family(
    'MTL',
    'Pictures, depth and normals as arrays',
    scope='sample',
    subject='file',
)
MTL_VALUES = MTL.having(unit='pixel', per_value=True)
PAIR = _family(
    'PAIR',
    'Images and labels that belong together',
    scope='sample',
    needs='image',
    subject='image',
    picture='pair',
)
PAN = _family(
    'PAN',
    'Panoptic labels: segments, and the PNG that they are painted in',
    scope='sample',
    needs='mask',
    subject='image',
    of_records=True,
)
READ = _family(
    'READ',
    'The check itself',
    scope='part',
    subject='split',
    per_value=True,
)
READ001 = READ.declare(
    'READ001',
    title='a part of the check ended with an exception',
    remedy='look at the code that is named: a training may fail there, too; '
    'what else is reported holds',
)
SEG = _family(
    'SEG',
    'Label maps',
    scope='sample',
    needs='mask',
    subject='mask',
)
SEG_VALUES = SEG.having(unit='pixel')
VOC = _family(
    'VOC',
    "Annotation files in Pascal VOC's format",
    scope='sample',
    needs='annotation',
    subject='annotation file',
)

YOLO = _family(
    'YOLO',
    "Label files in YOLO's form",
    scope='sample',
    needs='yolo',
    subject='label file',
    unit='line',
)
