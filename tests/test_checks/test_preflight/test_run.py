"""From the settings of a preflight to its report and exit code."""

import io
import json
import warnings
from pathlib import Path

import pytest
from helpers.device import needs_device
from helpers.preflight_reports import sample_report
from helpers.reduce_semantic_config import reduce_model
from mmengine.config import Config
from mmseg.models import EncoderDecoder
from rich.console import Console
from torch import nn

import mmext
from mmext.checks.findings import Severity
from mmext.checks.preflight.first_steps import fit_batch_size
from mmext.checks.preflight.report import PreflightReport, report_html
from mmext.checks.preflight.run import check_config, run_preflight

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
    console = Console(file=out, width=300)
    code = run_preflight(config, console=console, **{**SMALL, **options})
    return code, out.getvalue()


def test_clean(clean, tmp_path):
    code, text = run(clean, json=tmp_path / 'a.json', html=tmp_path / 'a.html')
    assert code == 0
    assert '0 errors, 0 warnings' in text
    assert 'incomplete: labels were not checked' in text
    written = json.loads((tmp_path / 'a.json').read_bytes())
    assert written['task'] == 'semantic'
    (batch,) = written['batches']
    assert (batch['kind'], batch['steps']) == ('normal', 2)
    # What is logged beside the losses is none.
    assert all('loss' in name for name in batch['losses'])
    assert batch['losses']
    rows = written['verdicts']['rows']
    assert [row['works'] for row in rows if row['current']] == [True]
    assert b'Preflight' in (tmp_path / 'a.html').read_bytes()


def test_a_config_of_an_evaluation(child):
    none = '\n'.join(
        f'{name} = None'
        for name in (
            *('train_cfg', 'train_dataloader', 'optim_wrapper'),
            'param_scheduler',
        )
    )
    code, text = run(child(none))
    # Nothing was proved.
    assert code == 2
    assert 'no step was run: the config has no training' in text


def test_what_is_printed_and_warned_meanwhile(clean, monkeypatch, capfd):
    """The verdict is first; all of it is in the report."""

    def noisy(*args, **kwargs):
        print('loading annotations into memory...')
        print('loading annotations into memory...')
        warnings.warn('old_key is deprecated', stacklevel=1)
        return PreflightReport(config='a.py', batches=sample_report().batches)

    monkeypatch.setattr('mmext.checks.preflight.run.check_config', noisy)
    _, text = run(clean)
    assert text.startswith('a.py can be trained')
    assert 'warned meanwhile: UserWarning: old_key is deprecated (' in text
    assert 'loading' not in text
    _, text = run(clean, verbose=True)
    assert text.count('  note: printed: loading annotations into mem') == 1
    printed = capfd.readouterr()
    assert printed.out == printed.err == ''

    def failing(*args, **kwargs):
        print('where it was')
        raise KeyError('x')

    monkeypatch.setattr('mmext.checks.preflight.run.check_config', failing)
    with pytest.raises(KeyError):
        run(clean)
    assert capfd.readouterr().err == 'where it was\n'


@pytest.mark.slow
def test_a_needless_flag_is_left_alone(child, tmp_path):
    """Batches that were not tried may need it."""
    config = child('find_unused_parameters = True')
    code, text = run(config, fix=Path(''), fail_on='warning')
    assert code == 1
    assert 'find_unused_parameters' in text
    assert 'no config was written' in text
    fixed = tmp_path / 'child_fixed.py'
    fixed.touch()
    with pytest.raises(FileExistsError, match='--fix must name a new file'):
        run(config, fix=Path(''))


@pytest.mark.slow
def test_progress_is_reported(clean):
    """What is being done is reported; a config that is no file will do."""
    done = []
    cfg = Config(Config.fromfile(clean).to_dict())
    report = check_config(cfg, labels=False, progress=done.append, **SMALL)
    assert report.config == 'config'
    assert report.not_done == ()
    assert done[0] == 'building the model'
    assert 'training 2 steps of normal' in done


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'a.py'
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'batches': ('odd',)}, r"batches must be some of .*\['odd'\]"),
        ({'steps': 1}, 'steps must be at least 2.* got 1'),
        ({'batch_size': -1}, 'batch_size must be at least 1.* got -1'),
        ({'world': 1}, 'world must be 2 or more processes.* got 1'),
        ({'image_size': (0, 8)}, 'image_size must be two positive'),
        ({'gpu_memory': 0}, 'gpu_memory must be more than 0 GiB, got 0'),
    ],
)
def test_rejects(config, settings, message):
    with pytest.raises(ValueError, match=message):
        check_config(config, **settings)


def test_rejects_a_config_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='config must be an existing'):
        check_config(tmp_path / 'none.py')
    with pytest.raises(ValueError, match='config must be a file for world'):
        check_config(Config({}), world=2)


def examine(cfg: Config, **options):
    """The report of a config, and what was said to be done."""
    done = []
    options = {'batches': ('normal',), 'labels': False, **options}
    return check_config(cfg, progress=done.append, **options), done


def small_config() -> Config:
    return Config.fromfile(mmext.config_path('pidnet/pidnet_small_shapes.py'))


def test_batch_size():
    class Frozen(nn.BatchNorm2d):
        def train(self, mode=True):
            return super().train(False)

    assert fit_batch_size(nn.Sequential(nn.GroupNorm(1, 2), Frozen(2))) == 1
    assert fit_batch_size(nn.Sequential(Frozen(2), nn.BatchNorm2d(2))) == 2
    assert fit_batch_size(nn.GroupNorm(2, 2)) == 2


@pytest.mark.slow
@needs_device
def test_rehearses(monkeypatch):
    """The batch of the training, and what would fit."""
    cfg = small_config()
    cfg.train_dataloader.batch_size = 4
    settings = dict(image_size=(64, 64), rehearse=True)
    report, done = examine(cfg, **settings)
    step = report.rehearsal
    assert step.batch_size == 4
    assert step.size == (64, 64)
    assert sum(step.parts.values()) == step.peak < step.most
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ('GPU003', Severity.INFO)
    page = report_html(report).decode()
    assert 'A step on a GPU' in page
    assert f'{step.peak / 2**30:,.2f} GiB' in page
    # Between both ends, it may not fit.
    limit = (step.peak + step.most) / 2**31
    report, done = examine(cfg, gpu_memory=limit, **settings)
    (finding,) = report.findings
    assert finding.severity is Severity.WARNING
    others = [text for text in done if text.startswith('rehearsing it with')]
    for text in others:
        assert text.removeprefix('rehearsing it with ') in finding.remedy
    assert len(others) == 3
    assert 'it fails with ValueError' in finding.remedy
    monkeypatch.setattr(
        'mmext.checks.preflight.run.is_available', lambda: False
    )
    report, _ = examine(cfg, **settings)
    assert report.rehearsal is None
    assert any('it needs PyTorch 2.13' in text for text in report.not_done)


@pytest.mark.slow
def test_once_more_with_the_size_of_the_training(monkeypatch):
    """A layer that needs more than small pictures have."""
    forward = EncoderDecoder.extract_feat

    def picky(self, inputs):
        if inputs.shape[-1] < 256:
            raise RuntimeError('Output size is too small')
        return forward(self, inputs)

    monkeypatch.setattr(EncoderDecoder, 'extract_feat', picky)
    cfg = Config.fromfile(mmext.config_path('pidnet/pidnet_s_camvid.py'))
    model = cfg.to_dict()['model']
    cfg.model = reduce_model(model)
    cfg.model.data_preprocessor = model['data_preprocessor']
    report, done = examine(cfg)
    assert [batch.steps for batch in report.batches] == [2]
    said = 'are too small for it (Output size is too small); they have'
    assert any(f'{said} (320, 320)' in note for note in report.notes)
    assert any(text.startswith('once more') for text in done)
    # What was asked for is not changed.
    report, _ = examine(cfg, image_size=(64, 64))
    assert [batch.steps for batch in report.batches] == [0]
    assert any('too small' in finding.message for finding in report.findings)
