"""What is said of the cause of an error, and what is not guessed."""

import pytest
import torch
from mmengine.model import BaseModel
from torch import nn

from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.rules.steps import dry_run_findings


class OwnError(Exception):
    """Of no kind that Python has."""


class Faulty(BaseModel):
    """A stem and a head, and a mistake between them."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid())
        self.act = nn.ReLU(inplace=True)
        self.neck = nn.Sequential(nn.Conv2d(4, 2, 1))

    def forward(self, inputs, mode='loss'):
        x = self.backbone(inputs)
        if self.mistake == 'layer in place':
            x = self.act(x)
        elif self.mistake == 'operation in place':
            y = x.exp()
            x = y * y
            y += 1
        elif self.mistake == 'own':
            raise OwnError('of mine')
        return {'loss': self.neck(x.flip(-1)).square().mean()}


CONFIG = {'model': {'neck': {'in_channels': 8}, 'backbone': {'depth': 1}}}


def crash(mistake: str, kinds=('normal',)):
    """The finding of a mistake, and the crash that it is made of."""
    model = Faulty(mistake)
    batch = {'inputs': torch.rand(2, 3, 8, 8)}
    dry_run = dry_run_model(model, {k: [batch] for k in kinds}, cfg=CONFIG)
    findings = dry_run_findings(dry_run, SyncSettings())
    (finding,) = (item for item in findings if item.rule == 'STEP001')
    return finding, dry_run.crashes[0]


@pytest.mark.parametrize(
    ('mistake', 'needs', 'changes', 'modules'),
    [
        (
            'layer in place',
            'the gradient of sigmoid (',
            'changed afterwards by relu_ (',
            ('backbone.1', 'act'),
        ),
        (
            'operation in place',
            'the gradient of mul (',
            'changed afterwards by add_ (',
            (),
        ),
    ],
)
def test_change_in_place(mistake, needs, changes, modules):
    """Both operations are named, with their code and module."""
    finding, _ = crash(mistake)
    assert 'ends in its backward' in finding.message
    text = finding.message
    assert needs in text
    assert changes in text
    assert finding.names == modules
    if not modules:
        assert text.count('test_crashes.py') == 2
    assert finding.remedy.startswith('make a new tensor there')


def test_exception_of_its_own_is_said_once():
    """Also for empty batches no cure is made up where all fail."""
    finding, seen = crash('own', ('normal', 'empty'))
    assert finding.batches == ('normal', 'empty')
    assert 'OwnError: of mine' in finding.message
    assert 'test_crashes.py' in finding.message
    assert 'filter_empty_gt' not in finding.remedy
    assert seen.cause is None
