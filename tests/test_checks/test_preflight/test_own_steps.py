"""What the tool says of steps of their own, and what real processes do."""

import json

import pytest
from helpers.forked_pairs import run_jobs
from helpers.own_steps import CASES, config_of, real_rank
from helpers.toy_ranks import load_tool

pytestmark = pytest.mark.xdist_group('processes')


@pytest.fixture(scope='module')
def reals(tmp_path_factory):
    """What both ranks did with each case, wrapped by PyTorch and by us."""
    jobs = [(name, is_ours) for name in CASES for is_ours in (False, True)]
    results = run_jobs(real_rank, jobs, tmp_path_factory.mktemp('jobs'))
    return dict(zip(jobs, results, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_as_real_processes_do(name, reals, tmp_path):
    case = CASES[name]
    first, second = reals[name, False]
    if case.real in ('ok', 'drift'):
        assert first['error'] == second['error'] == ''
        drifts = first['weights'] != second['weights']
        assert drifts == (case.real == 'drift')
    else:
        assert case.real in first['error']
    trains = case.real == 'ok' and not case.refused
    assert all(trains == (not r['error']) for r in reals[name, True])
    (tmp_path / 'config.py').write_text(config_of(name))
    argv = [str(tmp_path / 'config.py'), '--no-labels', '--json']
    code = load_tool('preflight').main([*argv, str(tmp_path / 'report')])
    assert code == (not trains or case.rule == 'BUILD002')
    report = json.loads((tmp_path / 'report').read_bytes())
    assert [f['rule'] for f in report['findings']] == [case.rule][
        : bool(case.rule)
    ]
    assert case.says in ''.join(f['message'] for f in report['findings'])
    rows = (report['verdicts'] or {'rows': ()})['rows']
    for row in rows:
        if row['current'] and report['batches'][0]['steps']:
            real = 'drift' if case.refused else case.real
            start = {'ok': 'ok', 'drift': 'silent'}.get(real, 'error')
            assert row['outcome'].startswith(start)
