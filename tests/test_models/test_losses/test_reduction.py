"""Class weights: sequences, files, and what is refused."""

import json

import numpy as np
import pytest
import torch

from mmext.models.losses.reduction import read_class_weight

VALUES = [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    'given', [VALUES, tuple(VALUES), np.array(VALUES), torch.tensor(VALUES)]
)
def test_reads_sequences(given):
    weight = read_class_weight(given)
    assert weight.dtype == torch.float32
    assert weight.tolist() == VALUES


def test_reads_files(tmp_path):
    np.save(tmp_path / 'w.npy', np.array(VALUES))
    (tmp_path / 'w.json').write_text(json.dumps(VALUES))
    (tmp_path / 'w.yaml').write_text('[0.5, 1.0, 2.0]')
    for name in ('w.npy', 'w.json', 'w.yaml'):
        assert read_class_weight(tmp_path / name).tolist() == VALUES
        assert read_class_weight(str(tmp_path / name)).tolist() == VALUES


def test_copies_a_tensor():
    given = torch.tensor(VALUES)
    read_class_weight(given)[0] = 9
    assert given[0] == 0.5


def test_rejects_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'existing file.*no\.npy'):
        read_class_weight(str(tmp_path / 'no.npy'))


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ([1.0, -0.5], 'at least 0, got -0.5 for class 1'),
        ([1.0, float('nan')], 'finite'),
        ([1.0, float('inf')], 'finite'),
        ([[1.0]], r'one number per class, got shape \(1, 1\)'),
        ([], 'one number per class'),
        (['a'], 'one number per class'),
        (2.0, 'one number per class'),
    ],
)
def test_class_weights_rejects(given, message):
    with pytest.raises(ValueError, match=message):
        read_class_weight(given)


def test_is_on_the_cpu_where_the_model_is_not():
    with torch.device('meta'):
        weight = read_class_weight([0.5, 2.0])
    assert weight.tolist() == [0.5, 2.0]
