import io
import random

import numpy as np
import torch

from mmext.engine import get_rng_state, set_rng_state


def draw():
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(3).tolist(),
    )


def test_round_trip_through_a_file_that_runs_no_code():
    np.random.randn()  # leaves one normal number in store
    random.gauss(0, 1)
    file = io.BytesIO()
    torch.save(get_rng_state(), file)
    expected = draw()
    assert draw() != expected
    file.seek(0)
    set_rng_state(torch.load(file, weights_only=True))
    assert draw() == expected


def test_state_is_not_changed_by_use():
    state = get_rng_state()
    first = draw()
    set_rng_state(state)
    draw()
    set_rng_state(state)
    assert draw() == first


def test_cuda_is_saved_only_once_in_use(monkeypatch):
    assert 'cuda' not in get_rng_state()
    given = []
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_rng_state', lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.cuda, 'set_rng_state', given.append)
    set_rng_state(get_rng_state())
    assert [state.tolist() for state in given] == [[7]]
