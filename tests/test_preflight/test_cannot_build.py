import pytest

from mmext.preflight.cannot_build import CannotBuildError, explain_failure


@pytest.mark.parametrize(
    ('error', 'asked', 'end'),
    [
        (KeyError('a'), [], "cannot build model.neck: KeyError: 'a'"),
        (OSError('x'), ['b.org', 'a.org', 'b.org'], 'are found locally'),
        (
            ImportError('no mmpretrain'),
            [],
            'install the package that it needs',
        ),
        (RuntimeError('x is not installed'), [], 'the package that it needs'),
    ],
)
def test_says_what_helps(error, asked, end):
    text = explain_failure('model.neck', error, asked)
    assert text.startswith('cannot build model.neck: ')
    assert text.endswith(end)


def test_names_each_host_once_and_keeps_to_one_line():
    text = explain_failure('model', OSError('a\n  b'), ['b.org', 'a.org'] * 2)
    assert 'needs files of a.org, b.org and' in text
    assert 'OSError: a b;' in text


def test_is_a_runtime_error():
    assert issubclass(CannotBuildError, RuntimeError)
