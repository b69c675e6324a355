"""Every rule finds its fault through the tool: rule, location, exit code."""

import json
import sys
from pathlib import Path

import pytest
from helpers.lint_findings import lint
from helpers.preflight_plants import PLANTS, Plant, write_plant
from helpers.toy_ranks import load_tool
from mmengine.config import Config

from mmext.checks.findings import Severity
from mmext.checks.labels.rules import RULES as LABEL_RULES
from mmext.checks.preflight.rules.registry import RULES

SMALL = ('--batches', 'normal', '--image-size', '64', '64', '--no-labels')
# Variables that change what is found.
OF_LAUNCHERS = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT')


def test_every_rule_is_planted():
    planted = [plant.rule for plant in PLANTS]
    assert len(set(planted)) == len(planted)
    both = {rule.id for rule in LABEL_RULES.values() if rule.in_preflight}
    assert set(planted) == set(RULES) | both


def arguments(plant: Plant, folder: Path) -> list[str]:
    config = write_plant(plant, folder)
    argv = [str(config), *SMALL, '--json', str(folder / 'report.json')]
    return [*argv, plant.argv] if plant.argv else argv


def read_findings(folder: Path) -> list[dict]:
    report = json.loads((folder / 'report.json').read_bytes())
    findings = report['findings']
    return [{**finding, **finding.get('location', {})} for finding in findings]


@pytest.fixture
def environ(monkeypatch):
    """Variables of no launcher; the tool hides GPUs by one more."""
    for name in OF_LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    # Given back in the end, whatever the tool sets.
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    # Whether weights of torchvision can be loaded must not depend on it.
    monkeypatch.setitem(sys.modules, 'torchvision', None)
    return monkeypatch


# Rules whose plant --fix mends; of the others the meaning is not certain, or
# it takes more than a config.
MENDED = {
    *('ARG001', 'ARG002', 'CKPT004', 'CKPT010', 'DATA001', 'DATA002'),
    *('DATA003', 'DATA004', 'DATA005', 'DATA007', 'DATA008', 'DATA009'),
    *('DDP001', 'DDP002', 'DDP007', 'DDP008', 'DDP009', 'EVAL002'),
    *('EVAL004', 'HEAD006', 'HEAD007', 'HOOK001', 'IGN002', 'IGN005'),
    *('IGN006', 'KEY001', 'KEY003', 'KEY005', 'LOOP004', 'LOSS002'),
    *('LOSS006', 'LOSS007', 'OPT006', 'PIPE001', 'PIPE006', 'PIPE008'),
    *('SCHED001', 'SCHED008'),
    # By the flag of DDP001, which it is a consequence of.
    'STEP005',
}
# Of some families one plant each is found in the default tests.
QUICK = ('DDP001', 'KEY001')


@pytest.mark.filterwarnings('ignore:None of the inputs have requires_grad')
@pytest.mark.parametrize(
    'plant',
    [
        plant
        if plant.rule in QUICK
        else pytest.param(plant, marks=pytest.mark.slow)
        for plant in PLANTS
    ],
    ids=[plant.rule for plant in PLANTS],
)
def test_is_found(plant, tmp_path, environ, capsys):
    """And mended, where that is certain, by ``--fix``; else that says so."""
    if plant.environ:
        environ.setenv(*plant.environ.split('='))
    new, mended = tmp_path / 'new.py', plant.rule in MENDED
    argv = [*arguments(plant, tmp_path), '--fix', str(new)]
    if not mended:
        argv += ['--fail-on', plant.severity]
    code = load_tool('preflight').main(argv)
    said = 'no config was written' in capsys.readouterr().out
    assert (code, said) == (not mended, not mended), read_findings(tmp_path)
    if mended:
        assert lint(Config.fromfile(new), plant.rule) == []
    assert new.exists() == mended
    findings = read_findings(tmp_path)
    assert {finding['rule'] for finding in findings} == {
        plant.rule,
        *filter(None, plant.also.split(',')),
    }
    result = next(
        finding for finding in findings if finding['rule'] == plant.rule
    )
    assert Severity(result['severity']).name.lower() == plant.severity
    assert result.get('key', '') == plant.key
    names = plant.names or plant.environ.partition('=')[0]
    assert ''.join(result.get('names', ())[:1]).startswith(names)
    file, text = plant.line
    assert Path(result.get('file', '')).name == file
    if file:
        line = (
            Path(result['file']).read_text().splitlines()[result['line'] - 1]
        )
        assert text in line


@pytest.mark.slow
@pytest.mark.parametrize(
    'plant',
    [
        plant
        for plant in PLANTS
        if getattr(RULES.get(plant.rule), 'scope', '') == 'config'
        # This one needs the model.
        and plant.rule != 'CKPT009'
    ],
    ids=lambda plant: plant.rule,
)
def test_offered_change_mends(plant, tmp_path):
    """See lint; without the tool, as nothing has to be built."""
    environ = dict([plant.environ.split('=')]) if plant.environ else {}
    cfg = Config.fromfile(write_plant(plant, tmp_path))
    assert lint(cfg, plant.rule, environ=environ)


BASES = sorted({plant.base for plant in PLANTS})


@pytest.mark.parametrize(
    'base',
    [
        base
        if base in ('detector', 'segmentor')
        else pytest.param(base, marks=pytest.mark.slow)
        for base in BASES
    ],
)
def test_without_a_fault(base, tmp_path, environ):
    argv = arguments(Plant('', 'info', '', base=base), tmp_path)
    assert load_tool('preflight').main([*argv, '--fail-on', 'info']) == 0
    assert read_findings(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ('world', 'severities'), [('1', ['error']), ('2', [])]
)
def test_several_processes_synchronize_a_norm(
    world, severities, tmp_path, environ
):
    environ.setenv('WORLD_SIZE', world)
    text = """
norm_cfg = dict(type='SyncBN')
model = dict(decode_head=dict(norm_cfg=norm_cfg))
train_dataloader = dict(batch_size=1)
"""
    plant = Plant('', 'error', text, base='segmentor')
    load_tool('preflight').main(arguments(plant, tmp_path))
    assert [
        Severity(finding['severity']).name.lower()
        for finding in read_findings(tmp_path)
        if finding['rule'] == 'NORM003'
    ] == severities


@pytest.mark.slow
@pytest.mark.parametrize(
    ('world', 'flag', 'found'),
    [('2', False, True), ('2', True, False), ('1', False, False)],
)
def test_hook_that_freezes_in_an_iteration(
    world, flag, found, tmp_path, environ
):
    """Which is late, and needs a search for unused parameters on two ranks."""
    environ.setenv('WORLD_SIZE', world)
    text = f"""
imports = ['mmext', 'helpers.preflight_models']
custom_imports = dict(_delete_=True, imports=imports)
find_unused_parameters = {flag}
custom_hooks = [dict(type='mmengine.TrainableFrom', part='auxiliary_head',
                     train=False, iter=9000)]
"""
    plant = Plant('', 'error', text, base='segmentor')
    load_tool('preflight').main(arguments(plant, tmp_path))
    messages = [
        finding['message']
        for finding in read_findings(tmp_path)
        if finding['rule'] == 'DDP014'
    ]
    assert ['iteration 9001' in message for message in messages] == [
        True
    ] * found


PRETRAINED = (
    "init_cfg=dict(type='Pretrained', "
    "checkpoint='torchvision://resnet18', _delete_=True)"
)


@pytest.mark.parametrize(
    ('mistake', 'changes', 'rules'),
    [
        ('extra before an update', '', ['DDP007']),
        # What an update of random weights leaves unused says nothing.
        ('extra before an update', PRETRAINED, []),
        ('extra by kind', PRETRAINED, ['DDP007']),
    ],
)
def test_after_an_update_of_random_weights(
    mistake, changes, rules, tmp_path, environ
):
    text = f'model = dict(mistake={mistake!r}, backbone=dict({changes}))'
    plant = Plant('', 'error', text, base='planted')
    argv = [*arguments(plant, tmp_path), '--batches', 'normal,empty']
    assert load_tool('preflight').main(argv) == int(bool(rules))
    result = [finding['rule'] for finding in read_findings(tmp_path)]
    # The file of the weights cannot be had without torchvision.
    assert [rule for rule in result if rule != 'CKPT006'] == rules
    settings = json.loads((tmp_path / 'report.json').read_bytes())['verdicts']
    (current,) = (row for row in settings['rows'] if row['current'])
    assert (current['failure'] == 'ok') == (not rules)
