import copy

import pytest
from mmengine.config import Config
from mmengine.model import BaseModule, PretrainedInit
from torch import nn

from mmext.preflight._weights import drop_init_weights, drop_weights


def pretrained(name):
    return {'type': 'Pretrained', 'checkpoint': name}


def test_drops_all_places_of_weights_and_says_so():
    kaiming = {'type': 'Kaiming', 'layer': 'Conv2d'}
    model = {
        'pretrained': 'open-mmlab://a',
        'backbone': {
            'init_cfg': pretrained('b.pth'),
            'stages': [{'init_cfg': [kaiming, pretrained('c.pth')]}],
        },
        'neck': {'pretrained': True, 'init_cfg': kaiming},
        'teacher_ckpt': 'https://d.pth',
    }
    notes = drop_weights(model)
    assert model == {
        'pretrained': None,
        'backbone': {'stages': [{'init_cfg': [kaiming]}]},
        'neck': {'pretrained': False, 'init_cfg': kaiming},
        'teacher_ckpt': None,
    }
    assert notes == [
        "model.pretrained: weights 'open-mmlab://a' are not loaded",
        "model.backbone.init_cfg: weights 'b.pth' are not loaded",
        "model.backbone.stages.0.init_cfg: weights 'c.pth' are not loaded",
        'model.neck.pretrained: weights True are not loaded',
        "model.teacher_ckpt: weights 'https://d.pth' are not loaded",
    ]


@pytest.mark.parametrize(
    'kind', [PretrainedInit, 'mmengine.model.weight_init.PretrainedInit']
)
def test_drops_what_a_config_of_python_names(kind):
    model = {'init_cfg': {'type': kind, 'checkpoint': 'a.pth'}}
    assert len(drop_weights(model)) == 1
    assert model == {}


def test_drops_weights_without_a_type():
    model = {'backbone': {'init_cfg': {'checkpoint': 'https://a.pth'}}}
    assert drop_weights(model) == [
        "model.backbone.init_cfg: weights 'https://a.pth' are not loaded"
    ]
    assert model == {'backbone': {}}


def test_nothing_to_drop():
    model = {'pretrained': None, 'depth': 50, 'init_cfg': None}
    before = copy.deepcopy(model)
    assert drop_weights(model) == []
    assert model == {k: before[k] for k in ('pretrained', 'depth')}


def test_reads_config_of_teacher_below_a_root(tmp_path):
    folder = tmp_path / 'gfl'
    folder.mkdir()
    (folder / 'teacher.py').write_text(
        "model = dict(type='A', pretrained='x.pth')\n"
    )
    model = {'teacher_config': 'configs/gfl/teacher.py'}
    notes = drop_weights(model, config_roots=(tmp_path,))
    assert isinstance(model['teacher_config'], Config)
    assert model['teacher_config'].model.pretrained is None
    assert notes == [
        'model.teacher_config: read from configs/gfl/teacher.py',
        "model.teacher_config.model.pretrained: weights 'x.pth' are not "
        'loaded',
    ]


def test_rejects_teacher_that_is_not_there(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r'model\.teacher_config must be an existing'
    ):
        drop_weights({'teacher_config': 'no.py'}, config_roots=(tmp_path,))


def test_drops_what_default_arguments_load():
    inner = BaseModule(init_cfg=pretrained('a.pth'))
    inner.pretrained = 'b.pth'
    other = BaseModule(init_cfg={'type': 'Normal', 'layer': 'Linear'})
    model = nn.ModuleDict({'inner': inner, 'other': other})
    assert drop_init_weights(model) == [
        "inner: weights 'a.pth' are not loaded",
        "inner: weights 'b.pth' are not loaded",
    ]
    assert inner.init_cfg is None
    assert inner.pretrained is None
    assert other.init_cfg['type'] == 'Normal'
