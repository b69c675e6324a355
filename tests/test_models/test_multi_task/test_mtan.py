"""mmext.MTAN against LibMTL's, on backbones of all hosts, at any size."""

import re
from pathlib import Path

import pytest
import torch
from helpers.multi_task_nets import (
    TASKS,
    TorchvisionLike,
    architecture,
    backbone,
    backward,
    small_bottleneck_net,
    without_gradient,
)
from mmengine.runner.activation_checkpointing import (
    turn_on_activation_checkpointing,
)

from mmext.models import Stage, register_stages
from mmext.models.checkpointing import checkpoint_model

ORACLE = Path(__file__).parents[2] / 'oracles' / 'libmtl_mtan.pt'
CASES = {
    'basic': lambda: backbone(base_channels=2, stem_channels=2),
    'dilated_bottleneck': small_bottleneck_net,
}
# LibMTL's names of parameters, which follow each other.
RENAMED = [
    (r'encoder\.shared_conv\.0\.', 'backbone.conv1.'),
    (r'encoder\.shared_conv\.1\.', 'backbone.bn1.'),
    (r'encoder\.shared_layer\.(\d)\.0\.(\d)', r'backbone.layer\1.\2'),
    (r'encoder\.shared_layer\.(\d)\.1\.', r'backbone.layer\1.1.'),
    (r'encoder\.encoder_att\.(\d)\.(\d)', r'attention.\1.TASK\2'),
    (r'encoder\.encoder_block_att\.(\d)\.conv(\d)', r'blocks.\1.convs.-\2'),
    (r'encoder\.encoder_block_att\.(\d)\.bn(\d)', r'blocks.\1.norms.-\2.all'),
    (r'encoder\.encoder_block_att\.(\d)\.downsample\.0', r'blocks.\1.convs.L'),
    (
        r'encoder\.encoder_block_att\.(\d)\.downsample\.1',
        r'blocks.\1.norms.L.all',
    ),
]


def renamed(name: str, last: int) -> str:
    """Our name of a parameter of LibMTL's; ``last``: index of shortcuts."""
    for pattern, ours in RENAMED:
        name = re.sub(pattern, ours, name)
    name = re.sub(r'layer(\d)', lambda m: f'layer{int(m[1]) + 1}', name)
    name = re.sub(r'TASK(\d)', lambda m: TASKS[int(m[1])], name)
    name = re.sub(r'\.-(\d)', lambda m: f'.{int(m[1]) - 1}', name)
    return name.replace('.L', f'.{last}')


@pytest.fixture(scope='module')
def oracle():
    return torch.load(ORACLE, weights_only=True)


def with_weights(case: str, run: dict):
    """Our model in double precision, LibMTL's weights, and its gradients."""
    net = CASES[case]()
    model = architecture('MTAN', net)
    last = 2 if case == 'basic' else 3
    state, grads = (
        {renamed(name, last): value for name, value in run[what].items()}
        for what in ('state', 'grads')
    )
    model.backbone_for_test = net
    state = {
        name.replace('backbone.', 'backbone_for_test.'): value
        for name, value in state.items()
    }
    model.load_state_dict(state)
    return model.double(), grads


@pytest.mark.parametrize('case', CASES)
def test_outputs_and_gradients_are_those_of_libmtl(case, oracle):
    run = oracle[case]
    model, grads = with_weights(case, run)
    features = model(run['inputs'].double()).features
    assert list(features) == list(TASKS)
    total = 0
    for task, (feature,) in features.items():
        torch.testing.assert_close(
            feature.float(), run['outputs'][task], rtol=1e-5, atol=1e-6
        )
        total = total + (feature * run['cotangents'][task]).sum()
    total.backward()
    ours = {
        name.replace('backbone_for_test.', 'backbone.'): parameter.grad.float()
        for name, parameter in model.named_parameters()
    }
    assert ours.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-5, atol=1e-5)
    # The running statistics of the shared blocks have seen all tasks.
    for task, (feature,) in model.eval()(
        run['inputs'].double()
    ).features.items():
        torch.testing.assert_close(
            feature.float(), run['evaluated'][task], rtol=1e-5, atol=1e-6
        )


def parameters(*modules) -> float:
    """Millions of parameters."""
    return sum(p.numel() for m in modules for p in m.parameters()) / 1e6


DILATED_50 = dict(
    depth=50,
    base_channels=64,
    stem_channels=64,
    strides=(1, 2, 1, 1),
    dilations=(1, 1, 2, 4),
    contract_dilation=True,
)


def test_the_published_network_has_its_size_and_shapes():
    with torch.device('meta'):
        net = backbone('mmseg.ResNet', **DILATED_50)
        model = architecture('MTAN', net)
        assert round(parameters(net), 3) == 23.508
        assert round(parameters(net, model), 3) == 43.967
        assert round(parameters(model.attention), 3) == 12.528
        assert round(parameters(model.blocks), 3) == 7.931
        maps = []
        for module in [*model.blocks, *(a['seg'] for a in model.attention)]:
            module.register_forward_hook(
                lambda module, args, output: maps.append(
                    (tuple(args[0].shape[1:]), tuple(output.shape[1:]))
                )
            )
        features = model(torch.empty(1, 3, 288, 384)).features
    assert {tuple(f.shape) for (f,) in features.values()} == {
        (1, 2048, 36, 48)
    }
    assert maps[:7] == [
        ((256, 72, 96), (256, 72, 96)),  # attention
        ((256, 72, 96), (512, 72, 96)),  # block, before pooling
        ((1024, 36, 48), (512, 36, 48)),
        ((512, 36, 48), (1024, 36, 48)),
        ((2048, 36, 48), (1024, 36, 48)),
        ((1024, 36, 48), (2048, 36, 48)),
        ((4096, 36, 48), (2048, 36, 48)),
    ]


RESNETS = {
    'plain': dict(kind='mmdet.ResNet'),
    'mmseg': dict(kind='mmseg.ResNet'),
    'deep_stem': dict(kind='mmseg.ResNetV1c'),
    'v1d': dict(kind='mmdet.ResNetV1d'),
    'checkpointed': dict(with_cp=True),
    'frozen': dict(frozen_stages=1, norm_eval=True),
    'frozen_checkpointed': dict(frozen_stages=2, with_cp=True),
    'three_stages': dict(
        num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(2,)
    ),
    'two_features': dict(out_indices=(1, 3)),
    'second_stage': dict(out_indices=(1,)),
    'resnext': dict(
        kind='mmdet.ResNeXt',
        depth=50,
        groups=2,
        base_width=2,
        out_indices=(3,),
    ),
    'res2net': dict(kind='mmdet.Res2Net', depth=50, scales=2, base_width=16),
}


@pytest.mark.parametrize('name', RESNETS)
def test_all_resnets_at_two_sizes(name):
    net = backbone(**RESNETS[name])
    model = architecture('MTAN', net)
    net.train()
    wanted = net(torch.zeros(2, 3, 64, 64))
    for size in ((40, 72), (33, 65)):
        net.zero_grad()
        model.zero_grad()
        result = backward(model, torch.randn(2, 3, *size))
        for task in TASKS:
            assert [f.shape[1] for f in result.features[task]] == [
                w.shape[1] for w in wanted
            ]
        used = [
            getattr(net, stage)
            for stage in net.res_layers[: max(net.out_indices) + 1]
        ]
        assert without_gradient(model, *used) == []
    assert model.out_channels == tuple(w.shape[1] for w in wanted)


@pytest.mark.parametrize('how', ['with_cp', 'stages'])
def test_checkpoints_change_no_gradient(how):
    inputs = torch.randn(2, 3, 48, 48).double()
    grads = []
    for checkpoints in (False, True):
        net = backbone(with_cp=checkpoints and how == 'with_cp')
        if checkpoints and how == 'stages':
            checkpoint_model(net, ['layer2', 'layer3'])
        backward(architecture('MTAN', net.double()).double(), inputs)
        grads.append([p.grad for p in net.parameters()])
    for plain, recomputed in zip(*grads):
        torch.testing.assert_close(plain, recomputed)


def test_stages_in_a_reentrant_checkpoint_are_refused():
    net = backbone()
    turn_on_activation_checkpointing(net, ['layer2'])
    with pytest.raises(RuntimeError, match=r'ResNet\.layer2 runs without'):
        architecture('MTAN', net)(torch.randn(2, 3, 32, 32))


def test_a_backbone_as_of_torchvision_with_a_stage_of_one_block():
    net = TorchvisionLike()
    model = architecture('MTAN', net, norm_cfg=dict(type='GN', num_groups=2))
    result = backward(model, torch.randn(2, 3, 31, 47))
    assert model.out_channels == (16,)
    assert [f.shape for f in result.features['seg']] == [(2, 16, 4, 6)]
    assert without_gradient(net, model) == []


def test_a_registered_backbone_with_a_stride_of_three():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = torch.nn.Sequential(
                torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.Conv2d(4, 6, 3, 3, 1)
            )

        def forward(self, x):
            return self.stages(x)

    @register_stages(Plain)
    def stages_of_plain(net):
        return [
            Stage(f'stages.{n}', [conv], conv.out_channels)
            for n, conv in enumerate(net.stages)
        ]

    class Derived(Plain):
        pass

    net = Derived()
    model = architecture('MTAN', net)
    result = backward(model, torch.randn(2, 3, 21, 21))
    assert model.out_channels == (6,)
    assert result.features['seg'][0].shape == (2, 6, 4, 4)
    assert without_gradient(net, model) == []


def test_own_norms_of_the_tasks():
    net = backbone()
    model = architecture('MTAN', net, task_norm=True)
    backward(model, torch.randn(2, 3, 32, 32))
    assert without_gradient(net, model) == []
    norms = model.blocks[0].norms[0]
    assert list(norms) == list(TASKS)
    means = [norms[task].running_mean for task in TASKS]
    assert not torch.equal(means[0], means[1])


def test_the_backbone_belongs_to_the_model():
    model = architecture('MTAN', backbone())
    assert not any('backbone' in name for name in model.state_dict())
