import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmext.preflight._code_place import (
    checkpoint_call_site,
    code_place,
    reentrant_backward,
)

PLACES: list[tuple[str, bool]] = []


class Asking(nn.Module):
    def forward(self, x):
        PLACES.append((code_place(), bool(checkpoint_call_site())))
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


def test_where_a_checkpoint_is_called():
    sites = []

    def inner(x):
        sites.append(checkpoint_call_site())
        return x * 2

    def outer(x):
        return checkpoint(inner, x, use_reentrant=True)

    x = torch.ones(1, requires_grad=True)
    checkpoint(outer, x, use_reentrant=True)
    assert len(sites) == 1
    assert sites[0].endswith(' in outer')
    assert checkpoint_call_site() == ''
