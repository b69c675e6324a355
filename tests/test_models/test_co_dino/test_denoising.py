"""Denoising queries against mmdet's generator and head."""

import pytest
import torch
from helpers.tiny_co_dino import make_samples
from mmdet.models import DINOHead
from mmdet.models.layers import CdnQueryGenerator
from scipy.stats import ks_2samp

from mmext.models.co_dino.denoising import DenoisingGenerator
from mmext.models.co_dino.matching import read_ground_truth

K = 5
SHAPES = ((60, 80), (40, 50))
GROUPS = {
    'dynamic': {'dynamic': True, 'num_dn_queries': 12},
    'static': {'dynamic': False, 'num_groups': 3},
}


def make(num_boxes, **settings) -> tuple:
    """Ours and mmdet's generator with the same weights, and a batch."""
    settings = {
        'num_classes': K,
        'embed_dims': 8,
        'num_matching_queries': 4,
        'group_cfg': GROUPS['dynamic'],
        **settings,
    }
    ours = DenoisingGenerator(**settings)
    settings.pop('max_boxes', None)
    theirs = CdnQueryGenerator(**settings)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs, make_samples(num_boxes, SHAPES, num_classes=K)


@pytest.mark.parametrize('groups', GROUPS)
@pytest.mark.parametrize('num_boxes', [(3, 2), (1, 7), (0, 4), (0, 0)])
def test_without_noise_it_is_mmdets(num_boxes, groups) -> None:
    ours, theirs, samples = make(
        num_boxes,
        label_noise_scale=1e-9,
        box_noise_scale=1e-9,
        group_cfg=GROUPS[groups],
    )
    output = ours(read_ground_truth(samples, K))
    labels, boxes, _, meta = theirs(samples)
    torch.testing.assert_close(output.contents, labels)
    torch.testing.assert_close(output.references, boxes.sigmoid())
    assert output.num_groups == meta['num_denoising_groups']
    head = DINOHead.__new__(DINOHead)
    torch.nn.Module.__init__(head)
    head.num_classes = K
    *expected, num_positives, num_negatives = head.get_dn_targets(
        [sample.gt_instances for sample in samples],
        [sample.metainfo for sample in samples],
        meta,
    )
    targets = output.targets
    for ours_, theirs_ in zip(
        (targets.labels, targets.label_weights, targets.boxes), expected
    ):
        torch.testing.assert_close(ours_[0], torch.stack(theirs_))
    torch.testing.assert_close(
        targets.box_weights[0], torch.stack(expected[3])[..., 0]
    )
    assert float(targets.box_weights.sum()) == num_positives
    assert float(targets.negatives.sum()) == num_negatives


def test_noise_has_mmdets_distribution() -> None:
    """Of each coordinate, and of how many labels change."""
    torch.manual_seed(0)
    ours, theirs, samples = make(
        (2, 2),
        label_noise_scale=0.5,
        box_noise_scale=0.4,
        group_cfg={'dynamic': False, 'num_groups': 3000},
    )
    output = ours(read_ground_truth(samples, K))
    labels, boxes, _, _ = theirs(samples)
    # Image, group, positive or negative, box.
    shape = (2, 3000, 2, 2)
    mine, other = (
        value.view(*shape, 4).transpose(0, 1).flatten(1).detach().numpy().T
        for value in (output.references, boxes.sigmoid())
    )
    assert len(mine) == 2 * 2 * 2 * 4
    for drawn, expected in zip(mine, other):
        assert ks_2samp(drawn, expected).statistic < 0.06
    weight = ours.label_embedding.weight
    kept = [
        float(
            (value.view(-1, 2, 8) - weight[truth])
            .abs()
            .sum(-1)
            .eq(0)
            .float()
            .mean()
        )
        for value, truth in (
            (output.contents[0], samples[0].gt_instances.labels),
            (labels[0], samples[0].gt_instances.labels),
        )
    ]
    # A quarter is drawn anew, and one in K of those is the same again.
    assert kept == pytest.approx([1 - 0.25 * (1 - 1 / K)] * 2, abs=0.02)


def test_what_is_padded_learns_nothing() -> None:
    ours, _, samples = make((1, 3))
    output = ours(read_ground_truth(samples, K))
    padded = output.targets.negatives[0] + output.targets.box_weights[0] == 0
    assert padded[0].any()
    assert not padded[1].any()
    assert not output.contents[padded].any()
    assert (output.references[padded] == 0.5).all()
    assert (output.targets.labels[0][padded] == K).all()


def test_of_many_boxes_some_are_drawn() -> None:
    ours, _, samples = make((9, 2), max_boxes=4, label_noise_scale=1e-9)
    truth = read_ground_truth(samples, K)
    seen = set()
    for _ in range(20):
        output = ours(truth)
        # Twelve queries are three groups of two times four boxes, at most.
        assert output.num_groups == 3
        assert output.references.shape[1] == 3 * 2 * 4
        assert output.targets.box_weights.sum() == 3 * (4 + 2)
        chosen = output.targets.boxes[0, 0][:4]
        rows = (chosen[:, None] == truth.boxes[0]).all(-1).nonzero()[:, 1]
        assert len(set(rows.tolist())) == 4
        seen |= set(rows.tolist())
    assert seen == set(range(9))
    with pytest.raises(ValueError, match=r'at least 1, got 0; .*dn_cfg'):
        make((1, 1), max_boxes=0)
