"""Averaging over templates and the files, with an encoder of our own."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from mmext.apis.class_embeddings import (
    check_embeddings_path,
    check_templates,
    class_phrases,
    make_class_embeddings,
    read_lines,
    save_class_embeddings,
)


class TableEncoder:
    """Gives each text the next row of a table, and notes the text."""

    name = 'table'
    default_templates = ('{}', 'one {}')

    def __init__(self, rows):
        self.rows = rows
        self.texts = []

    def encode(self, texts):
        start = len(self.texts)
        self.texts += texts
        return self.rows[start : len(self.texts)]


@pytest.mark.parametrize('batch_size', [1, 3, 4, 100])
def test_mean_of_the_directions(generator, batch_size):
    """Lengths of the encoder's vectors have no say."""
    rows = torch.randn(6, 5, generator=generator)
    rows *= torch.tensor([1, 1e3, 2, 1e-4, 7, 1])[:, None]
    encoder, batches = TableEncoder(rows), []
    embeddings = make_class_embeddings(
        ['a_b', 'c', 'd'],
        encoder,
        batch_size=batch_size,
        on_texts=batches.append,
    )
    assert encoder.texts == ['a b', 'one a b', 'c', 'one c', 'd', 'one d']
    assert sum(batches) == 6
    assert max(batches) == min(batch_size, 6)
    table = rows.double().numpy()
    table = table / np.linalg.norm(table, axis=1, keepdims=True)
    expected = table[0::2] + table[1::2]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert embeddings.dtype == torch.float32
    np.testing.assert_allclose(embeddings.numpy(), expected, atol=1e-7)


@pytest.mark.parametrize(
    'rows', [torch.ones(1, 3, requires_grad=True), np.ones((1, 3))]
)
def test_takes_tensors_with_gradients_and_arrays(rows):
    """As a ``SentenceTransformer`` gives them, which has no templates."""

    class Encoder:
        def encode(self, texts):
            return rows

    embeddings = make_class_embeddings(['a'], Encoder(), ['{}'])
    assert not embeddings.requires_grad
    assert embeddings.dtype == torch.float32


@pytest.mark.parametrize(
    ('rows', 'message'),
    [
        (torch.ones(3, 2), 'for each of 2 texts, got shape'),
        (torch.ones(2), r'got shape \(2,\)'),
        (torch.ones(2, 0), r'got shape \(2, 0\)'),
        (torch.tensor([[1.0], [0.0]]), "that is for 'one a'"),
        (torch.tensor([[torch.nan], [1.0]]), "that is for 'a'"),
        (torch.tensor([[1.0], [torch.inf]]), "that is for 'one a'"),
        (torch.tensor([[1.0], [-3.0]]), "mean of zero for 'a'"),
    ],
)
def test_rejects_what_an_encoder_gives(rows, message):
    encoder = TableEncoder(rows)
    encoder.encode = lambda _: rows
    with pytest.raises(ValueError, match=message):
        make_class_embeddings(['a'], encoder)
    with pytest.raises(ValueError, match='at least 1, got 0'):
        make_class_embeddings(['a'], encoder, batch_size=0)


@pytest.fixture
def rows(generator):
    rows = torch.randn(3, 4, generator=generator)
    return rows / rows.norm(dim=1, keepdim=True)


NAMES = ['red_cell', 'crème', 'c']
INFO = {'encoder': 'x: y', 'templates': ['a {}', '{}'], 'mmext_version': '1'}


def test_safetensors_as_its_package_reads_them(tmp_path, rows):
    path = tmp_path / 'a.safetensors'
    save_class_embeddings(path, rows.T.contiguous().T, NAMES, INFO)
    with safe_open(path, 'pt') as file:
        assert list(file.keys()) == ['class_embeddings']
        assert torch.equal(file.get_tensor('class_embeddings'), rows)
        metadata = file.metadata()
    assert json.loads(metadata.pop('classes')) == NAMES
    assert json.loads(metadata.pop('templates')) == INFO['templates']
    assert metadata == {'encoder': 'x: y', 'mmext_version': '1'}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'embeddings': torch.ones(2, 4)}, r'of 3 classes, got'),
        ({'embeddings': torch.ones(3)}, r'got shape \(3,\)'),
        ({'embeddings': torch.ones(3, 0)}, r'shape \(3, 0\)'),
        ({'embeddings': torch.ones(3, 1) / 0}, 'must be finite'),
    ],
)
def test_rejects_content(tmp_path, change, message):
    given = {'embeddings': torch.eye(3), 'classes': NAMES, **change}
    with pytest.raises(ValueError, match=message):
        save_class_embeddings(tmp_path / 'a.safetensors', **given)
    assert not list(tmp_path.iterdir())


def test_rejects_paths(tmp_path):
    with pytest.raises(ValueError, match=r'must end in \.safetensors'):
        check_embeddings_path(tmp_path / 'a.pt')
    folder = tmp_path / 'b.safetensors'
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match='got directory'):
        check_embeddings_path(folder, force=True)


@pytest.mark.parametrize(
    ('names', 'message'),
    [
        ('cat', "a sequence of names, got 'cat'"),
        ([], r'a sequence of names, got \[\]'),
        (['a', ' _ '], "not be empty, got ' _ ' at position 1"),
        (['a_b', 'b', 'a b'], "position 0 and 'a b' at .*both read 'a b'"),
    ],
)
def test_rejects_names(names, message):
    with pytest.raises(ValueError, match=message):
        class_phrases(names)


def test_templates_are_kept_as_they_are():
    given = ['{}', 'a {0} {} and {braces}']
    assert check_templates(given) == tuple(given)
    encoder = TableEncoder(torch.rand(4, 3))
    make_class_embeddings(['x', '{}'], encoder, given)
    assert encoder.texts == [
        'x',
        'a {0} x and {braces}',
        '{}',
        'a {0} {} and {braces}',
    ]


@pytest.mark.parametrize(
    ('templates', 'message'),
    [
        ('a {}', r"got 'a \{\}'"),
        ([], r"use \['\{\}'\]"),
        (['{}', 'a cat'], "got 'a cat' at position 1"),
        (['{} or {}'], r'exactly once.* at position 0'),
    ],
)
def test_rejects_templates(templates, message):
    with pytest.raises(ValueError, match=message):
        check_templates(templates)


def test_reads_lines(tmp_path):
    path = tmp_path / 'names.txt'
    path.write_bytes('\ufeff red cell \r\n\ncrème\nb\n\n'.encode())
    assert read_lines(path) == ['red cell', 'crème', 'b']
    with pytest.raises(FileNotFoundError, match='must be a text file'):
        read_lines(tmp_path / 'none.txt')
