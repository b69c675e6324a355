"""Which back end each operator has, how one chooses, and what the log says."""

import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers.torch_versions import needs_torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmext.ops import (
    choice,
    choose_ops_backend,
    log_backend,
    multi_scale_deform_attn,
)
from mmext.ops.choice import BACKENDS, ORDER, backend_of

DOCS = Path(__file__).parents[2] / 'docs' / 'operators.md'


@pytest.fixture(autouse=True)
def there(monkeypatch) -> set[str]:
    """Nothing chosen, and which back ends there are: a set to change."""
    there = {'pytorch', 'numba', 'deformops', 'compiled'}
    monkeypatch.delenv('MMEXT_OPS', raising=False)
    monkeypatch.setattr(choice, '_chosen', 'auto')
    monkeypatch.setattr(choice, '_logged', set())
    monkeypatch.setattr(
        choice,
        '_missing',
        lambda name, device: None if name in there else 'not here',
    )
    return there


def test_the_first_that_is_there(there):
    assert backend_of('ms_deform_attn', 'cuda') == 'deformops'
    there.remove('deformops')
    assert backend_of('ms_deform_attn', 'cuda') == 'compiled'
    there.remove('compiled')
    assert backend_of('ms_deform_attn', 'cuda') == 'pytorch'
    assert backend_of('ms_deform_attn', 'cpu') == 'numba'
    assert backend_of('ms_deform_attn', 'mps') == 'pytorch'
    assert backend_of('nms', 'cpu') == 'numba'
    there.remove('numba')
    assert backend_of('ms_deform_attn', 'cpu') == 'pytorch'
    there.add('torchvision')
    assert backend_of('nms', 'cpu') == 'pytorch'
    assert backend_of('roi_align', 'cuda') == 'torchvision'
    assert backend_of('soft_nms', 'cuda') == 'pytorch'


@pytest.mark.parametrize('name', ['auto', 'numba', 'pytorch'])
def test_compiled_mmcv_is_what_its_own_operators_have(name, there):
    choose_ops_backend(name)
    assert backend_of('roi_align', 'cpu') == 'compiled'
    assert backend_of('nms', 'cuda') == 'compiled'
    assert backend_of('focal_loss', 'cpu') == 'none'
    there.remove('compiled')
    expected = 'pytorch' if name == 'pytorch' else 'numba'
    assert backend_of('roi_align', 'cpu') == expected
    assert backend_of('nms', 'cuda') == 'pytorch'
    assert backend_of('focal_loss', 'cpu') == 'pytorch'


def test_the_variable_wins_over_the_config(monkeypatch):
    choose_ops_backend('pytorch')
    assert backend_of('ms_deform_attn', 'cpu') == 'pytorch'
    monkeypatch.setenv('MMEXT_OPS', 'compiled')
    assert backend_of('ms_deform_attn', 'cuda') == 'compiled'
    # A device that does not have it goes on as without.
    assert backend_of('ms_deform_attn', 'cpu') == 'numba'


def test_what_was_chosen_must_be_there(there):
    there -= {'numba', 'deformops'}
    for name, device in (('numba', 'cpu'), ('deformops', 'cuda')):
        choose_ops_backend(name)
        with pytest.raises(
            ImportError,
            match=rf'{name} was chosen .* not here; install it .*\[{name}\]',
        ):
            backend_of('ms_deform_attn', device)


def test_unknown_names_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"ops_backend must be .*got 'cuda'"):
        choose_ops_backend('cuda')
    monkeypatch.setenv('MMEXT_OPS', 'cuda')
    with pytest.raises(ValueError, match=r"MMEXT_OPS must be .*got 'cuda'"):
        backend_of('nms', 'cpu')


def test_a_package_that_cannot_be_imported_is_missing(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, 'deformops.registry', None)
    choice._import_error.cache_clear()
    assert 'deformops' in choice._missing('deformops', 'cuda')
    choice._import_error.cache_clear()


def messages(caplog, *calls: tuple) -> list[str]:
    logger = logging.getLogger('test_choice')
    with caplog.at_level(logging.INFO, logger='test_choice'):
        for call, *args in calls:
            call(*args[:-1], logger, *args[-1:])
    return caplog.messages


def test_log_says_what_each_operator_has_once(there, caplog):
    there -= {'compiled', 'deformops'}
    calls = [(log_backend, device) for device in ('cpu', 'cpu', 'cuda')]
    cpu, cuda = messages(caplog, *calls)
    assert cpu.startswith('Operators on cpu: ms_deform_attn, nms, roi_align,')
    assert cpu.endswith(': numba; deform_conv, focal_loss: PyTorch')
    assert cuda == f'Operators on cuda: {", ".join(ORDER)}: PyTorch'


def test_log_says_what_would_be_faster(there, caplog):
    there -= {'compiled', 'numba'}
    (line,) = messages(caplog, (log_backend, 'cpu'))
    assert line.endswith(
        ': PyTorch; pip install "mmext[numba]" makes them faster'
    )


def test_log_says_what_was_chosen(there, caplog):
    choose_ops_backend('pytorch')
    (line,) = messages(caplog, (log_backend, 'cpu'))
    assert 'ms_deform_attn: PyTorch; nms,' in line
    assert 'compiled mmcv; focal_loss: none' in line
    assert line.endswith('(pytorch was chosen)')


def test_kernels_work_where_they_cannot_be_kept(monkeypatch):
    """In a container that can be read only, numba refuses to cache."""
    from mmext.utils import jit

    compile_ = jit.njit

    def njit(*, cache=False, **options):
        if cache:
            raise RuntimeError('cannot cache function: no locator available')
        return compile_(**options)

    monkeypatch.setattr(jit, 'njit', njit)
    assert jit.kernel()(lambda x: x + 1)(1) == 2


@needs_torch(2, 4, why='fake tensors on a GPU that is not there')
def test_deformops_is_called_as_its_registry_wants(monkeypatch):
    """Its package needs a newer Python; fake tensors are on a GPU."""
    seen = []

    def msda(value, shapes, starts, location, weight):
        seen.append([x.shape for x in (value, shapes, starts, location)])
        return value.new_zeros(2, weight.shape[1], 12)

    registry = ModuleType('deformops.registry')
    registry.msda = msda
    monkeypatch.setitem(sys.modules, 'deformops', ModuleType('deformops'))
    monkeypatch.setitem(sys.modules, 'deformops.registry', registry)
    with FakeTensorMode():
        sizes = (2, 5, 3, 4), (1, 2), (1,), (2, 7, 3, 1, 2, 2), (2, 7, 3, 1, 2)
        inputs = [torch.empty(size, device='cuda') for size in sizes]
        out = multi_scale_deform_attn(*inputs)
    assert out.shape == (2, 7, 12)
    assert seen == [[torch.Size(size) for size in sizes[:4]]]


def test_the_documented_order_is_the_order():
    rows = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.split('|')[1:-1]]
        if len(cells) == 3 and cells[0].startswith('`'):
            for name in cells[0].replace('`', '').split(', '):
                rows[name] = cells[1:]
    labels = {name: choice._LABELS[name] for name in BACKENDS[1:]}
    assert rows == {
        operator: [
            ', '.join(labels[name] for name in devices[kind])
            for kind in ('cpu', 'cuda')
        ]
        for operator, devices in ORDER.items()
    }
