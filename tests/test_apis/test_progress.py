"""The bar lets everything through and keeps off standard output."""

import pytest

from mmext.apis.progress import track


def test_passes_items_on(capsys):
    assert list(track(iter([1, 2, 3]), 3, 'things')) == [1, 2, 3]
    captured = capsys.readouterr()
    assert captured.out == ''
    assert 'things' in captured.err
    assert '3/3' in captured.err


def test_ends_full_when_items_are_left_out(capsys):
    assert list(track(iter([1]), 3, 'things')) == [1]
    assert '3/3' in capsys.readouterr().err


def test_is_lazy_and_passes_errors_on():
    def items():
        yield 1
        raise RuntimeError('no more')

    tracked = track(items(), 2, 'things')
    assert next(tracked) == 1
    with pytest.raises(RuntimeError, match='no more'):
        next(tracked)
