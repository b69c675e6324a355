import pytest
from preflight_models import find

from mmext.preflight.findings import Severity

BOTH = ('normal', 'empty')


def test_a_clean_model_has_none():
    assert find('', kinds=BOTH) == {}
    assert find('norm', kinds=BOTH) == {}
    assert find('frozen stem', kinds=BOTH) == {}


def test_crash():
    found = find('crash', kinds=BOTH)
    assert list(found) == ['STEP001']
    found = found['STEP001']
    assert 'IndexError: no boxes' in found.message
    assert 'preflight_models.py:' in found.message
    assert found.batches == ('empty',)
    assert found.severity is Severity.ERROR
    assert 'filter_empty_gt' in found.remedy


def test_a_graph_that_the_next_step_uses():
    found = find('memory')
    assert set(found) == {'STEP001', 'STEP002'}
    crash, kept = found['STEP001'], found['STEP002']
    assert crash.severity is kept.severity is Severity.ERROR
    assert 'second time' in crash.message
    assert 'detach' in crash.remedy
    assert kept.names == ('kept',)
    assert 'the next step uses it, and fails' in kept.message


@pytest.mark.parametrize(
    ('mistake', 'severity', 'said'),
    [
        ('memory that grows', Severity.WARNING, 'memory runs out'),
        ('memory for nobody', Severity.INFO, 'keeps memory'),
    ],
)
def test_a_graph_that_is_kept(mistake, severity, said):
    found = find(mistake)
    assert list(found) == ['STEP002']
    assert found['STEP002'].severity is severity
    assert said in found['STEP002'].message


def test_not_finite():
    found = find('nan', kinds=BOTH)
    assert list(found) == ['STEP003']
    assert "infinite or NaN: 'loss_n'" in found['STEP003'].message
    assert 'look at the loss' in found['STEP003'].message
    assert found['STEP003'].batches == BOTH
    found = find('nan inside')['STEP003']
    assert found.names == ('head',)
    assert "step 1 of 'normal'" in found.message


def test_gradients_that_are_not_finite():
    found = find('nan gradient')
    assert list(found) == ['STEP004']
    assert found['STEP004'].names[0] == 'head.bias'
    assert 'though the losses are finite' in found['STEP004'].message


def test_keys_of_losses():
    assert find('extra logged')['STEP005'].names == ('norm',)
    found = find('no gradient')
    assert list(found) == ['STEP006']
    assert found['STEP006'].names == ('loss_n',)


def test_loss_weight_0():
    found = find('extra weight 0')
    assert list(found) == ['STEP007']
    found = found['STEP007']
    assert found.names == ('extra.bias', 'extra.weight')
    assert "'loss_e', which is 0 in all steps" in found.message
    assert 'loss_weight is 0 in the model' in found.message


def test_batch_norms():
    found = find('norm twice')
    assert list(found) == ['NORM001']
    assert 'norm 2 times' in found['NORM001'].message
    found = find('sync norm')['NORM003']
    assert (found.severity, found.names) == (Severity.INFO, ('norm',))


def test_a_batch_norm_in_a_checkpoint():
    found = find('batch in reentrant')
    assert list(found) == ['NORM002']
    assert 'change 2 times a step' in found['NORM002'].message
    assert found['NORM002'].severity is Severity.INFO
