"""The decoder against mmdet's DINO decoder, weights copied."""

import copy
import inspect
import pickle

import pytest
import torch
from mmcv.cnn.bricks.transformer import MultiheadAttention
from mmdet.models.layers import DinoTransformerDecoder
from mmdet.models.layers.transformer import dino_layers
from reference.co_dino_parts import (
    CHANNELS,
    SHAPES,
    STACK,
    grads,
    graph_leaves,
    inverse_sigmoid,
    randomize,
    tiny_branches,
)
from torch import Tensor, nn

from mmext.models.checkpointing.checkpoint import is_checkpointed
from mmext.models.co_dino.decoder import (
    REFERENCE_EPS,
    CoDINODecoder,
    SelfAttention,
)

QUERIES = 7
RATIOS = torch.tensor(
    [
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
        [[0.625, 0.8], [0.75, 0.67], [0.5, 1.0]],
    ]
)


class WithBranches(nn.Module):
    """A decoder with its box branches, whose gradients count as well."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder
        self.branches = tiny_branches(4, STACK['num_layers'])


@pytest.fixture(autouse=True)
def _default_dropout(monkeypatch):
    """Undo what others left: mmcv writes ``dropout`` into its own default."""
    init = inspect.unwrap(MultiheadAttention.__init__)
    default = inspect.signature(init).parameters['dropout_layer'].default
    monkeypatch.setitem(default, 'drop_prob', 0.0)


def make_decoder(**kwargs) -> WithBranches:
    torch.manual_seed(5)
    decoder = CoDINODecoder(
        embed_dims=CHANNELS, num_levels=len(SHAPES), **{**STACK, **kwargs}
    )
    randomize(decoder)
    return WithBranches(decoder)


def make_inputs() -> dict:
    torch.manual_seed(6)
    areas = [height * width for height, width in SHAPES]
    mask = torch.rand(QUERIES, QUERIES) < 0.3
    return {
        'query': torch.randn(2, QUERIES, CHANNELS),
        'references': torch.rand(2, QUERIES, 4),
        'memory': torch.randn(2, sum(areas), CHANNELS),
        'padding_mask': torch.rand(2, sum(areas)) < 0.3,
        'valid_ratios': RATIOS,
        'spatial_shapes': torch.tensor(SHAPES),
        'level_start_index': torch.tensor([0, *areas[:-1]]).cumsum(0),
        'attn_mask': mask.fill_diagonal_(False),
    }


def loss_of(hidden: Tensor, references: list[Tensor]) -> Tensor:
    """A scalar in which every hidden state and every box counts."""
    weight = torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)
    boxes = torch.stack(tuple(references))
    return (hidden.float() * weight).sum() + (boxes**2).sum()


def run(
    module: WithBranches, dtype: torch.dtype = torch.float32, **changed
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Output and gradients; the backward pass runs outside of autocast."""
    inputs = {**make_inputs(), **changed}
    with torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
        hidden, references = module.decoder(
            **inputs, reg_branches=module.branches
        )
    found = grads(module, loss_of(hidden, references))
    assert len(found) == len(list(module.parameters()))
    return hidden.detach(), references, found


def mmdet_decoder(module: WithBranches) -> WithBranches:
    attention = {
        'embed_dims': CHANNELS,
        'num_heads': STACK['num_heads'],
        'batch_first': True,
    }
    oracle = DinoTransformerDecoder(
        num_layers=STACK['num_layers'],
        return_intermediate=True,
        layer_cfg={
            'self_attn_cfg': {**attention, 'attn_drop': 0.0},
            'cross_attn_cfg': {
                **attention,
                'num_levels': len(SHAPES),
                'num_points': STACK['num_points'],
                'dropout': 0.0,
            },
            'ffn_cfg': {
                'embed_dims': CHANNELS,
                'feedforward_channels': STACK['feedforward_channels'],
                'ffn_drop': 0.0,
            },
        },
        post_norm_cfg=None,
    )
    # This mmdet encodes boxes twice as wide as DINO does, which gives the
    # head that reads them another shape. See narrow_encoding below.
    oracle.ref_point_head.layers[0] = nn.Linear(2 * CHANNELS, CHANNELS)
    twin = WithBranches(oracle)
    twin.load_state_dict(
        {in_mmdet(k): value for k, value in module.state_dict().items()}
    )
    return twin


def in_mmdet(name: str) -> str:
    for ours, theirs in (
        ('attentions.0', 'self_attn'),
        ('attentions.1', 'cross_attn'),
        ('ffns.0', 'ffn'),
        ('ref_point_head.0', 'ref_point_head.layers.0'),
        ('ref_point_head.2', 'ref_point_head.layers.1'),
    ):
        name = name.replace(ours, theirs)
    return name


@pytest.fixture
def narrow_encoding(monkeypatch):
    original = dino_layers.coordinate_to_encoding
    monkeypatch.setattr(
        dino_layers,
        'coordinate_to_encoding',
        lambda boxes, **_: original(boxes, num_feats=CHANNELS // 2),
    )


def test_matches_mmdet(narrow_encoding):
    """Hidden states, references, all gradients: look forward twice."""
    module = make_decoder().double()
    twin = mmdet_decoder(module).double()
    inputs = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in make_inputs().items()
    }
    hidden, references, found = run(module, **inputs)
    expected, boxes = twin.decoder(
        query=inputs['query'],
        value=inputs['memory'],
        key_padding_mask=inputs['padding_mask'],
        self_attn_mask=inputs['attn_mask'],
        reference_points=inputs['references'],
        spatial_shapes=inputs['spatial_shapes'],
        level_start_index=inputs['level_start_index'],
        valid_ratios=inputs['valid_ratios'],
        reg_branches=twin.branches,
    )
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(torch.stack(references), boxes)
    renamed = {in_mmdet(name): value for name, value in found.items()}
    theirs = grads(twin, loss_of(expected, list(boxes)))
    assert renamed.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(renamed[name], gradient)


@pytest.mark.parametrize('masked', [False, True])
def test_self_attention_matches_mmcv(masked: bool):
    ours = SelfAttention(CHANNELS, 4, 0.0).double()
    theirs = MultiheadAttention(CHANNELS, 4, batch_first=True).double()
    randomize(ours)
    theirs.load_state_dict(ours.state_dict())
    query, pos = torch.randn(2, 2, QUERIES, CHANNELS).double()
    attn_mask = padding = None
    if masked:
        attn_mask = make_inputs()['attn_mask']
        padding = torch.zeros(2, QUERIES, dtype=torch.bool)
        padding[1, 2] = True
        attn_mask[:, 3:5] = False
    outputs = [
        ours(query, pos, attn_mask, padding),
        theirs(
            query,
            query_pos=pos,
            key_pos=pos,
            attn_mask=attn_mask,
            key_padding_mask=padding,
        ),
    ]
    torch.testing.assert_close(*outputs)
    gradients = [
        grads(module, output.square().sum())
        for module, output in zip((ours, theirs), outputs)
    ]
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient)


def test_self_attention_drops_of_its_output():
    """With the probability of the weights' dropout, which is off here."""
    module = SelfAttention(32, 4, 0.5).train()
    module.attn.dropout = 0.0
    query = torch.randn(2, 50, 32)
    added = module(query, torch.zeros_like(query), None, None) - query
    dropped = (added == 0).float().mean()
    assert 0.4 < float(dropped) < 0.6
    added = module.eval()(query, torch.zeros_like(query), None, None) - query
    assert (added != 0).float().mean() > 0.99


def test_references_are_offsets_in_logit_space():
    """Each layer adds its offsets to the clipped logit of the last box."""
    module = make_decoder()
    corners = make_inputs()['references']
    corners[0, :2] = torch.tensor([[0.0, 1.0, 0.0, 1.0], [1e-6, 0.5, 1, 0.2]])
    layers = []
    for layer in module.decoder.layers:
        layer.register_forward_hook(lambda _, __, out: layers.append(out))
    _, references, _ = run(module, references=corners)
    assert torch.equal(references[0], corners)
    for i, query in enumerate(layers):
        expected = module.branches[i](query) + inverse_sigmoid(
            references[i], REFERENCE_EPS
        )
        torch.testing.assert_close(references[i + 1], expected.sigmoid())


def test_each_layer_starts_from_a_detached_box():
    """A box depends on the offsets of its own layer alone."""
    module = make_decoder()
    inputs = make_inputs()
    _, references = module.decoder(**inputs, reg_branches=module.branches)
    found = torch.autograd.grad(
        references[-1].sum(),
        list(module.branches.parameters()),
        allow_unused=True,
    )
    assert [gradient is not None for gradient in found] == [
        False,
        False,
        True,
        True,
    ]


def test_limit_offsets_of_zero_keep_the_boxes():
    module = make_decoder()
    for parameter in module.branches.parameters():
        nn.init.zeros_(parameter)
    inside = make_inputs()['references'] * 0.9 + 0.05
    _, references, _ = run(module, references=inside)
    for boxes in references[1:]:
        torch.testing.assert_close(boxes, inside)


def test_limit_no_mask_and_a_mask_that_forbids_nothing():
    module = make_decoder()
    nothing = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
    visible = torch.zeros(2, QUERIES, dtype=torch.bool)
    plain = run(module, attn_mask=None)
    masked = run(module, attn_mask=nothing, key_padding_mask=visible)
    torch.testing.assert_close(masked[0], plain[0])


def test_padded_queries_are_not_attended_to():
    module = make_decoder()
    inputs = make_inputs()
    padding = torch.zeros(2, QUERIES, dtype=torch.bool)
    padding[:, -2:] = True
    outputs = []
    for junk in (0.0, 50.0):
        query = inputs['query'].masked_fill(padding[..., None], junk)
        hidden, references, _ = run(
            module, query=query, attn_mask=None, key_padding_mask=padding
        )
        outputs.append((hidden[:, ~padding], references[-1][~padding]))
    torch.testing.assert_close(outputs[0], outputs[1])


@pytest.mark.parametrize('dropout', [0.0, 0.3])
@pytest.mark.parametrize('with_cp', [True, 1])
def test_checkpointing_changes_no_number(with_cp, dropout: float):
    plain = run(make_decoder(dropout=dropout))
    ours = run(make_decoder(dropout=dropout, with_cp=with_cp))
    assert torch.equal(ours[0], plain[0])
    for name, gradient in plain[2].items():
        assert torch.equal(ours[2][name], gradient), name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_and_autocast(dtype: torch.dtype):
    """Boxes stay float32; finite; the same with checkpointing."""
    full = run(make_decoder())
    plain = run(make_decoder(), dtype)
    ours = run(make_decoder(with_cp=True), dtype)
    for boxes, exact in zip(plain[1], full[1]):
        assert boxes.dtype == torch.float32
        assert (boxes - exact).abs().mean() < 0.05
    assert torch.equal(ours[0], plain[0])
    for name, gradient in plain[2].items():
        assert gradient.isfinite().all(), name
        assert torch.equal(ours[2][name], gradient), name


def test_autocast_refines_in_float32():
    """Offsets are rounded once; the box that they are added to never is."""
    module = make_decoder()
    with torch.no_grad():
        for branch in module.branches:
            branch.weight.zero_()
            branch.bias.zero_()
    boxes = torch.rand(2, QUERIES, 4) * 0.9 + 0.05
    _, references, _ = run(module, torch.bfloat16, references=boxes)
    assert (references[-1] - boxes).abs().max() < 1e-6
    assert (boxes.bfloat16().float() - boxes).abs().max() > 1e-3


def test_parameters_are_found_by_a_walk_of_the_graph():
    module = make_decoder(with_cp=True)
    hidden, references = module.decoder(
        **make_inputs(), reg_branches=module.branches
    )
    leaves = graph_leaves(loss_of(hidden, references))
    assert leaves == {id(parameter) for parameter in module.parameters()}


@pytest.mark.parametrize(
    'duplicate',
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=['deepcopy', 'pickle'],
)
def test_copy_computes_with_its_own_weights(duplicate):
    module = make_decoder(with_cp=True)
    copied = duplicate(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    expected = run(make_decoder())
    ours = run(copied)
    assert torch.equal(ours[0], expected[0])
    for name, gradient in expected[2].items():
        assert torch.equal(ours[2][name], gradient), name


@pytest.mark.parametrize(
    ('with_cp', 'count'), [(False, 0), (True, 2), (0, 0), (1, 1)]
)
def test_with_cp_counts_leading_layers(with_cp, count: int):
    decoder = make_decoder(with_cp=with_cp).decoder
    assert decoder.num_checkpointed == count
    assert sum(map(is_checkpointed, decoder.layers)) == count


def test_rejects_with_cp_of_another_type():
    with pytest.raises(TypeError, match=r'decoder\.with_cp must.*got None'):
        make_decoder(with_cp=None)


@pytest.mark.parametrize('with_cp', [-1, 3])
def test_rejects_with_cp_out_of_range(with_cp: int):
    with pytest.raises(ValueError, match=r'decoder\.with_cp .* in \[0, 2\]'):
        make_decoder(with_cp=with_cp)


def test_does_not_change_inputs():
    inputs = make_inputs()
    run(make_decoder(), **inputs)
    for name, tensor in make_inputs().items():
        assert torch.equal(inputs[name], tensor), name
