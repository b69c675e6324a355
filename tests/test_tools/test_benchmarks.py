"""The benchmarks run, refuse what does not compute the same, and no times."""

import doctest
import importlib
import json
import re
from functools import partial

import pytest
import torch
from helpers.device import needs_device
from helpers.preflight_configs import detector
from helpers.torch_versions import counts_bytes
from helpers.toy_ranks import TOOLS, cells, load_tool, run_on_ranks
from mmengine.config import Config

import mmext
from mmext.ops import choice

pytestmark = pytest.mark.slow

CPU = torch.device('cpu')
TINY_DINO = [
    *('--device', 'cpu', '--image-size', '64', '--embed-dims', '32'),
    *('--layers', '1', '--queries', '5', '--co-queries', '3'),
    *('--repeats', '1'),
]
SMALL_STEP = [
    *('--config', mmext.config_path('co_dino/co_dino_r18_shapes.py')),
    *('--device', 'cpu', '--height', '64', '--width', '96', '--boxes', '2'),
    *('--repeats', '1'),
]
TINY_MAE = [
    *('--arch', 'mini', '--image-size', '32', '--patch-size', '8'),
    *('--batch-size', '2', '--repeats', '1'),
]
TINY_DDP = [
    *('--device', 'cpu', '--repeats', '1', '--tensors', '6', '--size', '32'),
]
NO_MODEL = mmext.config_path('_base_/default_runtime.py')


@pytest.fixture(autouse=True)
def _beside_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS / 'benchmarks'))
    monkeypatch.setenv('COLUMNS', '100')
    monkeypatch.setattr(choice, '_chosen', 'auto')


def load(name):
    return load_tool(f'benchmarks/{name}')


class TestCoDino:
    def test_prints_both_sides_and_their_ratio(self, capsys):
        assert load('co_dino').main(TINY_DINO) == 0
        rows = cells(capsys.readouterr().out)
        assert [row[:2] for row in rows] == [
            ['decoder: one pass | 3 passes', 'ms'],
            ['decoder: one pass | 3 passes', 'MiB'],
            ['encoder: checkpointed | not', 'ms'],
            ['encoder: checkpointed | not', 'MiB'],
        ]
        assert min(float(cell) for row in rows for cell in row[2:]) > 0
        assert float(rows[3][-1]) < 0.3, 'checkpointing kept everything'

    def test_sides_that_differ(self):
        tool, one = load('co_dino'), torch.ones((), requires_grad=True)
        contest = tool.Contest('case', lambda: one * 1, lambda: one * 2)
        with pytest.raises(
            ValueError, match=r"compute the same, got .*2\.0.* for 'case'"
        ):
            tool.measure(contest, CPU, 1)


def test_profile_of_parts(capsys):
    """Each part has a time, and those of the model a limit."""
    argv = [*SMALL_STEP[:2], '--height', '64', '--width', '96']
    assert load('co_dino_profile').main(argv) == 0
    out = capsys.readouterr().out
    for part in ('encoder, ffns', 'decoder, attentions', 'RPN', 'ATSS'):
        assert f'{part} ' in out
    assert 'post-processing' in out
    assert 'optimizer' in out


class TestCoDinoStep:
    @pytest.fixture
    def tool(self):
        """An importable module: its processes look it up by its name."""
        return importlib.import_module('co_dino_step')

    def test_measures_both_sides(self, tool, capsys):
        sides = ['ours', 'ours bf16']
        assert tool.main([*SMALL_STEP, '--sides', *sides]) == 0
        out = capsys.readouterr().out
        rows = {name: row for name, *row in cells(out)}
        assert list(rows) == list(tool.MEASURES)
        assert all(f'loss of {side}: ' in out for side in sides)
        assert all(len(row) == 1 + len(sides) for row in rows.values())
        assert all(float(value) > 0 for value in rows['RSS'][1:])


def test_coco_metric(capsys, monkeypatch):
    tool = load('coco_metric')
    monkeypatch.setattr(tool, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit):
        tool.main([])
    assert 'needs faster-coco-eval' in capsys.readouterr().err
    # Without the package, ours computes as theirs does.
    monkeypatch.setattr(tool, 'find_spec', lambda name: True)
    assert tool.main(['--images', '4', '--repeats', '1']) == 0
    number = r'\d+\.\d\d'
    assert re.fullmatch(
        rf'4 images: ours {number} s, theirs {number} s, ratio {number}, '
        r'mAP 0\.\d+ of both\n',
        capsys.readouterr().out,
    )


@needs_device
def test_cuda_step(tmp_path):
    """On a CPU; a config that cannot be built does not end the others."""
    model = mmext.config_path('pidnet/pidnet_small_shapes.py')
    file = tmp_path / 'rows.json'
    options = ['--device', 'cpu', '--batch-size', '2', '--json', str(file)]
    # Its processes look it up by its name.
    tool = importlib.import_module('cuda_step')
    assert tool.main([NO_MODEL, model, *options]) == 1
    failed, row = json.loads(file.read_text())
    assert failed['config'] == NO_MODEL
    assert 'config must have a model' in failed['error']
    assert row['batch_size'] == 2
    assert row['allocated'] > row['weights'] > 0
    assert (row['waits'], row['places']) == (0, {}), 'PIDNet waits nowhere'


def test_mae(capsys):
    """Ours alone: the other sides need environments of their own."""
    assert load('mae').main(TINY_MAE) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [['step', 'ms'], ['step', 'MiB']]
    assert all(float(row[2]) > 0 for row in rows)


class TestDDPWrapper:
    @pytest.fixture
    def tool(self, monkeypatch):
        module = load('ddp_wrapper')
        monkeypatch.setattr(module, 'VOTES', 2)
        monkeypatch.setattr(module, 'SMALL_FACTOR', 1)
        thin = partial(module.ResNet, base_channels=4, stem_channels=4)
        monkeypatch.setattr(module, 'ResNet', thin)
        return module

    def test_first_rank_prints_all_models(self, tool, tmp_path):
        models = ['small', 'resnet', 'co-dino']
        args = tool.make_parser().parse_args([*TINY_DDP, '--models', *models])
        ranks = run_on_ranks(lambda: tool.run(args, CPU), 2, tmp_path / 'out')
        assert ranks.wait() == [0, 0], ranks.output()
        first, second = ranks.output(0), ranks.output(1)
        rows = cells(first)
        assert [row[0] for row in rows] == [m for m in models for _ in '12']
        assert [row[2] for row in rows] == ['False', 'True'] * len(models)
        assert [row[1] for row in rows[:3]] == ['6', '6', '159']
        assert all(float(cell) > 0 for row in rows for cell in row[3:])
        assert 'DDP wrappers, 2 processes, gloo' in first
        assert 'vote alone: ' in first
        assert cells(second) == []

    def test_wrappers_that_differ(self, tool, tmp_path, monkeypatch):
        class Other(tool.MMDistributedDataParallel):
            def train_step(self, data: dict, optim_wrapper: object) -> dict:
                logged = super().train_step(data, optim_wrapper)
                return {'loss': logged['loss'] + 1}

        monkeypatch.setattr(tool, 'MMDistributedDataParallel', Other)
        args = tool.make_parser().parse_args([*TINY_DDP, '--models', 'small'])

        def run() -> None:
            with pytest.raises(ValueError, match=r'the same loss, got .*sma'):
                tool.run(args, CPU)

        ranks = run_on_ranks(run, 1, tmp_path / 'out')
        assert ranks.wait() == [0], ranks.output()


class TestLabelCheck:
    SMALL = ('--files=2', '--height=96', '--width=128', '--rounds=1')

    def run(self, tmp_path, *options):
        file = tmp_path / 'times.json'
        argv = [*self.SMALL, *options, '--json', str(file)]
        assert load('label_check').main(argv) == 0
        return json.loads(file.read_text())

    def test_maps_and_coco(self, capsys, tmp_path):
        written = self.run(
            tmp_path, '--annotations', '40', '--only', 'maps', 'coco'
        )
        printed = capsys.readouterr().out
        assert list(written) == ['maps', 'coco']
        assert list(written['maps']) == ['grey', 'palette', 'noise']
        for row in (*written['maps'].values(), written['coco']):
            ratios = [name for name in row if name.endswith(' / ours')]
            assert ratios
            for name in ratios:
                other = row[name.removesuffix(' / ours')]
                assert row[name] == pytest.approx(other / row['ours'])
                assert f'{row[name]:,.4f}' in printed


class TestOps:
    def test_prints_a_line_for_a_shape(self, capsys, monkeypatch):
        tool = load('ops')
        few = [tool.attention_case(3), *list(tool.nms_cases())[:1]]
        monkeypatch.setattr(tool, 'all_cases', lambda: few)
        # Both sides get the same answer.
        for case in few:
            one, other = (f(*case.inputs) for f in (case.run, case.naive))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert tool.main(['--repeats', '1']) == 0
        rows = cells(capsys.readouterr().out)
        assert [row[0] for row in rows] == [case.op for case in few]
        assert all(len(row) == 8 for row in rows)


class TestOptimizer:
    @pytest.fixture
    def argv(self, tmp_path):
        base = mmext.config_path('co_dino/co_dino_r18_shapes.py')
        (tmp_path / 'config.py').write_text(
            f'_base_ = {base!r}\noptim_wrapper = dict(paramwise_cfg='
            'dict(_delete_=True, norm_decay_mult=0.0))\n'
        )
        config = str(tmp_path / 'config.py')
        return ['--config', config, '--repeats', '1', '--device', 'cpu']

    def test_prints_all_ways(self, argv, capsys):
        assert load('optimizer').main(argv) == 0
        rows = cells(capsys.readouterr().out)
        ways = ['single', 'merged', 'foreach', 'default']
        assert [row[0] for row in rows] == ways
        groups = [int(row[1]) for row in rows]
        assert groups[0] > 100
        assert groups[1:] == [2, 2, 2]
        assert [row[2] for row in rows] == ['no', 'no', 'no', 'yes']
        assert all(float(row[4]) > 0 for row in rows)
        assert float(rows[1][5]) == 0
        assert float(rows[3][5]) <= 1e-6


@counts_bytes
def test_the_example_of_tensor_peak():
    failed, tried = doctest.testmod(load('live_bytes'))
    assert tried
    assert not failed


@pytest.fixture
def write_config(tmp_path):
    """Write a config; give its path."""

    def write(name='retinanet_r18', **options):
        path = tmp_path / f'{name}.py'
        Config(detector(**options)).dump(path)
        return path

    return write


def test_tries_configs_and_writes_what_it_found(
    write_config, tmp_path, capsys
):
    good = write_config('good')
    bad = write_config('bad', model={'type': 'NoSuchModel'})
    table, rows = tmp_path / 'table.md', tmp_path / 'rows.json'
    code = load('preflight_sweep').main(
        [
            *('--configs', str(good), str(bad)),
            *('--kinds', 'normal', 'empty'),
            *('--table', str(table), '--json', str(rows)),
        ]
    )
    assert code == 1
    assert '1 of 2 configs' in capsys.readouterr().out
    first, second = json.loads(rows.read_text())
    assert first['result'] == 'ok'
    assert first['task'] == 'detection'
    assert set(first['unused']) == {'normal', 'empty'}
    assert first['unused']['normal'] == 0
    assert second['result'].startswith('the model was not built: ')
    assert 'TYPE001!' in second['findings']
    assert first['setting'] == 'plain'
    assert 'NoSuchModel' in second['result']
    assert len(table.read_text().splitlines()) == 4
    assert '| normal 0, empty 0 |' in table.read_text()
