"""A child config that changes its base in place."""

from pathlib import Path

import pytest
from mmengine.config import Config
from torch import nn

from mmext.checks.config import ConfigDraft, Variable
from mmext.checks.config.child import config_lines

BASE = """
names = [dict(a=1, b=dict(c=2, d=3)), dict(a=4)]
loader = dict(dataset=dict(type='Old', prefix=dict(img='x')))
other = dict(k=1)
"""


def read(draft: ConfigDraft, folder: Path) -> Config:
    (folder / 'base.py').write_text(BASE)
    child = folder / 'child.py'
    text = draft.text('base.py', 'What it is, ' * 9)
    assert max(map(len, text.splitlines())) <= 79
    child.write_text(text)
    return Config.fromfile(child)


def test_values_arrive(tmp_path):
    draft = ConfigDraft({})
    classes = tuple(f'class {{{{{number}}}}}' for number in range(20))
    draft.variables = {'classes': classes, 'own': {'type': 'New'}}
    draft.variables['single'] = ('a',)
    draft.set(('names', 0), a=5)
    draft.set(('names', 0), b={'c': 7})
    draft.drop(('loader', 'dataset', 'prefix'))
    draft.update(('loader', 'dataset'), 'own', classes=Variable('classes'))
    draft.do('_base_.names[1].a += 1')
    draft.assign('other', {'n': None})
    draft.set(('new', 'deep'), value=float('inf'))
    draft.comments['new'] = 'Why.'
    cfg = read(draft, tmp_path)
    assert cfg.classes == classes
    assert cfg.single == ('a',)
    # A dict is merged.
    assert cfg.names == [dict(a=5, b=dict(c=7, d=3)), dict(a=5)]
    assert cfg.loader == dict(dataset=dict(type='New', classes=classes))
    assert cfg.other == dict(n=None)
    assert cfg.new.deep.value == float('inf')
    text = (tmp_path / 'child.py').read_text()
    # One statement for both.
    assert text.count('_base_.names[0]') == 1
    assert '# Why.\nnew = ' in text


def test_what_is_no_value_of_a_config():
    draft = ConfigDraft({})
    draft.set(('names', 0), a=object())
    with pytest.raises(TypeError, match='must be of dicts'):
        draft.text('base.py', 'It.')


def test_lines_are_a_config():
    settings = {
        'a': {'b': [{'c': (1, 2.5)}, None], 'not a name': {'d': 'e'}},
        'kind': {'type': nn.Linear},
        'hooks': [{'type': 'A', 'modules': ['neck']}],
    }
    read = Config.fromstring(config_lines(settings), '.py').to_dict()
    settings['kind']['type'] = 'torch.nn.modules.linear.Linear'
    assert read == settings
