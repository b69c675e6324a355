import copy

import pytest
import torch
from mmengine.model import BaseModel
from preflight_models import batches, build, prove_planted, sgd
from tiny_class_embed import MODES
from tiny_class_embed import build as build_class_embed
from tiny_co_dino import make_batch
from torch import nn

from mmext.preflight import SyncSettings
from mmext.preflight.proof import proof_findings, prove, verdict_table


def test_the_model_is_left_as_it_was():
    model = build('norm').eval()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    proof = prove(model, batches(), optim_wrapper=sgd(model))
    assert len(proof.steps['normal']) == 2
    assert not model.training
    assert torch.equal(torch.get_rng_state(), random)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert model.head.weight.grad is None


def test_one_kind_that_fails_does_not_end_the_proof():
    proof = prove_planted('crash', ('empty', 'normal'))
    (crash,) = proof.crashes
    assert (crash.kind, crash.step, crash.phase) == ('empty', 0, 'forward')
    assert (crash.error, crash.message) == ('IndexError', 'no boxes')
    assert 'preflight_models.py:' in crash.place
    assert proof.steps['empty'] == ()
    assert len(proof.steps['normal']) == 2


def test_a_graph_that_the_next_step_uses():
    proof = prove_planted('memory', ('normal', 'empty'))
    # The second kind does not meet what the first has left behind.
    assert [crash.step for crash in proof.crashes] == [1, 1]
    (kept,) = proof.steps['normal'][0].kept
    assert (kept.place, kept.used_again) == ('kept', True)


def test_batches_are_used_again_and_not_changed():
    model = build()
    given = batches(steps=1)
    before = given['normal'][0]['inputs'].clone()
    proof = prove(model, given, steps=3)
    assert len(proof.steps['normal']) == 3
    assert torch.equal(given['normal'][0]['inputs'], before)


def test_wrong_arguments():
    model = build()
    with pytest.raises(TypeError, match='BaseModel'):
        prove(nn.Linear(1, 1), batches())
    with pytest.raises(ValueError, match=r'steps must be at least 2, .*got 1'):
        prove(model, batches(), steps=1)
    with pytest.raises(ValueError, match="got none of 'empty'"):
        prove(model, {'normal': [1], 'empty': []})
    with pytest.raises(ValueError, match='got none of any'):
        prove(model, {})


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
    (found,) = proof_findings(prove(model, given), SyncSettings())
    assert found.rule == 'DDP001'
    assert set(found.names) == {
        'backbone.mask_token',
        'backbone.vit.head.weight',
        'backbone.vit.head.bias',
    }
    assert 'backbone.mask_token' in found.message
    assert 'backbone.vit.head (2)' in found.message
    # The fix of two lines, and then the flag is for nothing.
    model.backbone.vit.head = nn.Identity()
    model.backbone.mask_token.requires_grad_(False)
    proof = prove(model, given)
    assert proof_findings(proof, SyncSettings()) == []
    table = verdict_table(proof, SyncSettings(True))
    assert table.options == {'find_unused_parameters': False}


@pytest.mark.parametrize('mode', MODES)
def test_class_embeddings_of_co_dino(mode):
    model = build_class_embed(MODES[mode])
    proof = prove(
        model, {'normal': [make_batch()], 'empty': [make_batch((0, 0))]}
    )
    assert proof.crashes == ()
    found = proof_findings(proof, SyncSettings())
    if mode == 'off':
        (zero,) = found
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
        assert found == []
    rules = [f.rule for f in proof_findings(proof, SyncSettings(True))]
    assert 'DDP005' in rules
