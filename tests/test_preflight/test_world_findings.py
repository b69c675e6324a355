"""What real processes say against the proof."""

from types import SimpleNamespace

import pytest

from mmext.preflight.findings import Severity
from mmext.preflight.world_findings import world_findings


def world(agrees, detail='') -> SimpleNamespace:
    return SimpleNamespace(
        agrees=agrees, observed='ok', predicted='diverged', detail=detail
    )


@pytest.mark.parametrize('result', [None, world(True)])
def test_nothing(result):
    assert world_findings(result) == []


def test_disagreement():
    (finding,) = world_findings(world(False))
    assert (finding.rule, finding.severity) == ('WORLD001', Severity.ERROR)
    assert finding.message.endswith('ok (predicted: diverged)')


def test_the_model_fails():
    (finding,) = world_findings(world(None, 'rank 1: KeyError'))
    assert finding.message.endswith('processes; rank 1: KeyError')
