"""The registry of rules."""

import contextlib
import copy
import io
import json
import pickle
import re
from math import nan
from pathlib import Path
from types import SimpleNamespace

import mmcv
import mmdet
import mmengine
import mmseg
import pycocotools
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.model import MMDistributedDataParallel
from mmengine.structures import InstanceData
from mmseg.structures import SegDataSample
from msgspec.structs import replace

import mmext.checks.labels.rules
import mmext.checks.preflight.rules  # noqa: F401  (fills the registry)
from mmext.checks.findings import (
    ErrorCatcher,
    Family,
    Finding,
    Severity,
    new_finding,
    rules_of,
)
from mmext.checks.findings import finding as registry
from mmext.checks.findings.finding import select_rules
from mmext.checks.preflight.run import list_rules

LABELS = rules_of('label_check')
CONFIG = rules_of('preflight')
TST = Family('TST', 'label_check', 'tests', {'scope': 'sample', 'unit': 'px'})
FIELDS = {'title': 'blue', 'severity': Severity.WARNING, 'remedy': 'paint it'}
FACTS = SimpleNamespace(split='train')


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """What a test registers is gone after it."""
    rules = copy.deepcopy(registry._rules)
    monkeypatch.setattr(registry, '_rules', rules)


def check(family: Family, rule_id: str = 'TST001', **fields):
    """A rule of one function, registered."""

    @family.rule(rule_id, **{**FIELDS, **fields})
    def blue(facts, expected):
        """Find two things."""
        yield new_finding('blue', file='a.png', count=3)
        yield new_finding(
            'red', remedy='wait', severity=Severity.INFO, split='val'
        )

    return blue


def test_findings_inherit_from_their_rule():
    first, second = check(TST)(FACTS, None)
    assert type(first) is Finding
    assert (first.rule, first.severity) == ('TST001', Severity.WARNING)
    assert (first.remedy, first.split) == ('paint it', 'train')
    assert (first.file, first.count) == ('a.png', 3)
    assert (second.remedy, second.split) == ('wait', 'val')
    assert second.severity is Severity.INFO


def test_a_rule_that_is_declared_makes_findings():
    rule = TST.declare('TST002', **FIELDS)
    assert rule.check is None
    finding = rule.finding('blue', key='a.b', file='a.py', line=3)
    assert (finding.rule, finding.remedy) == ('TST002', 'paint it')
    assert (finding.key, finding.file, finding.line) == ('a.b', 'a.py', 3)
    assert rule.finding('x', severity=Severity.ERROR).severity == 2


def test_rules_are_in_order():
    for rule_id in ('TST009', 'TST001'):
        TST.declare(rule_id, **FIELDS)
    own = [name for name in rules_of('label_check') if name < 'TST1']
    assert own[-2:] == ['TST001', 'TST009']


# An id that the other tool has is not new.
SEG = Family('SEG', 'preflight', 'segments', {'scope': 'config'})


@pytest.mark.parametrize(
    ('family', 'rule_id', 'message'),
    [
        (TST, 'tst001', 'letters of its family, TST, and 3 digits'),
        (TST, 'TST1', 'letters of its family, TST, and 3 digits'),
        (TST, 'SEG099', "got 'SEG099'"),
        (SEG, 'SEG001', "must be new, got 'SEG001'"),
    ],
)
def test_rejects_ids(family, rule_id, message):
    with pytest.raises(ValueError, match=message):
        family.declare(rule_id, **FIELDS)


@pytest.mark.parametrize('tool', ['label_check', 'preflight'])
def test_select_rules(tool):
    rules = rules_of(tool)
    first = next(iter(rules))
    assert [rule.id for rule in select_rules(rules, [first])] == [first]
    assert list(select_rules(rules)) == list(rules.values())
    with pytest.raises(ValueError, match='--list-rules lists them'):
        select_rules(rules, ignore=['XYZ'])


def test_location_in_words():
    finding = LABELS['DET001'].finding('x', key='annotations[3]', image='b')
    assert finding.position == 'annotations[3] of b'
    rows = [
        new_finding('x', file='a.json', key=f'images[{row}]').location
        for row in range(3)
    ]
    several = replace(
        finding, location=rows[0], related=tuple(rows[1:]), count=5
    )
    assert several.position == 'images[0], images[1], images[2] and 2 more'


@pytest.mark.parametrize(
    ('form', 'name'), [('markdown', 'rules.md'), ('clinic', 'clinic.md')]
)
def test_the_page_is_as_the_tool_makes_it(form, name):
    """After a change: tools/preflight.py --list-rules FORM."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        list_rules(form)
    page = Path(__file__).resolve().parents[3] / 'docs' / name
    assert page.read_text(encoding='utf-8') == out.getvalue()
    for rule_id, rule in (*LABELS.items(), *CONFIG.items()):
        if form == 'markdown':
            assert f'\n| {rule_id} | ' in out.getvalue()
        assert out.getvalue().count(f'[{rule_id}]') == (
            len(rule.symptoms) if form == 'clinic' else 0
        )


def sources() -> bytes:
    """Code of PyTorch, the hosts and Python, adjacent texts joined."""
    parts = [
        path.read_bytes()
        for package in (mmcv, mmdet, mmengine, mmseg, pycocotools, torch, json)
        for path in Path(package.__file__).parent.rglob('*.py')
    ]
    joined = re.sub(rb"""['"]\s*f?['"]""", b'', b'\0'.join(parts))
    libraries = Path(torch.__file__).parent.glob('lib/libtorch_[cp]*.so')
    return joined + b''.join(path.read_bytes() for path in libraries)


# Of what Python words: what raises it.
WORDED = (
    lambda: torch.nn.utils.clip_grad_norm_([], max_nrom=1),
    lambda: pickle.loads(b'model'),
    lambda: ConfigDict(a=1).b,
    lambda: InstanceData().masks,
    lambda: SegDataSample().gt_edge_map,
    lambda: {}['gt_sem_seg'],
    lambda: {}['mask'],
    lambda: {}['inputs'],
    lambda: [][0],
    lambda: BaseDataset(no=1),
    lambda: BaseTransform().transform(),
    lambda: MMDistributedDataParallel.__new__(MMDistributedDataParallel).no,
)
# The words of CUDA's driver.
OF_CUDA = ('device-side assert triggered',)


@pytest.mark.slow
def test_symptoms_are_the_words_of_those_who_print_them():
    known, raised = sources(), []
    for call in WORDED:
        with ErrorCatcher(raised.append):
            call()
    assert len(raised) == len(WORDED)
    worded = [f'{type(error).__name__}: {error}' for error in raised]
    # As loggers and pycocotools write numbers.
    worded += [f'loss: {nan:.4f}', f'= {-1:0.3f}', f'= {0:0.3f}']
    symptoms = [
        symptom
        for rule in (*LABELS.values(), *CONFIG.values())
        for symptom in rule.symptoms
    ]
    assert len(symptoms) >= 50
    unknown = [
        symptom
        for symptom in symptoms
        if symptom not in OF_CUDA
        and symptom.encode() not in known
        and not any(symptom in text for text in worded)
    ]
    assert unknown == []
