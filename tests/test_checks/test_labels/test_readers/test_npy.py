"""Arrays of NYUv2's layout: facts, errors, and bytes that are damaged."""

import io
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmext.checks.labels.facts import ErrorKind
from mmext.checks.labels.readers.image import (
    read_npy_image,
    read_npy_map,
    read_npy_mask,
)

READERS = {
    'image': read_npy_image,
    'label': read_npy_mask,
    'depth': partial(read_npy_map, kind='depth'),
    'normal': partial(read_npy_map, kind='normal'),
}
RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.normal(size=(5, 6, 3))
ARRAYS = {
    'image': RANDOM.random((5, 6, 3), np.float32),
    'label': RANDOM.integers(-1, 4, (5, 6)).astype(np.float32),
    'depth': RANDOM.random((5, 6, 1)),
    'normal': NORMAL / np.linalg.norm(NORMAL, axis=-1, keepdims=True),
}


def npy(array: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize('kind', READERS)
@pytest.mark.parametrize('change', [np.asfortranarray, np.float16])
def test_clean_arrays(kind, change):
    facts = READERS[kind](npy(change(ARRAYS[kind])))
    assert (facts.width, facts.height, facts.error) == (6, 5, None)
    assert kind == 'label' or facts.bad == ()


@pytest.mark.parametrize('dtype', [np.float64, np.int64, np.int8])
def test_minus_one_of_labels_is_loaded_as_255(dtype):
    label = np.array([[2, -1, 0], [-1, -2, 2]], dtype)
    facts = read_npy_mask(npy(label))
    assert facts.values == ((-2, 1), (0, 1), (2, 2), (255, 2))
    assert facts.first == (4, 2, 0, 1)


@pytest.mark.parametrize(
    ('array', 'location'),
    [
        (np.array([[0, 0.5]]), '0.5 at y=0, x=1'),
        (np.array([[0, np.nan]]), 'nan at y=0, x=1'),
        (np.array([[2**40, 0]]), 'labels must be below'),
        (np.array([[-(2**63), 0]]), 'labels must be below'),
    ],
)
def test_labels_that_are_no_classes(array, location):
    error = read_npy_mask(npy(array)).error
    assert error.kind is ErrorKind.CORRUPT
    assert location in error.text


def header(text: str) -> bytes:
    """A file with a header of its own."""
    content = text.encode().ljust(117) + b'\n'
    return b'\x93NUMPY\x01\x00' + len(content).to_bytes(2, 'little') + content


FIELDS = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2)}"


@pytest.mark.parametrize('kind', READERS)
@pytest.mark.parametrize(
    ('content', 'error'),
    [
        (b'', ErrorKind.EMPTY),
        (b'<html>', ErrorKind.CORRUPT),
        (npy(np.zeros((4, 4, 2))), ErrorKind.CORRUPT),
        (npy(np.zeros((0, 4, 3))), ErrorKind.CORRUPT),
        (npy(np.zeros(())), ErrorKind.CORRUPT),
        (npy(np.array([[{}]]), allow_pickle=True), ErrorKind.CORRUPT),
        (header('{'), ErrorKind.CORRUPT),
        (header(FIELDS), ErrorKind.CORRUPT),
    ],
)
def test_files_that_are_not_read(kind, content, error):
    assert READERS[kind](content).error.kind is error


@pytest.mark.parametrize('kind', READERS)
def test_cut_off_files(kind):
    content = npy(ARRAYS[kind])
    for length in range(len(content)):
        error = READERS[kind](content[:length]).error
        assert error is not None
        assert length <= 128 or error.kind is ErrorKind.TRUNCATED


@given(
    st.sampled_from(sorted(READERS)),
    st.lists(st.tuples(st.integers(6, 160), st.integers(0, 255)), min_size=1),
)
def test_damaged_bytes_raise_nothing(kind, changes):
    content = bytearray(npy(ARRAYS[kind]))
    for location, value in changes:
        content[location] = value
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        facts = READERS[kind](bytes(content))
    assert facts.error is not None or facts.width > 0


HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999, 99999, 3)}"


def test_size_is_refused_before_anything_is_read():
    assert read_npy_image(header(HUGE)).error.kind is ErrorKind.REFUSED
