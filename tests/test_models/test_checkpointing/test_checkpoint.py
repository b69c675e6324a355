"""Checkpointing changes memory and nothing else.

The oracle is the same module without checkpointing. Reentrant checkpointing
is run beside it where it is known to fail, to show that the check can tell.
"""

import copy
import pickle

import pytest
import torch
from mmdet.models.backbones import ResNet, SwinTransformer
from mmengine.runner import turn_on_activation_checkpointing
from reference.co_dino_parts import grads, graph_leaves
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmext.models.checkpointing.checkpoint import (
    checkpoint_module,
    checkpoint_modules,
    checkpointable_blocks,
    is_checkpointed,
)


class Block(nn.Module):
    """A residual block with dropout that counts how often it runs."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 6)
        self.dropout = nn.Dropout(dropout)
        self.runs = 0

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        self.runs += 1
        return x + self.second(self.dropout(self.first(x + shift).relu()))


def make_blocks(
    with_cp: bool | int, dropout: float = 0.0, count: int = 3
) -> nn.Sequential:
    torch.manual_seed(1)
    blocks = nn.Sequential(*(Block(dropout) for _ in range(count)))
    checkpoint_modules(blocks, with_cp, 'stack')
    return blocks


def run(blocks: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients."""
    torch.manual_seed(2)
    x = x.clone().requires_grad_()
    loss = blocks(x).square().mean()
    return loss.detach(), grads(blocks, loss)


@pytest.mark.parametrize('dropout', [0.0, 0.5])
@pytest.mark.parametrize('with_cp', [True, 1, 2])
def test_matches_plain(with_cp, dropout: float):
    """Values and gradients; dropout draws the same numbers twice."""
    x = torch.randn(4, 6)
    loss, output = run(make_blocks(with_cp, dropout), x)
    plain_loss, plain = run(make_blocks(False, dropout), x)
    assert torch.equal(loss, plain_loss)
    assert output.keys() == plain.keys()
    for name, gradient in plain.items():
        assert torch.equal(output[name], gradient), name


def test_module_used_twice_in_one_graph():
    results = []
    for with_cp in (True, False):
        block = make_blocks(with_cp, 0.5, count=1)[0]
        torch.manual_seed(3)
        output = block(block(torch.ones(2, 6)))
        results.append(grads(block, output.square().sum()))
    for name, gradient in results[1].items():
        assert torch.equal(results[0][name], gradient), name


def test_parameters_are_found_by_a_walk_of_the_graph():
    """What ``find_unused_parameters`` of DDP needs, and reentrant lacks."""
    blocks = make_blocks(True, 0.5)
    parameters = {id(parameter) for parameter in blocks.parameters()}
    x = torch.randn(2, 6, requires_grad=True)
    assert graph_leaves(blocks(x)) == {*parameters, id(x)}
    plain = make_blocks(False)
    reentrant = checkpoint(plain, x, use_reentrant=True)
    assert graph_leaves(reentrant) == {id(x)}


def test_second_run_happens_in_the_backward_pass_only():
    blocks = make_blocks(2)
    output = blocks(torch.randn(2, 6)).sum()
    assert [block.runs for block in blocks] == [1, 1, 1]
    output.backward()
    assert [block.runs for block in blocks] == [2, 2, 1]


def test_without_gradients_runs_plainly():
    blocks = make_blocks(True)
    with torch.no_grad():
        output = blocks(torch.ones(2, 6))
    assert output.grad_fn is None
    assert [block.runs for block in blocks] == [1, 1, 1]
    assert torch.equal(output, make_blocks(False)(torch.ones(2, 6)))


def test_keeps_fewer_tensors():
    def saved(with_cp: bool) -> int:
        sizes: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        blocks = make_blocks(with_cp)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            blocks(torch.ones(64, 6, requires_grad=True))
        return sum(sizes)

    assert saved(True) < 0.5 * saved(False)


def test_names_class_and_hooks_stay():
    blocks, plain = make_blocks(True), make_blocks(False)
    assert blocks.state_dict().keys() == plain.state_dict().keys()
    assert all(type(block) is Block for block in blocks)
    assert len(list(blocks.modules())) == len(list(plain.modules()))
    calls = []
    blocks[0].register_forward_hook(lambda *_: calls.append(1))
    blocks(torch.ones(2, 6)).sum().backward()
    assert calls == [1]


@pytest.mark.parametrize(
    'duplicate',
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=['deepcopy', 'pickle'],
)
def test_copy_computes_with_its_own_weights(duplicate):
    blocks = make_blocks(True)
    copied = duplicate(blocks)
    assert all(is_checkpointed(block) for block in copied)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.fill_(0.5)
    expected = make_blocks(False)
    for parameter in expected.parameters():
        nn.init.constant_(parameter, 0.5)
    x = torch.randn(3, 6)
    output = copied(x)
    assert torch.equal(output, expected(x))
    assert torch.equal(blocks(x), make_blocks(False)(x))
    output.sum().backward()
    assert all(p.grad is None for p in blocks.parameters())
    assert all(p.grad is not None for p in copied.parameters())


@pytest.mark.parametrize(
    ('with_cp', 'count'), [(False, 0), (True, 3), (0, 0), (1, 1), (3, 3)]
)
def test_leading_modules_are_checkpointed(with_cp, count: int):
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    assert checkpoint_modules(blocks, with_cp, 'stack') == count
    assert [is_checkpointed(block) for block in blocks] == [
        i < count for i in range(3)
    ]


BACKBONES = {
    'resnet18': lambda: ResNet(18, base_channels=4, norm_eval=True),
    'resnet50': lambda: ResNet(50, base_channels=2, norm_eval=True),
    'swin': lambda: SwinTransformer(
        embed_dims=4, depths=(1, 2, 1, 1), num_heads=(1, 1, 2, 4)
    ),
}


@pytest.mark.parametrize(
    ('name', 'count'), [('resnet18', 8), ('resnet50', 16), ('swin', 5)]
)
def test_blocks_of_a_backbone_in_the_order_they_run(name: str, count: int):
    backbone = BACKBONES[name]()
    backbone.eval()
    blocks = checkpointable_blocks(backbone)
    assert len(blocks) == count
    ran: list[nn.Module] = []
    for block in blocks:
        block.register_forward_hook(lambda module, *_: ran.append(module))
    with torch.no_grad():
        backbone(torch.randn(1, 3, 64, 64))
    assert [id(block) for block in ran] == [id(block) for block in blocks]


@pytest.mark.parametrize('name', ['resnet18', 'swin'])
def test_backbone_matches_plain(name: str):
    """Drop path included, which Swin has by default."""
    results = []
    for with_cp in (True, 3, False):
        torch.manual_seed(4)
        backbone = BACKBONES[name]()
        backbone.train()
        blocks = checkpointable_blocks(backbone)
        checkpoint_modules(blocks, with_cp, 'backbone')
        feats = backbone(torch.randn(2, 3, 64, 64))
        results.append(grads(backbone, sum(x.square().sum() for x in feats)))
    for result in results[:2]:
        assert result.keys() == results[2].keys()
        for key, gradient in results[2].items():
            assert torch.equal(result[key], gradient), key


def test_limit_a_backbone_without_blocks():
    assert checkpointable_blocks(nn.Sequential(nn.Linear(2, 2))) == []
    block = Block()
    block.with_cp = False
    assert checkpointable_blocks(block) == [], 'the whole is no block'
    assert checkpointable_blocks(nn.Sequential(block)) == [block]
    bare = nn.ReLU()
    bare.with_cp = True
    assert checkpointable_blocks(nn.Sequential(bare)) == []


def test_input_that_is_changed_later_is_an_error():
    """And not a wrong gradient."""
    block = make_blocks(True, count=1)[0]
    x = torch.ones(2, 6, requires_grad=True) * 1.0
    loss = block(x).sum()
    x.detach().add_(1)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        loss.backward()


@pytest.mark.parametrize('ours', [True, False])
def test_behind_a_frozen_stem(ours: bool):
    """Inputs need no gradient; parameters do. MMEngine's own is blind."""
    blocks = make_blocks(False)
    if ours:
        checkpoint_modules(blocks, True, 'stack')
    else:
        for name in '012':
            turn_on_activation_checkpointing(blocks, name)
    output = blocks(torch.ones(2, 6)).sum()
    assert output.requires_grad == ours
    if ours:
        output.backward()
        assert all(p.grad.abs().sum() > 0 for p in blocks.parameters())


def test_forward_of_the_instance_stays_in_use():
    block = Block()
    plain = block.forward
    block.forward = lambda x: plain(x, shift=2.0)
    expected = block(torch.ones(2, 6))
    checkpoint_module(block)
    assert torch.equal(block(torch.ones(2, 6)), expected)


@pytest.mark.parametrize('kind', [nn.ModuleList, nn.ModuleDict])
def test_rejects_a_container(kind: type):
    with pytest.raises(
        TypeError, match=f'module must have a forward .* got {kind.__name__}'
    ):
        checkpoint_module(kind())


@pytest.mark.parametrize(
    ('with_cp', 'error', 'message'),
    [
        *((w, TypeError, 'or a number') for w in (1.0, '4', None, [1])),
        *(
            (w, ValueError, rf'or in \[0, 6\], got {w}; use False or 0')
            for w in (-1, 7)
        ),
    ],
)
def test_rejects_what_is_no_number_of_blocks(with_cp, error, message):
    blocks = nn.Sequential(*(Block() for _ in range(6)))
    with pytest.raises(
        error, match=rf'stack\.with_cp must be a bool {message}'
    ):
        checkpoint_modules(blocks, with_cp, 'stack')
    assert not any(is_checkpointed(block) for block in blocks)
