"""MultiTaskModel: what goes in, what comes out, and what is refused."""

import copy

import pytest
import torch
from helpers.tiny_multi_task import SIZE, make_config, make_samples
from mmengine.registry import MODELS
from torch import nn


@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return MODELS.build(make_config())


@pytest.fixture
def batch():
    data = make_samples(2)
    return {**data, 'inputs': torch.stack(data['inputs'])}


def test_losses(model, batch):
    outputs = model(**batch, mode='loss')
    assert [name for name in outputs if 'depth' in name] == [
        'depth.loss',
        'depth.raw',
        'weight/depth',
    ]
    total, logs = model.parse_losses(outputs)
    wanted = sum(outputs[f'{task}.raw'] for task in model.tasks)
    torch.testing.assert_close(total.detach(), wanted)
    assert total.requires_grad
    assert not any(value.requires_grad for value in logs.values())


def test_a_loss_for_each_task(model, batch):
    outputs = model(**batch, mode='loss')
    outputs['extra.loss_gate'] = torch.tensor(0.3, requires_grad=True)
    total, _ = model.parse_losses(outputs)
    separate = copy.copy(model)
    separate.separate_losses = True
    losses, logs = separate.parse_losses(outputs)
    assert [loss.shape for loss in losses] == [()] * 3
    torch.testing.assert_close(sum(losses), total)
    torch.testing.assert_close(logs['loss'], total.detach())
    torch.testing.assert_close(
        losses[0], outputs['depth.loss'] + outputs['extra.loss_gate'] / 3
    )
    others = [*model.heads['semantic'].parameters()]
    gradients = torch.autograd.grad(losses[1], others, allow_unused=True)
    assert set(gradients) == {None}  # and not zeros, which cost a backward


def test_all_parameters_get_gradients(model, batch):
    model.zero_grad()
    model.parse_losses(model(**batch, mode='loss'))[0].backward()
    lacking = [n for n, p in model.named_parameters() if p.grad is None]
    assert not lacking


def test_predictions_and_outputs(model, batch):
    model.eval()
    samples = model.val_step(make_samples(2))
    assert samples[0].pred_sem_seg.data.shape == (1, *SIZE)
    assert samples[0].pred_sem_seg.data.dtype == torch.int64
    assert samples[1].pred_depth.data.shape == (1, *SIZE)
    length = samples[1].pred_normal.data.norm(dim=0)
    torch.testing.assert_close(length, torch.ones(SIZE))
    outputs = model(batch['inputs'])
    assert {task: out.shape[1] for task, out in outputs.items()} == {
        'semantic': 4,
        'depth': 1,
        'normal': 3,
    }
    model.train()


def test_the_backbone_keeps_its_keys(model):
    keys = model.state_dict()
    assert 'backbone.conv1.weight' in keys
    assert not [key for key in keys if key.startswith('architecture.')]


@pytest.mark.parametrize('name', ['a.b', 'a/b', 'my_loss'])
def test_names_of_tasks(name):
    cfg = make_config()
    cfg['heads'] = {name: cfg['heads']['depth']}
    with pytest.raises(ValueError, match=f'{name!r} cannot be the name'):
        MODELS.build(cfg)
    with pytest.raises(ValueError, match='at least one task, got none'):
        MODELS.build(dict(cfg, heads={}))


def test_wrong_calls(model, batch):
    with pytest.raises(ValueError, match="got 'train'"):
        model(**batch, mode='train')
    with pytest.raises(ValueError, match="'loss' needs data_samples"):
        model(batch['inputs'], mode='loss')
    with pytest.raises(ValueError, match="'predict' needs data_samples"):
        model(batch['inputs'], mode='predict')


def preprocess(samples, **options):
    kind = dict(type='mmext.MultiTaskDataPreprocessor', **options)
    return MODELS.build(kind)(samples, training=True)


def test_samples_of_different_sizes_are_padded():
    data = make_samples(2)
    data['inputs'][1] = data['inputs'][1][:, :-8, :-4]
    small = make_samples(1, (SIZE[0] - 8, SIZE[1] - 4))['data_samples'][0]
    data['data_samples'][1] = small
    batch = preprocess(data, mean=[0, 0, 0], std=[1, 1, 1])
    assert batch['inputs'].shape == (2, 3, *SIZE)
    padded = batch['data_samples'][1]
    assert padded.batch_input_shape == SIZE
    assert (padded.gt_sem_seg.data[:, -8:] == 255).all()
    assert (padded.gt_depth.data[..., -4:] == 0).all()
    assert (padded.gt_normal.data[:, -8:] == 0).all()
    model = MODELS.build(make_config())
    assert model(**batch, mode='loss')['normal.raw'].isfinite()


def test_vectors_are_stacked():
    batch = preprocess(dict(inputs=[torch.arange(3), torch.arange(3)]))
    assert torch.equal(batch['inputs'], torch.tensor([[0, 1, 2]] * 2))
    with pytest.raises(ValueError, match=r'one length, got \[2, 3\]'):
        preprocess(dict(inputs=[torch.arange(2), torch.arange(3)]))


def test_a_truth_larger_than_its_image():
    data = make_samples(1)
    data['inputs'][0] = data['inputs'][0][:, 1:]
    with pytest.raises(ValueError, match='must not be larger than its'):
        preprocess(data)


def test_a_head_of_somebodys_own_needs_no_base_class():
    class Own(nn.Module):
        def forward(self, features):
            return features[-1].mean((2, 3))

        def loss(self, features, data_samples):
            return self(features).square().mean()

    model = MODELS.build(make_config())
    model.heads['depth'] = Own()
    data = model.data_preprocessor(make_samples(2), True)
    assert model(**data, mode='loss')['depth.raw'] > 0
