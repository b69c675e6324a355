import random

import numpy as np
import pytest
import torch

from mmext.preflight._seeded import seeded


def draw():
    return random.random(), np.random.rand(), float(torch.rand(()))


def test_same_numbers_for_a_seed_and_others_for_another():
    with seeded(1):
        first = draw()
    with seeded(1):
        assert draw() == first
    with seeded(2):
        assert not set(draw()) & set(first)


def test_puts_all_sources_back_even_after_an_error():
    def around(body):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        body()
        return draw()

    def fail():
        with pytest.raises(ValueError, match='inside'), seeded(1):
            raise ValueError(f'inside, after {draw()}')

    assert around(fail) == around(lambda: None)
