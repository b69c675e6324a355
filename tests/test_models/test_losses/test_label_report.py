"""Counts, places and text of a report."""

import torch

from mmext.models.losses._label_report import (
    BatchContext,
    LabelReport,
    is_probability,
    make_report,
)


def report(label: torch.Tensor, num_classes: int = 5, **kwargs) -> LabelReport:
    kwargs.setdefault('ignore_index', 255)
    facts = LabelReport(
        'loss', num_classes, last_label=num_classes - 1, **kwargs
    )
    return make_report(label, facts)


def test_counts_every_value_and_image():
    label = torch.zeros(3, 4, 5, dtype=torch.long)
    label[0, 3, 4] = 70000
    label[2, 1, 2:4] = -3
    label[2, 0, 0] = 255
    found = report(label, batch=BatchContext(0, ('a', 'b', 'c')))
    assert found.num_bad == 3
    assert found.values == ((-3, 2), (70000, 1))
    assert found.in_range == (0, 255)
    assert [(i.index, i.count, i.first, i.value) for i in found.images] == [
        (0, 1, (3, 4), 70000),
        (2, 2, (1, 2), -3),
    ]
    text = str(found)
    assert '3 pixels (5 %) in 2 of 3 images' in text
    assert 'values: -3 (2), 70000 (1)' in text
    assert 'a: 1 pixels, first 70000 at (y=3, x=4)' in text
    assert '  b:' not in text


def test_without_paths_images_are_numbered():
    label = torch.full((1, 2, 2), 9)
    assert 'image 0 of the batch: 4 pixels, first 9' in str(report(label))
    assert 'iteration' not in str(report(label))


def test_flat_labels_name_positions_and_the_batch():
    label = torch.tensor([0, 1, 8, 8])
    found = report(label, batch=BatchContext(2, ('a', 'b')))
    text = str(found)
    assert '2 labels (50 %) are out of range' in text
    assert 'position 2: 1 labels, first 8' in text
    assert 'images of this batch: a, b' in text


def test_long_lists_are_cut_and_say_so():
    label = torch.arange(10, 210).view(100, 1, 2)
    text = str(report(label))
    assert 'and 188 more values' in text
    assert 'and 92 more' in text
    assert text.count('\n') < 16


def test_scalar_label():
    assert report(torch.tensor(9)).num_bad == 1


def test_values_of_narrow_dtypes_do_not_wrap():
    label = torch.tensor([[[200, 44]]], dtype=torch.uint8)
    found = report(label, num_classes=50, ignore_index=300)
    assert found.values == ((200, 1),)


def test_probabilities():
    target = torch.tensor([0.0, 1.0, -1e-6, 1 + 1e-6, -0.001, 1.001, 255.0])
    expected = [True] * 4 + [False] * 3
    for dtype in (torch.float32, torch.float64):
        assert is_probability(target.to(dtype)).tolist() == expected
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert not is_probability(odd).any()


def test_report_of_probabilities():
    """Those that miss [0, 1] by rounding are not in it."""
    target = torch.tensor([[0.5, 1 + 2e-7], [1.5, 0.25]])
    found = make_report(target, LabelReport('soft'))
    assert found.values == ((1.5, 1),)
    assert 'soft labels must be in [0, 1]' in str(found)
