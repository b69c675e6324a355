"""From the settings of a preflight to its report and exit code."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import mmext
from mmext.preflight.findings import PreflightFinding, Severity
from mmext.preflight.run_preflight import (
    _of_proof,
    preflight,
    run_preflight,
)
from mmext.preflight.settings import PreflightSettings

SMALL = {'batches': ('normal',), 'image_size': (64, 64)}


@pytest.fixture
def clean() -> str:
    return mmext.config_path('pidnet/pidnet_small_shapes.py')


@pytest.fixture
def child(clean, tmp_path):
    """Write a config that inherits the clean one."""

    def write(text: str) -> str:
        path = tmp_path / 'child.py'
        path.write_text(f'_base_ = {str(clean)!r}\n{text}\n')
        return str(path)

    return write


def run(config: str, **options) -> tuple[int, str]:
    out = io.StringIO()
    settings = PreflightSettings(config=config, **{**SMALL, **options})
    code = run_preflight(settings, Console(file=out, width=300))
    return code, out.getvalue()


def test_clean(clean, tmp_path):
    code, text = run(clean, json=tmp_path / 'a.json', html=tmp_path / 'a.html')
    assert code == 0
    assert '0 errors, 0 warnings' in text
    assert 'not done labels were not checked' in text
    written = json.loads((tmp_path / 'a.json').read_bytes())
    assert written['task'] == 'semantic'
    assert [each['kind'] for each in written['batches']] == ['normal']
    rows = written['verdicts']['rows']
    assert [row['works'] for row in rows if row['current']] == [True]
    assert b'Preflight' in (tmp_path / 'a.html').read_bytes()


def test_num_classes_off_by_one(child):
    config = child('model = dict(decode_head=dict(num_classes=6))')
    code, text = run(config)
    assert code == 1
    assert 'num_classes' in text
    assert 'child.py:2' in text


def test_an_unused_layer(child, tmp_path, monkeypatch):
    """It is named, and a flag mends it, be it at a cost."""
    model = tmp_path / 'lonely_layer.py'
    model.write_text(
        'from mmseg.models import EncoderDecoder\n'
        'from mmseg.registry import MODELS\n'
        'from torch import nn\n'
        '@MODELS.register_module(force=True)\n'
        'class LonelyLayer(EncoderDecoder):\n'
        '    def __init__(self, **kwargs):\n'
        '        super().__init__(**kwargs)\n'
        '        self.lonely = nn.Linear(2, 2)\n'
    )
    config = child(
        "custom_imports = dict(imports=['lonely_layer'])\n"
        "model = dict(type='mmseg.LonelyLayer')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, text = run(config, fix=Path(''))
    assert code == 1
    assert 'error DDP001 2 trainable parameters in lonely' in text
    assert 'never used in forward' in text
    # With the flag it would run; that it is unused is still worth a warning.
    code, text = run(str(tmp_path / 'child_fixed.py'))
    assert code == 0
    assert 'warning DDP001' in text


def test_reentrant_checkpoints_are_mended(tmp_path, monkeypatch):
    """The hook that the written config has is part of what is proved."""
    (tmp_path / 'two_views.py').write_text(
        'from mmdet.models import RetinaNet\n'
        'from mmdet.registry import MODELS\n'
        '@MODELS.register_module(force=True)\n'
        'class TwoViews(RetinaNet):\n'
        '    def loss(self, inputs, data_samples):\n'
        '        one = super().loss(inputs, data_samples)\n'
        '        two = super().loss(inputs.flip(-1), data_samples)\n'
        "        return {**one, **{f'{k}_flip': two[k] for k in two}}\n"
    )
    base = mmext.config_path('retinanet/retinanet_r50_fpn_cp_8xb2_1x_coco.py')
    config = tmp_path / 'two.py'
    config.write_text(
        f'_base_ = {str(base)!r}\n'
        "custom_imports = dict(imports=['two_views'])\n"
        'default_hooks = dict(activation_checkpoint=None)\n'
        "model = dict(type='mmdet.TwoViews', backbone=dict(depth=18, "
        'base_channels=4, stem_channels=4, with_cp=True, frozen_stages=-1), '
        'neck=dict(in_channels=[4, 8, 16, 32]))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, text = run(str(config), fix=Path(''))
    assert code == 1
    assert 'error DDP002 marked ready twice' in text
    code, text = run(str(tmp_path / 'two_fixed.py'))
    assert code == 0
    assert '8 modules are checkpointed, 8 were reentrant' in text


def test_a_needless_flag_is_mended(child, tmp_path):
    config = child('find_unused_parameters = True')
    code, text = run(config, fix=Path(''), fail_on='warning')
    assert code == 1
    assert 'find_unused_parameters' in text
    fixed = tmp_path / 'child_fixed.py'
    assert run(str(fixed), fail_on='warning')[0] == 0
    with pytest.raises(FileExistsError, match='--fix must name a new file'):
        run(config, fix=Path(''))


def test_a_model_that_cannot_be_built(child):
    code, text = run(child("model = dict(backbone=dict(type='NoSuchNet'))"))
    assert code in (1, 2)
    assert 'not done the model was not built' in text
    assert 'NoSuchNet' in text


def test_all_is_told(clean):
    """What is being done is told; a config that is no file will do."""
    from mmengine.config import Config

    told = []
    settings = PreflightSettings(config='mine', labels=False, **SMALL)
    report = preflight(settings, Config.fromfile(clean), told.append)
    assert report.config == 'mine'
    assert report.not_done == ()
    assert told[0] == 'building the model'
    assert 'training 2 steps of normal' in told


@pytest.mark.slow
def test_two_processes(clean):
    code, text = run(clean, world=2)
    assert code == 0
    assert 'real processes agree' in text


def test_overflow_with_random_weights_is_no_error():
    finding = PreflightFinding(
        rule='STEP003', severity=Severity.ERROR, message='m', remedy='r'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            'mmext.preflight.run_preflight.proof_findings',
            lambda proof, current: [finding],
        )
        own = _of_proof(None, None, ['SyncBN are BN'])
        random = _of_proof(None, None, ["model: weights 'x' are not loaded"])
    assert own == [finding]
    assert random[0].severity is Severity.WARNING
    assert random[0].message == 'm; the weights are random here'
