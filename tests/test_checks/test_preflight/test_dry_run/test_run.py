import copy

import pytest
import torch
from helpers.preflight_models import batches, build, dry_run_planted, sgd
from helpers.tiny_class_embed import MODES
from helpers.tiny_class_embed import build as build_class_embed
from helpers.tiny_co_dino import make_batch
from mmengine.model import BaseModel
from torch import nn

from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight.dry_run.run import dry_run_model
from mmext.checks.preflight.dry_run.verdicts import verdict_table
from mmext.checks.preflight.rules.steps import dry_run_findings


def test_the_model_is_left_as_it_was():
    model = build('norm').eval()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    dry_run = dry_run_model(model, batches(), optim_wrapper=sgd(model))
    assert len(dry_run.steps['normal']) == 2
    assert not model.training
    assert torch.equal(torch.get_rng_state(), random)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert model.head.weight.grad is None


def test_one_kind_that_fails_does_not_end_the_dry_run():
    dry_run = dry_run_planted('crash', ('empty', 'normal'))
    (crash,) = dry_run.crashes
    assert (crash.kind, crash.step, crash.phase) == ('empty', 0, 'forward')
    assert (crash.error, crash.message) == ('IndexError', 'no boxes')
    assert 'preflight_models.py:' in crash.place
    assert dry_run.steps['empty'] == ()
    assert len(dry_run.steps['normal']) == 2


def test_a_graph_that_the_next_step_uses():
    dry_run = dry_run_planted('memory', ('normal', 'empty'))
    # The second kind does not meet what the first has left behind.
    assert [crash.step for crash in dry_run.crashes] == [1, 1]
    (kept,) = dry_run.steps['normal'][0].kept
    assert (kept.place, kept.used_again) == ('kept', True)


class MaskedViT(nn.Module):
    """As timm's: what pre-training does not use is there nevertheless."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(4, 8)
        # Sine and cosine, so frozen; its gradient is None, too.
        self.pos_embed = nn.Parameter(torch.rand(6, 8), requires_grad=False)
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)


class MAE(BaseModel):
    """The wiring of Lightly's example, with its mask token in the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.vit = MaskedViT()
        self.backbone.mask_token = nn.Parameter(torch.zeros(8))
        self.decoder_mask_token = nn.Parameter(torch.zeros(8))
        self.decoder = nn.Linear(8, 4)

    def forward(self, inputs, mode='loss'):
        vit = self.backbone.vit
        keep = torch.rand(6).argsort()[:3]
        x = vit.block((vit.patch(inputs) + vit.pos_embed)[:, keep])
        full = self.decoder_mask_token.expand(len(inputs), 6, 8).clone()
        full[:, keep] = x
        return {'loss': (self.decoder(full) - inputs).square().mean()}


def test_lightly_style_mae():
    torch.manual_seed(0)
    model = MAE()
    given = {'normal': [{'inputs': torch.rand(2, 6, 4)}]}
    (finding,) = dry_run_findings(dry_run_model(model, given), SyncSettings())
    assert finding.rule == 'DDP001'
    assert set(finding.names) == {
        'backbone.mask_token',
        'backbone.vit.head.weight',
        'backbone.vit.head.bias',
    }
    assert 'backbone.mask_token' in finding.message
    assert 'backbone.vit.head (2)' in finding.message
    # The fix of two lines, and then the flag is for nothing.
    model.backbone.vit.head = nn.Identity()
    model.backbone.mask_token.requires_grad_(False)
    dry_run = dry_run_model(model, given)
    assert dry_run_findings(dry_run, SyncSettings()) == []
    table = verdict_table(dry_run, SyncSettings(True))
    assert table.options == {'find_unused_parameters': False}


@pytest.mark.slow
@pytest.mark.parametrize('mode', MODES)
def test_class_embeddings_of_co_dino(mode):
    model = build_class_embed(MODES[mode])
    dry_run = dry_run_model(
        model, {'normal': [make_batch()], 'empty': [make_batch((0, 0))]}
    )
    assert dry_run.crashes == ()
    findings = dry_run_findings(dry_run, SyncSettings())
    if mode == 'off':
        (zero,) = findings
        assert zero.rule == 'STEP007'
        assert set(zero.names) == {
            f'query_head.{name}'
            for name in (
                'class_bias',
                'class_embed',
                'class_embeddings',
                'class_log_temperature',
            )
        }
        assert 'loss_weight is 0 in query_head' in zero.message
    else:
        assert findings == []
    rules = [f.rule for f in dry_run_findings(dry_run, SyncSettings(True))]
    assert 'DDP005' in rules
