import pytest
import torch
from helpers.odd_modules import ODD, REFUSED, OddNet, batch_of, state_of
from mmengine.model import BaseModel
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmext.checks.ddp import (
    Explanation,
    Outcome,
    Step,
    StepUsage,
    SyncSettings,
    UnusedParameter,
    UnusedReason,
    explain_step,
)
from mmext.checks.ddp.ready_gradients import ReadyGradient

FIND = 'find_unused_parameters = True'
FIND_NOT = 'find_unused_parameters = False'


def usage(ready, unused=(), reentrant='', reason=UnusedReason.NEVER_USED):
    items = tuple(ReadyGradient(r[0], int(r[1:] or 0)) for r in ready.split())
    used = [gradient.name for gradient in items]
    return StepUsage(
        names=tuple(dict.fromkeys([*used, *unused])),
        ready=items,
        reachable=frozenset(set(used) - set(reentrant)),
        unused={name: UnusedParameter(reason) for name in unused},
        reentrant=dict.fromkeys(reentrant, 'block'),
    )


def find_advice(usages, settings):
    return Explanation([Step(usage) for usage in usages], settings).advice()


def configs(*args):
    return [advice.config for advice in find_advice(*args)]


def evaluate(lines):
    """Config lines must be Python that can be pasted."""
    values = {}
    exec(lines, {}, values)
    return values


def test_unused_and_reentrant():
    given = [usage('a b1', 'c', 'b')]
    in_model, hook, static = find_advice(given, SyncSettings())
    # Once c is used, nothing else is wrong.
    assert in_model.config == ''
    assert evaluate(hook.config)['find_unused_parameters'] is True
    assert evaluate(static.config)['model_wrapper_cfg']['static_graph'] is True
    in_model, hook, _ = find_advice(given, SyncSettings(True))
    assert in_model.text.endswith('This alone is not enough.')
    assert 'find_unused_parameters' not in evaluate(hook.config)


def test_a_part_that_does_not_learn_is_not_hidden_by_a_flag():
    given = usage('a', 'b', reason=UnusedReason.CHECKPOINT_INPUT)
    (hook,) = configs([given], SyncSettings())
    assert set(evaluate(hook)) == {'default_hooks'}


def test_branches_rule_a_static_graph_out():
    taken, not_taken = (
        usage('a b1'),
        usage('a', 'b', reason=UnusedReason.BRANCH_NOT_TAKEN),
    )
    lines = configs([taken, not_taken], SyncSettings(False, True))
    values = evaluate('\n'.join(lines))
    assert values['find_unused_parameters'] is True
    assert values['model_wrapper_cfg']['static_graph'] is False


def test_used_outside_of_forward():
    step = StepUsage(
        ('a', 'b'),
        (ReadyGradient('b', 0), ReadyGradient('a', 0)),
        frozenset('a'),
    )
    advice = find_advice([step], SyncSettings(True))
    assert "forward(mode='loss')" in advice[0].text
    assert advice[1].config == FIND_NOT


@pytest.mark.parametrize(
    ('reason', 'words'),
    [
        (UnusedReason.NO_GRAD, 'compute it with gradients'),
        (UnusedReason.DETACHED, 'let gradients pass'),
        (UnusedReason.FROZEN, 'freeze it earlier'),
        (UnusedReason.NOT_IN_LOSS, 'add its output to a loss'),
    ],
)
def test_the_advice_follows_the_reason(reason, words):
    advice = find_advice([usage('a', 'b', reason=reason)], SyncSettings())
    assert words in advice[0].text


class Net(BaseModel):
    """With a part that is used in every step, and one that is not."""

    def __init__(self, part=nn.Linear):
        super().__init__()
        self.stem, self.part = nn.Linear(2, 2), part(2, 1)
        self.extra = nn.Linear(2, 1)

    def forward(self, inputs, mode='loss'):
        x = checkpoint(self.part, self.stem(inputs), use_reentrant=True)
        return {'loss': x.sum(), 'note': self.extra(inputs).detach().sum()}


DATA = {'inputs': torch.ones(3, 2)}


def test_a_step_is_explained():
    model = Net().eval()
    explanation = explain_step(model, DATA, SyncSettings(True))
    assert list(explanation.unused) == ['extra.weight', 'extra.bias']
    assert explanation.current.failure is Outcome.READY_TWICE
    assert set(explanation.current.names) == {'part.weight', 'part.bias'}
    assert explanation.recommended.settings == SyncSettings(True)
    assert not explanation.recommended.reentrant
    text = str(explanation)
    assert '2 parameters got no gradient: detached on its way' in text
    assert 'test_explain.py:' in text
    assert (
        'find_unused_parameters=True, checkpoints as they are: error at '
        'step 1: a parameter is marked ready twice (in use)\n' in text
    )
    assert 'checkpoints none of them reentrant: ok (recommended)\n' in text
    assert 'Advice 1. In the model, for extra.weight and extra.bias' in text
    assert FIND not in text
    # It is left as it was.
    assert not model.training
    assert model.stem.weight.grad is None


def test_what_ddp_refuses_is_not_run():
    model = Net(lambda _, size: nn.LazyLinear(size))
    explanation = explain_step(model, DATA)
    assert explanation.recommended is None
    assert explanation.current.failure is Outcome.REFUSED
    assert explanation.current.names == ('part.weight', 'part.bias')


def test_no_model_of_mmengine():
    with pytest.raises(TypeError, match=r'must be a BaseModel .* got Linear'):
        explain_step(nn.Linear(2, 2), DATA)


@pytest.mark.parametrize('name', [*ODD, *REFUSED])
def test_odd_modules(name):
    model = OddNet(name)
    before = state_of(model)
    explanation = explain_step(model, batch_of(0, 0))
    refused = ('part.mix',) if name in REFUSED else ()
    assert explanation.current.names == refused
    assert explanation.current.works != bool(refused)
    assert not explanation.unused
    assert state_of(model) == before


def test_a_script_is_used_as_a_whole():
    """Its code is not seen; its parameters may have no gradient."""

    class Scripted(Net):
        def forward(self, inputs, mode='loss'):
            x = self.part(self.stem(inputs))
            return {'loss': x.sum() + self.extra(inputs).detach().sum()}

    model = Scripted()
    model.extra = torch.jit.script(model.extra)
    unused = explain_step(model, DATA).unused
    assert list(unused) == ['extra.weight', 'extra.bias']
    assert unused['extra.bias'].reason is UnusedReason.DETACHED
