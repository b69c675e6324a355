import pytest
import torch
from mmdet.models.backbones import ResNet, SwinTransformer
from torch import nn

from mmext.models.checkpointing.checkpoint import (
    checkpoint_module,
    is_checkpointed,
)
from mmext.models.checkpointing.modules import (
    checkpoint_model,
    find_modules,
    matches_class,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Linear(2, 2)
        self.conv2 = nn.Linear(2, 2)

    def forward(self, x):
        return self.conv2(self.conv1(x))


class WideBlock(Block):
    pass


class Net(nn.Module):
    """``backbone.layer{1,2}.{0,1}``, a neck that is a list, and an alias."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.layer1 = nn.Sequential(Block(), Block())
        self.backbone.layer2 = nn.Sequential(WideBlock(), WideBlock())
        self.neck = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.alias = self.backbone.layer1[0]


@pytest.mark.parametrize(
    ('kind', 'expected'),
    [
        ('BasicBlock', True),
        ('mmdet.BasicBlock', True),
        ('mmdet.models.backbones.resnet.BasicBlock', True),
        ('BaseModule', True),
        ('mmengine.BaseModule', True),
        ('mmseg.BasicBlock', False),
        ('mmde.BasicBlock', False),
        ('Block', False),
        ('models.BasicBlock', False),
    ],
)
def test_names_of_classes(kind: str, expected: bool):
    block = ResNet(18, base_channels=4).layer1[0]
    assert matches_class(block, kind) is expected


BLOCKS = [f'backbone.layer{i}.{j}' for i in (1, 2) for j in (0, 1)]


@pytest.mark.parametrize(
    ('modules', 'classes', 'expected'),
    [
        ('backbone.layer1', (), ['backbone.layer1']),
        (['backbone.layer*.*'], (), BLOCKS),
        (['backbone.layer2.1', 'backbone.layer1.0'], (), BLOCKS[::3]),
        (['backbone.layer?.0', 'backbone.layer1.*'], (), BLOCKS[:3]),
        ((), 'Block', BLOCKS),
        ((), ['WideBlock'], BLOCKS[2:]),
        ((), ['Linear', 'Block'], [*BLOCKS, 'neck.0', 'neck.1']),
        ('neck.0', ['WideBlock'], [*BLOCKS[2:], 'neck.0']),
        # Containers that are never run are passed over by a pattern ...
        (['*', 'neck.*'], (), ['neck.0', 'neck.1', 'alias']),
        # ... and so is what is inside of another.
        (['backbone.*', 'backbone.*.1', 'neck.0'], (), None),
        (
            ['backbone.layer1', 'backbone.layer?.0'],
            'Linear',
            [
                'backbone.layer1',
                'backbone.layer2.0',
                'backbone.layer2.1.conv1',
                'backbone.layer2.1.conv2',
                'neck.0',
                'neck.1',
            ],
        ),
        ('alias', (), ['alias']),
        ((), (), []),
    ],
)
def test_finds(modules, classes, expected):
    if expected is None:
        with pytest.raises(ValueError, match='leave one of them out'):
            find_modules(Net(), modules, classes)
        return
    net = Net()
    results = find_modules(net, modules, classes)
    assert list(results) == expected
    for name, module in results.items():
        assert module is net.get_submodule(name)


def test_inside_of_what_is_checkpointed_already():
    net = Net()
    checkpoint_module(net.backbone.layer1)
    assert list(find_modules(net, 'backbone.layer*.*')) == BLOCKS[2:]
    with pytest.raises(
        ValueError,
        match=r"modules='backbone\.layer1\.0' must fit something that is not "
        r"in a checkpointed module, got only such as 'backbone\.layer1\.0' "
        r"in 'backbone\.layer1'; leave one of them out",
    ):
        find_modules(net, 'backbone.layer1.0')


@pytest.mark.parametrize(
    ('modules', 'classes', 'message'),
    [
        (
            'backbone.layr1',
            (),
            r"modules='backbone\.layr1' must fit a module of the model, got "
            r'one that fits none; near are backbone\.layer1, ',
        ),
        ('backbone.layer9.*', (), r'fits none; near are backbone\.layer'),
        ('xyz', (), r'fits none$'),
        ((), 'Blok', r"classes='Blok' must .* near are Block, WideBlock"),
        ((), ['Block', 'mmseg.Block'], r"classes='mmseg\.Block' .* fits none"),
        (
            'neck',
            (),
            r"modules='neck' must fit a module that has a forward, got only "
            r"neck of class ModuleList; name .* such as 'neck\.\*'",
        ),
        ((), 'ModuleList', r'has a forward, got only neck of class'),
        ('', (), None),
        ([3], (), None),
        ((), [Block], None),
    ],
)
def test_rejects(modules, classes, message: str | None):
    if message is None:
        with pytest.raises(TypeError, match=r'must be names, got .* among'):
            find_modules(Net(), modules, classes)
        return
    with pytest.raises(ValueError, match=message):
        find_modules(Net(), modules, classes)


def test_checkpoints_a_model_once():
    model = nn.ModuleDict(
        {
            'first': ResNet(18, base_channels=4, with_cp=True),
            'second': SwinTransformer(
                embed_dims=4, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1)
            ),
        }
    )
    summary = checkpoint_model(model, 'first.layer4.*', ['mmdet.SwinBlock'])
    blocks = [f'first.layer{i}.{j}' for i in (1, 2, 3, 4) for j in (0, 1)]
    windows = [f'second.stages.{i}.blocks.0' for i in range(4)]
    assert summary == ([*blocks, *windows], blocks, [])
    forward = model['first'].layer4[1].forward
    again = checkpoint_model(model, 'first.layer4.*', ['mmdet.SwinBlock'])
    assert again == (summary.modules, [], [])
    assert model['first'].layer4[1].forward is forward


def test_reentrant_ones_stay_when_asked_to():
    model = ResNet(18, base_channels=4, with_cp=True)
    summary = checkpoint_model(model, 'layer1.0', replace_reentrant=False)
    assert summary.modules == ['layer1.0']
    assert summary.replaced == []
    assert 'layer1.1' in summary.unreplaced
    assert not is_checkpointed(model.layer1[1])
    with pytest.warns(UserWarning, match='use_reentrant'):
        model(torch.randn(2, 3, 32, 32))
