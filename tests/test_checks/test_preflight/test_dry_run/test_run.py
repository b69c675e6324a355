import copy

import pytest
import torch
from helpers.preflight_models import batches, build, dry_run_planted, sgd
from helpers.tiny_class_embed import MODES
from helpers.tiny_class_embed import build as build_class_embed
from helpers.tiny_co_dino import make_batch
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight.dry_run.run import (
    dry_run_model,
    optimizer_facts,
)
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


def of_config(keys, model=None, **more):
    """Facts of an optimizer that MMEngine builds with custom keys."""
    section = {
        'optimizer': {'type': 'SGD', 'lr': 0.1},
        'paramwise_cfg': {'custom_keys': keys},
        **more,
    }
    model = model or build('extra')
    wrapper = build_optim_wrapper(model, section)
    return optimizer_facts(model, wrapper, {'optim_wrapper': section})


def test_missing_and_frozen():
    model = build('extra')
    wrapper = sgd(model)
    model.stem.requires_grad_(False)
    model.late = build().head
    facts = optimizer_facts(model, wrapper)
    assert facts.missing == ('late.weight', 'late.bias')
    assert facts.frozen == ('stem.weight', 'stem.bias')


def test_rate_zero_and_the_nearest_name():
    facts = of_config(
        {
            'stem': {'lr_mult': 0.0},
            'extr.weight': {'lr_mult': 0.1},
            'zzz': {'lr_mult': 2.0},
            'blo': {'lr_mult': 2.0},
            'block': {'lr_mult': 1.0},
        }
    )
    assert facts.rate_zero == ('stem.weight', 'stem.bias')
    assert facts.unmatched == {'extr.weight': 'extra.weight', 'zzz': ''}
    assert facts.shadowed == ('blo',)


def test_a_key_for_what_is_frozen_is_no_mistake():
    facts = of_config({'stem': {'lr_mult': 0.1}}, build('frozen stem'))
    assert facts.unmatched == {}


def test_groups_that_could_be_one():
    keys = {'stem': {'lr_mult': 0.1}, 'zzz': {'lr_mult': 2.0}}
    facts = of_config(keys)
    trained = sum(p.requires_grad for p in build('extra').parameters())
    assert (facts.groups, facts.merged) == (trained, 2)
    assert facts.mergeable
    facts = of_config(keys, constructor='mmext.MergedOptimWrapperConstructor')
    assert (facts.groups, facts.merged) == (2, 2)
    # It reads the same keys.
    assert facts.unmatched == {'zzz': ''}


def test_other_constructors_read_other_keys():
    section = {
        'constructor': 'SomeoneElses',
        'paramwise_cfg': {'custom_keys': {'zzz': {}}},
    }
    model = build()
    facts = optimizer_facts(model, sgd(model), {'optim_wrapper': section})
    assert facts.unmatched == {}
