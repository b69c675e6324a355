"""Losses that are not summed, or weigh nothing."""

import pytest
import torch
from helpers.lint_findings import lint
from mmengine.model import BaseModel
from torch.nn import functional

HEAD = {
    'type': 'mmseg.FCNHead',
    'num_classes': 3,
    'loss_decode': {'type': 'mmseg.CrossEntropyLoss'},
}


def head(**loss):
    settings = {'type': 'mmseg.CrossEntropyLoss', **loss}
    return {'model.decode_head': {**HEAD, 'loss_decode': settings}}


def test_clean():
    assert lint(head(loss_weight=0.4, loss_name='loss_ce'), 'LOSS') == []
    assert lint(head(loss_name='aux_loss'), 'LOSS') == []


def test_not_summed():
    (found,) = lint(head(loss_name='ce'), 'LOSS')
    assert found.rule == 'LOSS002'
    assert found.options == {
        'model.decode_head.loss_decode.loss_name': 'loss_ce'
    }
    values = {'ce': torch.ones(1), 'loss_ce': torch.full((1,), 2.0)}
    total, _ = BaseModel.parse_losses(None, values)
    assert total == 2


def test_in_a_list():
    losses = [{'type': 'mmseg.DiceLoss', 'loss_name': 'dice'}]
    changes = {'model.decode_head': {**HEAD, 'loss_decode': losses}}
    (found,) = lint(changes, 'LOSS002')
    assert found.key == 'model.decode_head.loss_decode[0].loss_name'
    assert list(found.options.values()) == ['loss_dice']
    # Beside one that is summed it may be logged on purpose.
    losses.append({'type': 'mmseg.CrossEntropyLoss'})
    (found,) = lint(changes, 'LOSS002')
    assert (found.severity.name, found.options) == ('WARNING', {})


@pytest.mark.parametrize('use_sigmoid', [True, False])
def test_one_class(use_sigmoid):
    changes = head(use_sigmoid=use_sigmoid)
    changes['model.decode_head']['num_classes'] = 1
    found = lint(changes, 'LOSS004')
    assert bool(found) is not use_sigmoid
    # Softmax over one class: 0, whatever the logits.
    loss = functional.cross_entropy(torch.randn(5, 1), torch.zeros(5).long())
    assert loss == 0
