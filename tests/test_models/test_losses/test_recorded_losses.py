"""Losses and gradients that the original hosts gave, recorded.

mmsegmentation 1.2.2 and mmdet 3.3.0 (PyTorch 2.13, CPU, float64), which the
tests cannot install beside the maintained forks. Not in the record are the
cases in which theirs crash: class weights and an ignored pixel.
"""

from pathlib import Path

import pytest
import torch

from mmext.models.losses import (
    CheckedBoundaryLoss,
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
)

RECORD = torch.load(
    Path(__file__).parents[2] / 'oracles' / 'host_losses.pt',
    weights_only=True,
)
KINDS = {
    'mmseg 1.2.2': CheckedCrossEntropyLoss,
    'mmdet 3.3.0': CheckedCrossEntropyLoss,
    'mmseg 1.2.2 ohem': CheckedOhemCrossEntropy,
    'mmseg 1.2.2 boundary': CheckedBoundaryLoss,
}


def test_record_is_whole():
    hosts = [case['host'] for case in RECORD['cases']]
    assert {host: hosts.count(host) for host in KINDS} == {
        'mmseg 1.2.2': 34,
        'mmdet 3.3.0': 24,
        'mmseg 1.2.2 ohem': 6,
        'mmseg 1.2.2 boundary': 1,
    }


@pytest.mark.parametrize('index', range(len(RECORD['cases'])))
def test_gives_what_is_recorded(index):
    case = RECORD['cases'][index]
    options, call = dict(case['options']), dict(case['call'])
    if case['host'].startswith('mmdet'):
        options['ignore_index'] = 255
    edges = case['label'] == 'edge'
    pred = RECORD['edge_logits' if edges else 'pred'].clone()
    pred.requires_grad_()
    loss = KINDS[case['host']](**options)(pred, RECORD[case['label']], **call)
    expected = torch.tensor(case['loss'], dtype=torch.float64)
    # Their class weights and some of their sums are float32.
    torch.testing.assert_close(loss.sum(), expected, rtol=1e-6, atol=1e-9)
    (gradient,) = torch.autograd.grad(loss.sum(), pred)
    torch.testing.assert_close(
        gradient.flatten(), case['gradient'], rtol=1e-6, atol=1e-9
    )
