"""What hosts say while they are imported is dropped; the rest is not."""

import logging
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from mmext.utils.quiet_hosts import (
    collected_warnings,
    defer_imports,
    quiet_imports,
)

HOST = """
import logging, warnings
from mmengine.logging import print_log
import {inner}
print_log('Could not import this', level=logging.DEBUG)
warnings.warn('deprecated inside of a host')

def build(cfg):
    warnings.warn(f'{{cfg}} is deprecated')
"""


class Warns(nn.Module):
    """A module that does not like its input."""

    def forward(self, inputs):
        warnings.warn('odd size', stacklevel=1)
        return inputs


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Packages of the names of a host, and of none, that warn."""
    (tmp_path / 'mmrotate.py').write_text(HOST.format(inner='some_library'))
    (tmp_path / 'my_models.py').write_text(
        "import warnings\nimport mmrotate\nwarnings.warn('mine')\n"
    )
    (tmp_path / 'some_library.py').write_text(
        "import warnings\nwarnings.warn('of a library', DeprecationWarning)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ('mmrotate', 'my_models', 'some_library'):
        sys.modules.pop(name, None)


def test_warnings_of_an_import_are_dropped(host, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter('always')
        quiet_imports()
        with collected_warnings() as texts:
            import my_models  # noqa: F401
            from mmrotate import build

            # About the config of the user, even if a host says it.
            build('old_key')
            build('old_key')
            nn.Sequential(Warns())(torch.zeros(1))
    assert list(texts.values()) == [False, False, True]
    mine, about, _ = texts
    assert mine.startswith('UserWarning: mine (')
    assert mine.endswith('my_models.py:3)')
    assert about.startswith('UserWarning: old_key is deprecated (')
    printed = capsys.readouterr()
    assert printed.out == printed.err == ''


def test_other_warnings_are_shown_as_before(host, monkeypatch):
    shown = []
    monkeypatch.setattr(
        'mmext.utils.quiet_hosts._show_warning',
        lambda message, *args, **kwargs: shown.append(str(message)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter('always')
        quiet_imports()
        import my_models  # noqa: F401
    assert shown == ['mine']


def test_debug_messages_need_a_logger(capsys):
    quiet_imports()
    from mmengine.logging import print_log

    print_log('debug', level=logging.DEBUG)
    assert capsys.readouterr().out == ''
    print_log('shown', level=logging.INFO)
    assert capsys.readouterr().out == 'shown\n'


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A package that prints when it runs, and a module that cannot."""
    (tmp_path / 'shop' / 'toys').mkdir(parents=True)
    (tmp_path / 'shop' / '__init__.py').touch()
    (tmp_path / 'shop' / 'toys' / '__init__.py').write_text(
        "print('toys run')\nfrom .bears import count\n"
    )
    (tmp_path / 'shop' / 'toys' / 'bears.py').write_text('count = 3')
    (tmp_path / 'shop' / 'broken.py').write_text('1 / 0')
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith('shop')]:
        del sys.modules[name]


@pytest.mark.parametrize('first', ['count', 'bears'])
def test_deferred_modules_run_at_first_use(shop, capsys, first):
    names = ['shop.toys', 'no_such_shop.toys', 'shop.no_such', 'torch']
    defer_imports(names)
    import shop.toys as toys

    # A look that inspect takes at all modules.
    assert toys.__file__.endswith('__init__.py')
    assert not hasattr(toys, '__wrapped__')
    assert capsys.readouterr().out == ''
    if first == 'count':
        assert toys.count == 3
    from shop.toys.bears import count

    assert capsys.readouterr().out == 'toys run\n'
    assert count == toys.count == 3
    assert sys.modules['shop.toys'] is toys
    assert sys.modules['torch'] is torch
    assert 'no_such_shop' not in sys.modules


LOOKS = """
import sys
import mmext.utils.quiet_hosts as quiet
quiet.defer_hosts()
from mmdet.datasets.coco import CocoDataset
from mmdet.registry import DATASETS, TRANSFORMS
assert 'mmdet.datasets.voc' not in sys.modules
assert 'mmengine.runner' not in sys.modules
assert quiet.deferred_names('mmdet.datasets')['VOCDataset'].endswith('.voc')
quiet.defer_hosts()
assert 'mmdet.datasets.voc' not in sys.modules
{look}
import mmdet.datasets
assert mmdet.datasets.coco.CocoDataset is CocoDataset
assert DATASETS.get('CocoDataset') is CocoDataset
assert TRANSFORMS.get('RandomFlip').__module__.startswith('mmdet.')
assert quiet.deferred_names('mmdet.datasets') == {{}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    'look',
    [
        "assert DATASETS.get('mmseg.ADE20KDataset')",
        'from mmdet.datasets import *; VOCDataset',
    ],
)
def test_hosts_run_when_somebody_asks_for_their_names(look):
    subprocess.run([sys.executable, '-c', LOOKS.format(look=look)], check=True)


def test_a_deferred_module_that_cannot_run_is_imported_anew(shop):
    defer_imports(['shop.broken'])
    import shop.broken

    with pytest.raises(ZeroDivisionError):
        _ = shop.broken.anything
    assert 'shop.broken' not in sys.modules
