"""What a head accepts as class embeddings."""

import pytest
import torch

from mmext.models.utils import class_vocabulary
from mmext.models.utils.class_embeddings import check_class_embeddings
from mmext.models.utils.class_vocabulary import (
    given_embeddings,
    keep_given,
    training_dims,
)

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
