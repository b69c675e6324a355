"""Groups in one decoder pass compute what they compute alone.

The strongest oracle is the real decoder: one pass with the mask against one
pass per group, and fillers whose content must not matter to anyone.
"""

import pytest
import torch
from reference.co_dino_parts import (
    CHANNELS,
    encode,
    grads,
    tiny_batch,
    tiny_branches,
    tiny_transformer,
)
from torch import Tensor, nn

from mmext.models.utils.query_groups import (
    filler_padding_mask,
    group_attention_mask,
)

CPU = torch.device('cpu')


def random_mask(size: int) -> Tensor:
    return (torch.rand(size, size) < 0.4).fill_diagonal_(False)


@pytest.mark.parametrize('with_main_mask', [False, True])
@pytest.mark.parametrize('co_sizes', [[1], [3, 2], [2, 1, 4]])
def test_mask_is_block_diagonal(co_sizes: list[int], with_main_mask: bool):
    main_mask = random_mask(5) if with_main_mask else None
    mask = group_attention_mask(main_mask, 5, co_sizes, CPU)
    group = [0] * 5
    for i, size in enumerate(co_sizes, 1):
        group += [i] * size
    assert mask.shape == (len(group), len(group))
    assert mask.dtype == torch.bool
    for i, own in enumerate(group):
        for j, other in enumerate(group):
            if own == other == 0 and with_main_mask:
                assert mask[i, j] == main_mask[i, j]
            else:
                assert bool(mask[i, j]) == (own != other)


def test_limit_one_group_keeps_its_mask():
    mask = random_mask(5)
    assert group_attention_mask(mask, 5, [], CPU) is mask
    assert group_attention_mask(None, 5, [], CPU) is None


def test_group_mask_does_not_change_inputs():
    mask = random_mask(5)
    before = mask.clone()
    group_attention_mask(mask, 5, [3], CPU).logical_not_()
    assert torch.equal(mask, before)


def test_filler_mask():
    fillers = torch.tensor([[False, True, True], [False, False, True]])
    before = fillers.clone()
    mask = filler_padding_mask(2, [fillers, None], [3, 2], 2, CPU)
    assert mask.tolist() == [
        [False, False, False, True, True, False, False],
        [False, False, False, False, True, False, False],
    ]
    assert torch.equal(fillers, before)


def test_limit_no_filler_is_no_mask():
    assert filler_padding_mask(2, [], [], 2, CPU) is None
    assert filler_padding_mask(2, [None, None], [3, 2], 2, CPU) is None


def test_limit_fillers_only_stay_visible():
    """By image and by group: here in the first image of the first group."""
    fillers = torch.tensor([[True, True], [False, True]])
    mask = filler_padding_mask(1, [fillers, fillers], [2, 2], 2, CPU)
    assert mask.tolist() == [[False] * 5, [False, False, True, False, True]]


def test_masks_on_every_device(device: torch.device):
    fillers = torch.tensor([[True, False]], device=device)
    mask = filler_padding_mask(1, [fillers, None], [2, 3], 1, device)
    assert mask.device.type == device.type
    mask = group_attention_mask(None, 1, [2, 3], device)
    assert mask.device.type == device.type


class Setting(nn.Module):
    """A transformer, its box branches, and queries in three groups."""

    def __init__(self, sizes: tuple[int, ...] = (8, 5, 3)) -> None:
        super().__init__()
        self.transformer = tiny_transformer()
        self.branches = tiny_branches(4, 2)
        self.batch = tiny_batch()
        self.sizes = sizes
        self.queries = nn.Parameter(torch.randn(2, sum(sizes), CHANNELS))
        self.boxes = torch.rand(2, sum(sizes), 4)
        self.main_mask = random_mask(sizes[0])

    def decode(
        self, part: slice, queries: Tensor | None = None, **masks
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and boxes ``(D, B, T, *)`` of some queries."""
        queries = self.queries if queries is None else queries
        hidden, boxes = self.transformer.decode(
            encode(self.transformer, self.batch),
            queries[:, part],
            self.boxes[:, part],
            self.branches,
            **masks,
        )
        return hidden, torch.stack(boxes[1:])

    def fused(
        self, fillers: list[Tensor | None], queries: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        main, *co = self.sizes
        return self.decode(
            slice(None),
            queries,
            attn_mask=group_attention_mask(self.main_mask, main, co, CPU),
            key_padding_mask=filler_padding_mask(main, fillers, co, 2, CPU),
        )

    def separate(self, fillers: list[Tensor | None]) -> list[Tensor]:
        """One pass per group, as the public port does."""
        outputs, start = [], 0
        for i, size in enumerate(self.sizes):
            masks = {'attn_mask': self.main_mask} if i == 0 else {}
            if i and fillers[i - 1] is not None:
                masks['key_padding_mask'] = fillers[i - 1]
            outputs.append(self.decode(slice(start, start + size), **masks))
            start += size
        return [torch.cat(parts, 2) for parts in zip(*outputs)]


def loss_of(hidden: Tensor, boxes: Tensor) -> Tensor:
    weight = torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)
    return (hidden * weight).sum() + boxes.square().sum()


@pytest.mark.parametrize('with_fillers', [False, True])
def test_one_pass_equals_a_pass_per_group(with_fillers: bool):
    """Hidden states, boxes and every gradient, the queries' included."""
    setting = Setting()
    fillers: list[Tensor | None] = [None, None]
    if with_fillers:
        fillers[0] = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    together = setting.fused(fillers)
    apart = setting.separate(fillers)
    for ours, theirs in zip(together, apart):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    found = grads(setting, loss_of(*together))
    expected = grads(setting, loss_of(*apart))
    assert found.keys() == expected.keys()
    assert 'queries' in found
    for name, gradient in expected.items():
        tolerance = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(
            found[name], gradient, rtol=0, atol=tolerance, msg=name
        )


def test_without_the_mask_groups_do_see_each_other():
    """Shows that the test above can tell."""
    setting = Setting()
    mixed = setting.decode(slice(None))
    apart = setting.separate([None, None])
    assert (mixed[0] - apart[0]).abs().max() > 1e-2


def test_content_of_fillers_matters_to_nobody():
    setting = Setting()
    fillers = [torch.tensor([[False] * 3 + [True] * 2, [False] * 5]), None]
    real = torch.ones(2, 16, dtype=torch.bool)
    real[0, 11:13] = False
    other = torch.where(real[..., None], setting.queries, 37.0)
    hidden, boxes = setting.fused(fillers)
    other_hidden, other_boxes = setting.fused(fillers, other)
    assert torch.equal(hidden[:, real], other_hidden[:, real])
    assert torch.equal(boxes[:, real], other_boxes[:, real])
    assert not torch.equal(hidden[:, ~real], other_hidden[:, ~real])


def test_fillers_receive_no_gradient_from_others():
    setting = Setting()
    fillers = [torch.tensor([[False] * 3 + [True] * 2, [False] * 5]), None]
    hidden, boxes = setting.fused(fillers)
    real = torch.ones(2, 16)
    real[0, 11:13] = 0
    weight = real[None, ..., None]
    gradient = grads(setting, loss_of(hidden * weight, boxes * weight))
    assert not gradient['queries'][0, 11:13].any()
    assert gradient['queries'][real.bool()].ne(0).any(-1).all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_group_of_fillers_only_is_finite(dtype: torch.dtype):
    setting = Setting()
    everything = torch.ones(2, 5, dtype=torch.bool)
    with torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
        output = setting.fused([everything, None])
    for tensor in output:
        assert tensor.isfinite().all()
    for name, gradient in grads(setting, loss_of(*output)).items():
        assert gradient.isfinite().all(), name
