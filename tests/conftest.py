"""Fixtures of the whole suite: seeds, device, data that may be absent."""

import gc
import os

# Before torch is loaded: the tests are many and small, and two processes of
# a distributed test share the cores.
os.environ.setdefault('OMP_NUM_THREADS', '1')

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.managed_kinds import managed_kinds
from mmengine.dataset import base_dataset
from mmengine.logging import MMLogger

import mmext  # noqa: F401  (makes mmdet importable without compiled ops)

CHECKOUT = Path(__file__).resolve().parents[1]

# The sample downstream project is copied and run, never collected.
# Helpers are imported by name, never collected as doctests: pytest would
# import them a second time.
collect_ignore = ['downstream_project', 'helpers', 'reference']

torch.set_num_threads(1)


def pytest_configure() -> None:
    """Link what ``mmext::`` reads, as an editable install does."""
    mim = CHECKOUT / 'mmext' / '.mim'
    mim.mkdir(exist_ok=True)
    for name in ('configs', 'tools', 'model-index.yml'):
        if not (mim / name).exists():
            # Another worker may be first.
            with suppress(FileExistsError):
                (mim / name).symlink_to(Path('..', '..', name))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With several workers: the tests of a file stay together.

    All files that have tests in the group ``processes`` go to one worker, so
    that two tests with processes of their own do not starve each other.
    pytest-xdist's own groups have no effect with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split('::')[0]
            return 'processes' if _starts_processes(file) else file

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with processes and clocks of their own get a second try.

    On a busy machine one of them may be late. The summary lists those that
    were run again.
    """
    for item in items:
        if item.get_closest_marker('xdist_group') is not None:
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_collection_finish() -> None:
    """Spare what is imported from collections of garbage."""
    gc.freeze()


@cache
def _starts_processes(file: str) -> bool:
    return "xdist_group('processes')" in (CHECKOUT / file).read_text()


@pytest.fixture(scope='session', autouse=True)
def _quick_hosts() -> Iterator[None]:
    """What MMEngine does that takes long and changes nothing.

    It formats configs, a second for a large one, and collects garbage for each
    data set, half a second.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_dataset, 'gc', SimpleNamespace(collect=int))
        for name in ('yapf.yapflib.yapf_api', 'mmengine.config.config'):
            patch.setattr(
                f'{name}.FormatCode',
                lambda text, **options: (text, True),
                raising=False,
            )
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Same random numbers in every test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """A numpy generator of the test's own, seeded."""
    return np.random.default_rng(0)


@pytest.fixture
def generator() -> torch.Generator:
    """A torch CPU generator of the test's own, seeded."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(
    params=['cpu', *(['cuda'] if torch.cuda.is_available() else [])]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device that is here; the CPU always."""
    return torch.device(request.param)


@pytest.fixture(scope='session')
def checkout() -> Path:
    """Root of the source checkout that holds these tests."""
    return CHECKOUT


@pytest.fixture(scope='session')
def shared_path() -> Callable[[str], Path]:
    """Find data beside the checkout, or skip the test that needs it."""

    def find(name: str) -> Path:
        path = CHECKOUT.parent / 'shared' / name
        if not path.exists():
            pytest.skip(f'needs ../shared/{name} beside the checkout')
        return path

    return find


def _given_back(kinds: list[type]) -> Iterator[None]:
    before = {kind: kind._instance_dict.copy() for kind in kinds}
    yield
    for kind, instances in before.items():
        kind._instance_dict.clear()
        kind._instance_dict.update(instances)


@pytest.fixture(autouse=True)
def _own_loggers() -> Iterator[None]:
    """Drop the loggers of a test, which write to a console that is closed.

    A runner of the next test that starts in the same second would have the
    same name, and its logger.
    """
    yield from _given_back([MMLogger])


@pytest.fixture
def clean_globals() -> Iterator[None]:
    """Give back what a Runner registers process-wide."""
    yield from _given_back(managed_kinds())
