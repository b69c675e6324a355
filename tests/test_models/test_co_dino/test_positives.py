"""Choice of the auxiliary heads' queries against a plain restatement."""

import pytest
import torch
from torch import Tensor

from mmext.models.co_dino.positives import (
    UNUSED_LABEL,
    CoPositives,
    CoQueries,
    make_co_queries,
)

CLASSES = 4
SHAPE = (60, 80)
FILLER = [0.5, 0.5, 1.0, 1.0]


def image(
    num_pos: int, num_neg: int, num_ignored: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes, labels, targets and features of one image, in random order."""
    count = num_pos + num_neg + num_ignored
    labels = torch.cat(
        (
            torch.randint(CLASSES, (num_pos,)),
            torch.full((num_neg,), CLASSES),
            torch.full((num_ignored,), -1),
        )
    )[torch.randperm(count)]
    corner = torch.rand(2, count, 2) * 30
    boxes, targets = torch.cat((corner, corner + 20), -1).unbind(0)
    return boxes, labels, targets, torch.randn(count, 3)


def positives_of(*images: tuple) -> CoPositives:
    pad = torch.nn.utils.rnn.pad_sequence
    boxes, labels, targets, *feats = zip(*images)
    return CoPositives(
        pad(boxes, True),
        pad(labels, True, UNUSED_LABEL),
        pad(targets, True),
        pad(feats[0], True) if feats else None,
    )


def one_head(*args) -> CoQueries:
    """Queries of the only head."""
    positives, *rest = args
    (queries,) = make_co_queries([positives], *rest)
    return queries


def make(*images: tuple, max_queries: int = 20) -> CoQueries:
    return one_head(
        positives_of(*images),
        scales(*[SHAPE] * len(images)),
        CLASSES,
        max_queries,
    )


def scales(*shapes: tuple[int, int]) -> Tensor:
    """Width, height, width and height of each image."""
    return torch.tensor([[w, h, w, h] for h, w in shapes]).float()


def normalised(box: Tensor, shape: tuple[int, int] = SHAPE) -> list[float]:
    """Cx, cy, w, h in units of the image, by the formula."""
    x1, y1, x2, y2 = box.tolist()
    height, width = shape
    return [
        (x1 + x2) / 2 / width,
        (y1 + y2) / 2 / height,
        (x2 - x1) / width,
        (y2 - y1) / height,
    ]


def row_of(given: tuple, box: Tensor, shape: tuple[int, int] = SHAPE) -> int:
    """Which sample of an image a query was made of."""
    expected = torch.tensor([normalised(b, shape) for b in given[0]])
    return int((expected - box).abs().sum(-1).argmin())


@pytest.mark.parametrize(
    ('num_pos', 'count'),
    [(0, 9), (3, 9), (9, 9), (10, 10), (19, 19), (20, 20), (33, 20)],
)
def test_number_of_queries(num_pos: int, count: int):
    """The largest number of positives, at least 9, at most the limit."""
    queries = make(image(num_pos, 30), image(num_pos // 2, 30))
    assert queries.boxes.shape == queries.target_boxes.shape == (2, count, 4)
    assert queries.labels.shape == queries.label_weights.shape == (2, count)
    assert queries.box_weights.shape == (2, count)
    assert queries.feats.shape == (2, count, 3)
    assert queries.box_weights.sum() == min(num_pos, count) + num_pos // 2
    assert queries.fillers is None


@pytest.mark.parametrize(
    ('num_pos', 'num_neg'), [(5, 40), (14, 40), (9, 0), (25, 3), (0, 12)]
)
def test_every_query_is_a_sample(num_pos: int, num_neg: int):
    """Box, label, target, weight and feature belong to the same sample."""
    given = image(num_pos, num_neg, num_ignored=6)
    queries = make(given)
    used = []
    for i, box in enumerate(queries.boxes[0]):
        row = row_of(given, box)
        used.append(row)
        _, labels, targets, feats = given
        torch.testing.assert_close(
            box, torch.tensor(normalised(given[0][row]))
        )
        torch.testing.assert_close(
            queries.target_boxes[0, i], torch.tensor(normalised(targets[row]))
        )
        assert queries.labels[0, i] == labels[row]
        assert torch.equal(queries.feats[0, i], feats[row])
        is_positive = float(labels[row] < CLASSES)
        assert queries.box_weights[0, i] == is_positive
        assert queries.label_weights[0, i] == 1
    assert len(set(used)) == len(used), 'a sample was chosen twice'
    assert -1 not in queries.labels
    kept = min(num_pos, queries.boxes.shape[1])
    assert queries.box_weights.sum() == kept
    assert (queries.labels < CLASSES).sum() == kept


def test_too_many_positives_keep_a_random_subset():
    given = image(40, 10)
    chosen = [
        {row_of(given, box) for box in make(given).boxes[0]} for _ in range(20)
    ]
    assert all(len(rows) == 20 for rows in chosen)
    assert len(set.union(*chosen)) == 40, 'some positives are never chosen'
    assert len({frozenset(rows) for rows in chosen}) > 1


def test_negatives_that_fill_are_random():
    given = image(2, 30)
    chosen = [
        {row_of(given, box) for box in make(given).boxes[0]} for _ in range(30)
    ]
    assert len(set.union(*chosen)) == 32, 'some negatives are never chosen'
    always = set.intersection(*chosen)
    assert always >= set((given[1] < CLASSES).nonzero()[:, 0].tolist())


@pytest.mark.parametrize(('num_pos', 'num_neg'), [(2, 3), (0, 4), (0, 0)])
def test_fillers_weigh_nothing(num_pos: int, num_neg: int):
    queries = make(image(num_pos, num_neg, num_ignored=8), image(12, 0))
    real = num_pos + num_neg
    assert queries.fillers[0].tolist() == [False] * real + [True] * (12 - real)
    assert not queries.fillers[1].any()
    assert torch.equal(queries.label_weights, (~queries.fillers).float())
    for i in range(real, 12):
        assert queries.boxes[0, i].tolist() == FILLER
        assert queries.target_boxes[0, i].tolist() == FILLER
        assert queries.labels[0, i] == CLASSES
        assert not queries.box_weights[0, i].any()
        assert not queries.feats[0, i].any()
    assert queries.box_weights.sum() == num_pos + 12


def test_each_image_is_normalised_by_its_own_shape():
    shapes = [(60, 80), (30, 120)]
    images = [image(9, 0), image(9, 0)]
    queries = one_head(positives_of(*images), scales(*shapes), CLASSES, 20)
    for i, shape in enumerate(shapes):
        for box, target in zip(queries.boxes[i], queries.target_boxes[i]):
            row = row_of(images[i], box, shape)
            torch.testing.assert_close(
                box, torch.tensor(normalised(images[i][0][row], shape))
            )
            torch.testing.assert_close(
                target, torch.tensor(normalised(images[i][2][row], shape))
            )


def test_heads_have_numbers_of_their_own():
    many, few = positives_of(image(15, 9)), positives_of(image(2, 3))
    queries = make_co_queries([many, few], scales(SHAPE), CLASSES, 20)
    assert [query.boxes.shape[1] for query in queries] == [15, 9]
    assert queries[0].fillers is None
    assert int(queries[1].fillers.sum()) == 4
    assert make_co_queries([], scales(SHAPE), CLASSES, 20) == []


def test_rejects_too_few_queries():
    with pytest.raises(
        ValueError, match=r'max_queries must be at least 9, got 8; .*max_co'
    ):
        make(image(3, 3), max_queries=8)
    assert make(image(30, 3), max_queries=9).boxes.shape[1] == 9
