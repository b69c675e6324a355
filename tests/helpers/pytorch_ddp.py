"""Run PyTorch's own tests of DDP, which are in its wheel, on a CPU.

``python -m helpers.pytorch_ddp WRAPPER RESULTS [NAME ...]``: WRAPPER is
``pytorch``, ``mmext`` or ``unchecked`` (ours with ``check_gradients=False``).
RESULTS gets a JSON of name -> ``'passed'``, ``'skipped'`` or the error.

Most tests move model and data to the GPU of their rank. Here they stay where
they are, and what remains of the tests is the same for both wrappers.
"""

import inspect
import json
import os
import re
import sys
import tempfile
import time
import traceback
import types
import unittest
from importlib import import_module
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.overrides import TorchFunctionMode

from mmext.engine.distributed import DistributedDataParallel

os.environ |= {
    'BACKEND': 'gloo',
    'WORLD_SIZE': '2',
    'MASTER_ADDR': '127.0.0.1',
    'PYTORCH_PRINT_REPRO_ON_FAILURE': '0',
}
# PyTorch's base class of tests derives from this one; the DDP tests use
# nothing else of it.
sys.modules.setdefault(
    'expecttest', types.SimpleNamespace(TestCase=unittest.TestCase)
)
common = import_module('torch.testing._internal.common_distributed')
# The suites take the decorators along when they are imported.
common.skip_if_lt_x_gpu = lambda *args, **kwargs: lambda function: function
common.skip_if_no_gpu = lambda function: function
_SUITES = 'torch.testing._internal.distributed'
rpc = import_module(f'{_SUITES}.ddp_under_dist_autograd_test')
suite = import_module(f'{_SUITES}.distributed_test')
tensorpipe = import_module(f'{_SUITES}.rpc.tensorpipe_rpc_agent_test_fixture')

_TIMEOUT_S = 120
_BIG, _SMALL = (1, 1, 1000, 1000), (1, 1, 20, 20)


def _host(device):
    """The CPU for a GPU, which may be a number; else the same."""
    is_gpu = type(device) is int or str(device).startswith('cuda')
    return 'cpu' if is_gpu else device


class _OnCpu(TorchFunctionMode):
    """Make tensors on the CPU, and leave them there."""

    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get('device') is not None:
            kwargs['device'] = 'cpu'
        if func is torch.ones and args == _BIG:
            args = _SMALL  # of a convolution, tried 126 times
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            args = (args[0], *map(_host, args[1:]))
        return func(*args, **kwargs)


def _keep_modules_on_cpu():
    move = nn.Module.to

    def to(module, *args, **kwargs):
        return move(module, *map(_host, args), **kwargs)

    def stay(module, *args):
        return module

    def ignore(*args, **kwargs):
        pass

    nn.Module.to, nn.Module.cuda = to, stay
    torch.cuda.set_device = torch.cuda.synchronize = ignore
    torch.cuda.current_device = lambda: 'cpu'


def _wrapper(name):
    """A class in place of PyTorch's, for models on the CPU."""
    base = TorchDDP if name == 'pytorch' else DistributedDataParallel

    class Wrapper(base):
        def __init__(
            self, module, device_ids=None, output_device=None, **kwargs
        ):
            if name == 'unchecked':
                kwargs['check_gradients'] = False
            if 'forward_sync_buffers' not in kwargs:
                # PyTorch's default; in ours it is off.
                kwargs.setdefault('broadcast_buffers', True)
            if base is TorchDDP and kwargs.get('broadcast_buffers') is True:
                del kwargs['broadcast_buffers']  # said to be deprecated
            super().__init__(module, **kwargs)

    # For pickle.
    Wrapper.__qualname__ = Wrapper.__name__ = 'Wrapper'
    return Wrapper


class Distributed(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    pass


class UnderRpc(
    tensorpipe.TensorPipeRpcAgentTestFixture,
    rpc.DdpUnderDistAutogradTest,
    common.MultiProcessTestCase,
):
    pass


class BesideRpc(
    tensorpipe.TensorPipeRpcAgentTestFixture,
    rpc.DdpComparisonTest,
    common.MultiProcessTestCase,
):
    pass


def _uses_ddp(kind, name):
    """Whether a test, or a method that it calls, wraps a model."""
    source = inspect.getsource(inspect.unwrap(getattr(kind, name)))
    called = set(re.findall(r'self\.(_test\w+|_run_\w+)\(', source)) - {name}
    return 'DistributedDataParallel(' in source or any(
        _uses_ddp(kind, other) for other in called
    )


def _tests():
    for kind in (Distributed, UnderRpc, BesideRpc):
        for name in sorted(dir(kind)):
            if name.startswith('test_') and (
                kind is not Distributed or _uses_ddp(kind, name)
            ):
                yield kind, name


def _child(kind, rank, name, file, pipe, log):
    """Run a test in a forked process, and end that process."""
    code = 1
    try:
        for number in (1, 2):
            os.dup2(log, number)
        with _OnCpu():
            kind._run(rank, name, file, pipe)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(kind, name, folder):
    """Run a test on the processes that it needs."""
    if kind is Distributed:
        suite.Barrier.init()
    running, errors, codes = {}, [], []
    for rank in range(int(kind(name).world_size)):
        pipe, other = mp.Pipe()
        log = folder / f'{name}.{rank}'
        with log.open('w') as file:
            pid = os.fork()
            if pid == 0:
                group = str(folder / f'{name}.group')
                _child(kind, rank, name, group, other, file.fileno())
        other.close()
        running[pid] = pipe, log
    end = time.monotonic() + _TIMEOUT_S
    while running:
        for pid, (pipe, log) in list(running.items()):
            if time.monotonic() > end:
                os.kill(pid, 9)
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del running[pid]
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                try:
                    errors.append(pipe.recv())
                except EOFError:
                    errors.append(log.read_text())
        time.sleep(0.02)
    if not any(codes):
        return 'passed'
    skips = {skip.exit_code for skip in common.TEST_SKIPS.values()}
    if skips >= set(codes):
        return 'skipped'
    return f'exit codes {codes}: {errors[0].strip()[-2000:]}'


def main(wrapper, results, *names):
    """Run the tests of these names, by default all that wrap a model."""
    global Wrapper
    Wrapper = _wrapper(wrapper)
    nn.parallel.DistributedDataParallel = Wrapper
    suite.DistributedDataParallel = rpc.DistributedDataParallel = Wrapper
    _keep_modules_on_cpu()
    common.initialize_temp_directories()
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in _tests():
            if not names or name in names:
                outcomes[name] = _run(kind, name, Path(folder))
                print(name, outcomes[name][:60], flush=True)
    common.cleanup_temp_dir()
    Path(results).write_text(json.dumps(outcomes, indent=1))


if __name__ == '__main__':
    main(*sys.argv[1:])
