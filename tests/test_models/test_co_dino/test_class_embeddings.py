"""Files of class embeddings: every format, and everything refused."""

import json
import struct

import numpy as np
import pytest
import torch

from mmext.models.co_dino.class_embeddings import (
    check_class_embeddings,
    read_class_embeddings,
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
    embeddings = read_class_embeddings(str(path))
    expected = vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close(embeddings.vectors, expected)
    assert embeddings.vectors.dtype == torch.float32
    assert embeddings.classes == (None if classes is None else tuple(NAMES))
    assert embeddings.source == str(path)


def rows_with(value: float) -> torch.Tensor:
    rows = torch.ones(3, 8)
    rows[1] = value
    return rows


NAN = float('nan')
REFUSED = [
    # Vectors, names in the file, error, message.
    (torch.ones(2, 3).long(), None, TypeError, 'floating point, got torch.in'),
    (torch.ones(3), None, ValueError, r'\(classes, dimensions\), got \(3'),
    (torch.ones(1, 2, 3), None, ValueError, r'got \(1, 2, 3\)'),
    (torch.ones(0, 3), None, ValueError, r'got \(0, 3\)'),
    (torch.ones(3, 0), None, ValueError, r'got \(3, 0\)'),
    (rows_with(NAN), NAMES, ValueError, r'got NaN or inf in row 1 \(guinea'),
    (rows_with(0.0), NAMES, ValueError, r'not zero, got zeros in row 1 \(gui'),
    (torch.zeros(9, 2), None, ValueError, r'row 0, 1, 2, 3, 4, \.\.\.; make'),
    (rows_with(1.0), ['a', 'b'], ValueError, r'one name per row \(3\), got 2'),
    (rows_with(1.0), ['a', 'b', 'a'], ValueError, '.* got twice: a'),
    (rows_with(1.0), 'abc', TypeError, "be a list of names, got 'abc'"),
    (rows_with(1.0), [1, 2, 3], TypeError, 'must be a list of names'),
]


@pytest.mark.parametrize(('rows', 'classes', 'error', 'match'), REFUSED)
def test_rejects_contents(tmp_path, rows, classes, error, match):
    path = write(tmp_path / 'a.pt', rows, classes)
    with pytest.raises(error, match=rf'a\.pt.*{match}'):
        read_class_embeddings(path)


def test_rejects_files(tmp_path, vectors):
    with pytest.raises(FileNotFoundError, match=r'make_class_embeddings\.py'):
        read_class_embeddings(tmp_path / 'none.npy')
    for name in ('a.bin', 'a', 'a.npz'):
        (tmp_path / name).write_bytes(b'')
        with pytest.raises(ValueError, match=r'ends in \.npy, \.pt, \.pth, '):
            read_class_embeddings(tmp_path / name)
    for name in ('a.npy', 'a.pt', 'a.safetensors'):
        for content in (b'', b'hello, this is some text'):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match=rf'be read from .*{name}'):
                read_class_embeddings(tmp_path / name)
    for name in ('a.pt', 'a.safetensors'):
        path = write(tmp_path / name, vectors, key='weight')
        with pytest.raises(ValueError, match="'class_embeddings', got 'weigh"):
            read_class_embeddings(path)
    with pytest.raises(TypeError, match='a tensor or an array, got list'):
        check_class_embeddings([[1.0]])


def test_limit_tiny_and_huge_vectors():
    rows = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [1e-45, 0.0]])
    vectors = check_class_embeddings(rows).vectors
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]])
    torch.testing.assert_close(vectors, expected)
    one = check_class_embeddings(torch.full((1, 1), -2.0), ['a'])
    assert one.vectors.tolist() == [[-1.0]]


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
