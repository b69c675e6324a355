import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmext.preflight._code_place import (
    code_place,
    inside_reentrant_checkpoint,
    reentrant_backward,
)

PLACES: list[tuple[str, bool]] = []


class Asking(nn.Module):
    def forward(self, x):
        PLACES.append((code_place(), inside_reentrant_checkpoint()))
        return x * x


def ask(**kwargs):
    PLACES.clear()
    x = torch.ones(1, requires_grad=True)
    if kwargs:
        checkpoint(Asking(), x, **kwargs).backward()
    else:
        Asking()(x)
    return list(PLACES)


def test_the_place_is_that_of_the_code_outside_of_torch():
    [(place, inside)] = ask()
    name, line_and_function = place.split(':')
    assert name == os.path.join(
        'tests', 'test_preflight', 'test_code_place.py'
    )
    assert line_and_function.endswith(' in forward')
    assert not inside


def test_the_first_run_of_a_reentrant_checkpoint_is_known():
    # The second one is in the backward, and an ordinary forward.
    assert [inside for _, inside in ask(use_reentrant=True)] == [True, False]
    assert {inside for _, inside in ask(use_reentrant=False)} == {False}


def test_each_backward_of_a_reentrant_checkpoint_has_a_number():
    numbers = []

    def numbered(x):
        numbers.append(reentrant_backward())
        return x * x

    x = torch.ones(1, requires_grad=True)
    checkpoint(numbered, x, use_reentrant=True).backward()
    assert numbers[0] is None
    assert isinstance(numbers[1], int)
    checkpoint(numbered, x, use_reentrant=False).backward()
    assert numbers[2:] == [None, None]
