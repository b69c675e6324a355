import pytest
from preflight_models import batches, build

from mmext.preflight.proof._crash_place import error_place, modules_of_error


def test_of_a_module():
    model = build()
    with pytest.raises(RuntimeError) as caught:
        model(inputs=batches()['normal'][0]['inputs'][:, :2])
    assert modules_of_error(caught.value, model) == ('stem',)
    place = error_place(caught.value)
    assert place.startswith('tests/helpers/preflight_models.py:')
    assert place.endswith(' in forward')


def test_the_model_itself_is_not_named():
    model = build('crash')
    with pytest.raises(IndexError) as caught:
        model(**batches(('empty',))['empty'][0])
    assert modules_of_error(caught.value, model) == ()
    assert error_place(caught.value).endswith(' in _values')


def test_an_error_without_a_place():
    assert error_place(ValueError('x')) == ''
    assert modules_of_error(ValueError('x'), build()) == ()
