import pytest
import torch
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from mmext.preflight._checkpoint_calls import checkpoint_calls


def run(modes, depth=1):
    def function(x):
        return list(modes) if depth == 1 else run(modes, depth - 1)

    return checkpoint(function, torch.ones(1), use_reentrant=True)


@pytest.mark.filterwarnings('ignore:None of the inputs')
def test_modes():
    with checkpoint_calls() as modes:
        assert run(modes) == [True]
        # The outer one runs its part under no_grad.
        assert run(modes, 2) == [True, False]
        with torch.no_grad():
            assert run(modes) == [False]
        assert modes == []


def test_all_is_as_before():
    before = CheckpointFunction.apply
    with checkpoint_calls() as modes:
        assert CheckpointFunction.apply != before
        with pytest.raises(KeyError):
            checkpoint({}.__getitem__, torch.ones(1), use_reentrant=True)
    assert modes == []
    assert CheckpointFunction.apply == before
    assert 'apply' not in vars(CheckpointFunction)
