"""mmext.CoDINOHead: one decoder pass, groups apart, settings."""

import math

import pytest
import torch
from helpers.tiny_co_dino import (
    NUM_CLASSES,
    build_tiny,
    make_batch,
)
from mmdet.models.layers import CdnQueryGenerator
from reference.co_dino_parts import (
    CHANNELS,
    encode,
    grads,
    tiny_batch,
    tiny_branches,
    tiny_transformer,
)
from torch import Tensor, nn

from mmext.models.co_dino import query_head as module
from mmext.models.co_dino.denoising import group_attention_mask
from mmext.models.co_dino.losses import join_targets, loss_divisors
from mmext.models.co_dino.matching import read_ground_truth
from mmext.models.co_dino.query_head import (
    filler_padding_mask,
    image_detections,
    select_detections,
)


@pytest.fixture(scope='module')
def scene() -> dict:
    """A detector, its encoder output and its auxiliary heads' positives."""
    model = build_tiny().train()
    data = model.data_preprocessor(make_batch(), True)
    with torch.no_grad():
        encoded = model.encode(data['inputs'], data['data_samples'])
        _, positives = model._co_head_losses(
            model.query_head.co_feats(encoded), data['data_samples']
        )
    return {
        'model': model,
        'head': model.query_head,
        'encoded': encoded,
        'samples': data['data_samples'],
        'positives': positives,
    }


def _loss(scene: dict, positives, seed: int = 3) -> dict:
    torch.manual_seed(seed)
    return scene['head'].loss(scene['encoded'], scene['samples'], positives)


def test_one_pass_equals_one_pass_per_group(scene, monkeypatch) -> None:
    head, encoded = scene['head'], scene['encoded']
    made = []
    original = module.make_co_queries

    def remember(*args):
        made.extend(original(*args))
        return made

    monkeypatch.setattr(module, 'make_co_queries', remember)
    fused = _loss(scene, scene['positives'])
    truth = read_ground_truth(scene['samples'], NUM_CLASSES)
    for i, queries in enumerate(made):
        hidden, references = head.transformer.decode(
            encoded,
            head.transformer.co_queries(queries.boxes, queries.feats, i),
            queries.boxes,
            head.reg_branches,
        )
        scores, boxes = head(hidden, references)
        groups = [queries.targets(f'{{}}_aux{i}')]
        (divisors,) = loss_divisors([groups], 0.0, average_classes=True)
        targets = join_targets(groups, boxes, divisors)
        alone = head._losses(scores, boxes, targets, truth)
        assert len(alone) == 6
        for name, value in alone.items():
            torch.testing.assert_close(
                fused[name], value, rtol=1e-5, atol=1e-5, msg=name
            )
    assert len(made) == 2


def test_the_decoder_runs_once(scene, monkeypatch) -> None:
    decoder = scene['head'].transformer.decoder
    calls = []
    plain = type(decoder).forward

    def counted(self, *args, **kwargs):
        calls.append(args[0].shape[1])
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(decoder), 'forward', counted)
    losses = _loss(scene, scene['positives'])
    assert len(calls) == 1
    assert calls[0] > 20 + 9 + 9
    assert len(losses) == 3 * (1 + 2 + 2 + 2 * 2)


def test_forward_adds_the_offset_in_logit_space(scene) -> None:
    head = scene['head']
    hidden = torch.randn(2, 1, 3, 32)
    references = [torch.full((1, 3, 4), 0.3)] * 3
    with torch.no_grad():
        scores, boxes = head(hidden, references)
        offset = head.reg_branches[1](hidden[1])
        expected = (offset + math.log(0.3 / 0.7)).sigmoid()
        torch.testing.assert_close(boxes[1], expected)
        torch.testing.assert_close(scores[0], head.cls_branches[0](hidden[0]))
        # At the border of the image the logit ends at that of 1e-3.
        references = [torch.tensor([0.0, 1.0, 0.0, 1.0]).expand(1, 3, 4)] * 3
        _, boxes = head(hidden, references)
        limit = torch.tensor([-1.0, 1.0, -1.0, 1.0]) * math.log(1e3)
        torch.testing.assert_close(boxes[1], (offset + limit).sigmoid())


def test_co_feats_are_the_memory_and_a_coarser_level(scene) -> None:
    head, encoded = scene['head'], scene['encoded']
    maps = head.co_feats(encoded)
    assert len(maps) == 6
    assert [tuple(m.shape[-2:]) for m in maps[:5]] == encoded.shapes
    height, width = encoded.shapes[0]
    torch.testing.assert_close(
        maps[0][1, :, 2, 3], encoded.memory[1, 2 * width + 3]
    )
    assert all(m.is_contiguous() for m in maps[:5])
    assert height * width < encoded.memory.shape[1]


META = {'img_shape': (100, 200), 'scale_factor': (2.0, 0.5)}


def test_selects_the_best_pairs_of_query_and_class() -> None:
    logits = torch.tensor([[0.0, 3.0], [2.0, -1.0], [1.0, 0.5]])
    boxes = torch.arange(12.0).view(3, 4)
    scores, labels, chosen = select_detections(logits, boxes, 3, True)
    torch.testing.assert_close(scores, torch.tensor([3.0, 2.0, 1.0]).sigmoid())
    assert labels.tolist() == [1, 0, 0]
    assert torch.equal(chosen, boxes[[0, 1, 2]])


def test_softmax_never_selects_background() -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0], [4.0, 0.0, 0.0]])
    scores, labels, _ = select_detections(logits, torch.rand(2, 4), 9, False)
    assert labels.tolist() == [0, 1]
    expected = logits.softmax(-1)
    torch.testing.assert_close(scores, expected[[1, 0], [0, 1]])


def _detect(boxes, test_cfg, rescale=False, logits=None):
    boxes = torch.tensor(boxes)
    if logits is None:
        logits = torch.linspace(2, 1, len(boxes))[:, None]
    return image_detections(
        logits,
        boxes,
        META,
        {'max_per_img': 10, **test_cfg},
        use_sigmoid=True,
        rescale=rescale,
    )


def test_boxes_are_pixels_clipped_to_the_image() -> None:
    detections = _detect([[0.5, 0.5, 0.5, 0.5], [0.0, 0.9, 0.5, 0.4]], {})
    torch.testing.assert_close(
        detections.bboxes,
        torch.tensor([[50.0, 25, 150, 75], [0.0, 70, 50, 100]]),
    )


def test_score_threshold_is_exclusive() -> None:
    logits = torch.tensor([[0.0], [1.0]])
    boxes = [[0.5, 0.5, 0.1, 0.1]] * 2
    detections = _detect(boxes, {'score_thr': 0.5}, logits=logits)
    assert len(detections) == 1
    assert float(detections.scores) > 0.5


@pytest.mark.parametrize('kind', ['nms', 'soft_nms'])
def test_nms_treats_duplicates(kind: str) -> None:
    boxes = [[0.5, 0.5, 0.4, 0.4]] * 2 + [[0.2, 0.2, 0.1, 0.1]]
    plain = _detect(boxes, {})
    detections = _detect(boxes, {'nms': {'type': kind, 'iou_threshold': 0.8}})
    assert len(plain) == 3
    if kind == 'nms':
        assert len(detections) == 2
    else:
        # A duplicate loses its score, so the third box comes before it.
        torch.testing.assert_close(detections.bboxes[1], plain.bboxes[2])
    assert (detections.scores.diff() <= 0).all()


CPU = torch.device('cpu')


def random_mask(size: int) -> Tensor:
    return (torch.rand(size, size) < 0.4).fill_diagonal_(False)


@pytest.mark.parametrize('num_groups', [0, 1, 3])
@pytest.mark.parametrize('co_sizes', [[], [1], [3, 2], [2, 1, 4]])
def test_mask_is_block_diagonal(co_sizes: list[int], num_groups: int):
    """Of denoising and matching queries it is the one that mmdet makes."""
    num_boxes, num_matching = 2, 5
    count = 2 * num_boxes * num_groups
    mask = group_attention_mask(
        count, max(num_groups, 1), num_matching, co_sizes, CPU
    )
    main = count + num_matching
    if num_groups:
        generator = CdnQueryGenerator(3, 4, num_matching, group_cfg={})
        expected = generator.generate_dn_mask(num_boxes, num_groups, 'cpu')
    else:
        expected = torch.zeros(main, main, dtype=torch.bool)
    if mask is None:
        assert not expected.any()
        assert not co_sizes
        return
    assert mask.dtype == torch.bool
    assert torch.equal(mask[:main, :main], expected)
    group = [0] * main
    for i, size in enumerate(co_sizes, 1):
        group += [i] * size
    assert mask.shape == (len(group), len(group))
    for i, own in enumerate(group):
        for j, other in enumerate(group):
            if own or other:
                assert bool(mask[i, j]) == (own != other)


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
        mask = group_attention_mask(0, 1, main, co, CPU)
        mask[:main, :main] = self.main_mask
        return self.decode(
            slice(None),
            queries,
            attn_mask=mask,
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
    results = grads(setting, loss_of(*together))
    expected = grads(setting, loss_of(*apart))
    assert results.keys() == expected.keys()
    assert 'queries' in results
    for name, gradient in expected.items():
        tolerance = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(
            results[name], gradient, rtol=0, atol=tolerance, msg=name
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
