"""Steps of modules that are not MMEngine's, as docs/plain_pytorch.md has them.

The frameworks are stood in for by modules of the same structure. Each has one
layer that a step leaves out.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mmext.checks import explain_step
from mmext.checks.ddp import SyncSettings, UnusedReason

PAGE = Path(__file__).resolve().parents[3] / 'docs' / 'plain_pytorch.md'
EXAMPLES = dict(
    re.findall(
        r'^## (\w+)\n.*?```python\n(.*?)```', PAGE.read_text(), re.S | re.M
    )
)
X, Y = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.extra = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, x):
        return self.body(x)


class LightningModule(Plain):
    """``training_step`` is not what calling the module does."""

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self(x), y)


class Experts(nn.Module):
    """Experts that all tasks share, and a gate and a decoder of each."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(2, 3) for _ in range(2))
        self.gates = nn.ModuleDict({t: nn.Linear(2, 2) for t in 'ab'})
        self.decoders = nn.ModuleDict({t: nn.Linear(3, 3) for t in 'ab'})
        self.extra = nn.Linear(2, 3)

    def forward(self, x, task_name=None):
        shared = torch.stack([expert(x) for expert in self.experts], -1)
        return {
            task: self.decoders[task](
                (shared * gate(x).softmax(-1)[:, None]).sum(-1)
            )
            for task, gate in self.gates.items()
        }


class Autoencoder(Plain):
    """Predicted and target patches; the target needs no gradient."""

    def forward(self, x):
        return self.body(x), x.repeat(1, 2)[:, :3]


class Output(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class Detector(Plain):
    """An output with the loss, if there are labels."""

    def forward(self, pixel_values, labels=None):
        logits = self.body(pixel_values)
        return Output(F.cross_entropy(logits, labels), logits)


GIVEN = {
    'PyTorch': dict(model=Plain(), x=X, y=Y, criterion=F.cross_entropy),
    'Lightning': dict(module=LightningModule(), batch=(X, Y)),
    'LibMTL': dict(
        model=Experts(), x=X, y={'a': Y, 'b': Y}, criterion=F.cross_entropy
    ),
    'lightly': dict(model=Autoencoder(), x=X, criterion=F.mse_loss),
    'transformers': dict(
        model=Detector(), inputs={'pixel_values': X, 'labels': Y}
    ),
}


@pytest.mark.parametrize('name', GIVEN)
def test_the_page_explains_a_step(name):
    given = dict(GIVEN[name])
    model = given.get('model') or given['module']
    model.eval()
    exec(EXAMPLES[name], given)
    explanation = given['explanation']
    assert {
        n: unused.reason for n, unused in explanation.unused.items()
    } == dict.fromkeys(['extra.weight', 'extra.bias'], UnusedReason.NEVER_USED)
    assert not explanation.current.works
    assert explanation.recommended.find_unused_parameters
    assert str(explanation).endswith(
        'Arguments of\nDistributedDataParallel:\n\nfind_unused_parameters=True'
    )
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def test_advice_is_for_the_arguments_of_ddp():
    class Net(Plain):
        def forward(self, x):
            x = checkpoint(self.body, self.extra(x)[:, :2], use_reentrant=True)
            return x, self.extra.weight

    explanation = explain_step(
        Net(), X, SyncSettings(True), loss=lambda out: out[0].sum()
    )
    assert not explanation.current.works
    text = str(explanation)
    assert 'Pass use_reentrant=False to the checkpoints.' in text
    assert 'find_unused_parameters=False' in text
    assert 'default_hooks' not in text
    assert 'config' not in text


def test_a_module_needs_its_loss():
    with pytest.raises(TypeError, match='got Plain; for another module, give'):
        explain_step(Plain(), X)


def test_pytorch_is_enough(checkout):
    """No host package is imported, and none has to be there."""
    code = """
import sys
hosts = 'mmengine', 'mmcv', 'mmdet', 'mmseg'
sys.modules |= dict.fromkeys(hosts)
import torch
from torch import nn
from mmext.checks import explain_step
from mmext.checks.ddp import predict_outcome
explanation = explain_step(nn.Linear(2, 1), torch.ones(1, 2), loss=torch.sum)
print(explanation.current.outcome, [n for n in hosts if sys.modules[n]])
"""
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == 'ok []\n', done.stderr
