"""Files of class embeddings: every format, and everything refused."""

import json
import struct

import numpy as np
import pytest
import torch

from mmext.models.co_dino import class_embeddings as class_vocabulary
from mmext.models.co_dino.class_embeddings import (
    check_class_embeddings,
    given_embeddings,
    keep_given,
    read_class_embeddings,
    training_dims,
)

NAMES = ['cat', 'guinea pig', 'Bär']


@pytest.fixture
def vectors(generator):
    return torch.randn(3, 8, generator=generator) * 20


def write(path, vectors, classes=None, key='class_embeddings'):
    """A file of the kind that the suffix says."""
    if path.suffix == '.npy':
        np.save(path, vectors.numpy())
    elif path.suffix in ('.pt', '.pth'):
        content = {key: vectors}
        if classes is not None:
            content['classes'] = classes
        torch.save(content, path)
    else:
        numbers = vectors.numpy().tobytes()
        header = {
            key: {
                'dtype': 'F32',
                'shape': list(vectors.shape),
                'data_offsets': [0, len(numbers)],
            }
        }
        if classes is not None:
            header['__metadata__'] = {'classes': json.dumps(classes)}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack('<Q', len(text)) + text + numbers)
    return path


@pytest.mark.parametrize(
    ('name', 'classes'),
    [
        ('a.npy', None),
        ('a.pt', NAMES),
        ('a.pth', None),
        ('a.safetensors', NAMES),
        ('a.SAFETENSORS', None),
    ],
)
def test_reads_every_format(tmp_path, vectors, name, classes):
    path = write(tmp_path / name, vectors, classes)
    found = read_class_embeddings(str(path))
    expected = vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found.vectors, expected)
    assert found.vectors.dtype == torch.float32
    assert found.classes == (None if classes is None else tuple(NAMES))
    assert found.source == str(path)


def test_reads_a_bare_tensor(tmp_path, vectors):
    torch.save(vectors.requires_grad_(), tmp_path / 'a.pt')
    found = read_class_embeddings(tmp_path / 'a.pt')
    assert found.classes is None
    assert not found.vectors.requires_grad


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_any_floating_dtype(tmp_path, vectors, dtype):
    array = vectors.numpy().astype(dtype)
    np.save(tmp_path / 'a.npy', array)
    found = read_class_embeddings(tmp_path / 'a.npy').vectors
    assert found.dtype == torch.float32
    lengths = np.linalg.norm(array.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(found, array / lengths, rtol=1e-3)
    tensor = vectors.bfloat16()
    assert check_class_embeddings(tensor).vectors.dtype == torch.float32


def test_limit_tiny_and_huge_vectors():
    rows = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [1e-45, 0.0]])
    found = check_class_embeddings(rows).vectors
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]])
    torch.testing.assert_close(found, expected)
    one = check_class_embeddings(torch.full((1, 1), -2.0), ['a'])
    assert one.vectors.tolist() == [[-1.0]]


def test_argument_is_not_changed(vectors):
    before = vectors.clone()
    check_class_embeddings(vectors)
    check_class_embeddings(vectors.numpy())
    assert torch.equal(vectors, before)


@pytest.mark.parametrize(
    ('vectors', 'error', 'match'),
    [
        (torch.ones(2, 3).long(), TypeError, 'floating point, got torch.int6'),
        (np.ones((2, 3), bool), TypeError, 'floating point, got bool'),
        ([[1.0]], TypeError, 'a tensor or an array, got list'),
        (torch.ones(3), ValueError, r'shape \(classes, dimensions\), got \(3'),
        (torch.ones(1, 2, 3), ValueError, r'got \(1, 2, 3\)'),
        (torch.ones(0, 3), ValueError, r'got \(0, 3\)'),
        (torch.ones(3, 0), ValueError, r'got \(3, 0\)'),
    ],
)
def test_rejects_other_arrays(vectors, error, match):
    with pytest.raises(error, match=match):
        check_class_embeddings(vectors)


@pytest.mark.parametrize(
    ('value', 'match'),
    [
        (float('nan'), r'finite, got NaN or inf in row 1 \(guinea pig\)'),
        (float('-inf'), 'finite, got NaN or inf in row 1'),
        (0.0, r'not zero, got zeros in row 1 \(guinea pig\)'),
    ],
)
def test_rejects_rows(tmp_path, vectors, value, match):
    vectors[1] = value
    path = write(tmp_path / 'a.pt', vectors, NAMES)
    with pytest.raises(ValueError, match=rf'a\.pt must be .*{match}'):
        read_class_embeddings(path)


def test_many_bad_rows_are_not_all_listed():
    with pytest.raises(ValueError, match=r'row 0, 1, 2, 3, 4, \.\.\.; make'):
        check_class_embeddings(torch.zeros(9, 2))


@pytest.mark.parametrize(
    ('classes', 'error', 'match'),
    [
        (['a', 'b'], ValueError, r'one name per row \(3\), got 2'),
        (['a', 'b', 'a'], ValueError, 'different from .* got twice a'),
        ('abc', TypeError, "must be a list of names, got 'abc'"),
        ([1, 2, 3], TypeError, 'must be a list of names'),
        (5, TypeError, 'must be a list of names, got 5'),
    ],
)
@pytest.mark.parametrize('name', ['a.pt', 'a.safetensors'])
def test_rejects_names(tmp_path, vectors, classes, error, match, name):
    path = write(tmp_path / name, vectors, classes)
    with pytest.raises(error, match=match):
        read_class_embeddings(path)


@pytest.mark.parametrize('name', ['a.pt', 'a.safetensors'])
def test_rejects_another_key(tmp_path, vectors, name):
    path = write(tmp_path / name, vectors, key='weight')
    with pytest.raises(
        ValueError, match="must hold 'class_embeddings', got 'weight'"
    ):
        read_class_embeddings(path)


def test_rejects_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'make_class_embeddings\.py'):
        read_class_embeddings(tmp_path / 'none.npy')


@pytest.mark.parametrize('name', ['a.bin', 'a', 'a.npz'])
def test_rejects_another_suffix(tmp_path, name):
    (tmp_path / name).write_bytes(b'')
    with pytest.raises(ValueError, match=r'ends in \.npy, \.pt, \.pth, \.saf'):
        read_class_embeddings(tmp_path / name)


@pytest.mark.parametrize('name', ['a.npy', 'a.pt', 'a.safetensors'])
@pytest.mark.parametrize('content', [b'', b'hello, this is some text'])
def test_rejects_other_content(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf'could not be read from .*{name}'):
        read_class_embeddings(tmp_path / name)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_files_run_no_code(tmp_path):
    torch.save({'class_embeddings': Evil()}, tmp_path / 'a.pt')
    np.save(tmp_path / 'a.npy', np.array([Evil()]), allow_pickle=True)
    for name in ('a.pt', 'a.npy'):
        with pytest.raises(ValueError, match='could not be read'):
            read_class_embeddings(tmp_path / name)


GIVEN = check_class_embeddings(torch.eye(3, 6), ['a', 'b', 'c'], 'file.pt')


def test_dimensions_are_those_of_the_file():
    assert training_dims(GIVEN, 3, None, 512) == 6
    assert training_dims(GIVEN, 3, 6, 512) == 6
    assert training_dims(None, 3, None, 512) == 512
    assert training_dims(None, 3, 16, 512) == 16


@pytest.mark.parametrize(
    ('given', 'num_classes', 'dims', 'match'),
    [
        (GIVEN, 4, None, r'num_classes=4 rows, got 3 in file\.pt'),
        (GIVEN, 3, 512, r'must be 6, the dimensions of file\.pt, got 512'),
        (None, 3, 0, 'at least 1, got 0'),
        (GIVEN, 3, -6, 'at least 1, got -6'),
    ],
)
def test_rejects_numbers_that_do_not_fit(given, num_classes, dims, match):
    with pytest.raises(ValueError, match=match):
        training_dims(given, num_classes, dims, 512)


def test_embeddings_from_memory_and_from_a_file(tmp_path):
    vectors = torch.randn(5, 6)
    torch.save(
        {'class_embeddings': vectors, 'classes': list('vwxyz')},
        tmp_path / 'a.pt',
    )
    names = tuple('12345')
    for value, given, expected in (
        (vectors, None, None),
        (vectors.numpy(), names, names),
        (tmp_path / 'a.pt', None, tuple('vwxyz')),
        (str(tmp_path / 'a.pt'), names, names),
    ):
        found = given_embeddings(value, given, 6)
        assert found.classes == expected
        torch.testing.assert_close(
            found.vectors, vectors / vectors.norm(dim=1, keepdim=True)
        )


def test_rejects_other_dimensions(tmp_path):
    torch.save(torch.ones(2, 4), tmp_path / 'a.pt')
    with pytest.raises(ValueError, match=r'have 6 dim.* got 4 in .*a\.pt'):
        given_embeddings(tmp_path / 'a.pt', None, 6)


@pytest.mark.parametrize(
    ('entry', 'told'),
    [
        (None, False),
        (torch.eye(3, 6), False),
        (torch.eye(3, 6).half(), False),
        (torch.eye(4, 6), True),
        (-torch.eye(3, 6), True),
    ],
)
def test_the_file_rules(monkeypatch, entry, told):
    lines = []
    monkeypatch.setattr(
        class_vocabulary, 'print_log', lambda text, **_: lines.append(text)
    )
    state = {} if entry is None else {'head.x': entry}
    keep_given(state, 'head.x', GIVEN)
    assert torch.equal(state['head.x'], GIVEN.vectors)
    assert len(lines) == told
    if told:
        assert 'head.x: the config names file.pt' in lines[0]
