"""Changes of findings, put together."""

from pathlib import Path

from mmengine.config import Config

from mmext.findings import Finding, Severity
from mmext.preflight.fix import collect_changes, fixed_path, write_fixed_config


def finding(rule: str, severity=Severity.ERROR, **options) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        message='m',
        remedy='r',
        options={key.replace('__', '.'): v for key, v in options.items()},
    )


def test_changes_of_all_findings():
    changes = collect_changes(
        [finding('A001', a=1), finding('B001', b__c=2), finding('C001')]
    )
    assert changes.options == {'a': 1, 'b.c': 2}
    assert changes.reasons == {'a': 'A001: m', 'b.c': 'B001: m'}
    assert changes.refused == ()


def test_contradictions():
    changes = collect_changes(
        [
            finding('A001', a=1, b=1),
            finding('B001', a=2),
            finding('C001', b__c=1),
            finding('D001', a=1),
        ]
    )
    assert changes.options == {'a': 1, 'b': 1}
    assert [text.partition(':')[0] for text in changes.refused] == [
        'B001',
        'C001',
    ]


def test_notes_are_left_alone():
    changes = collect_changes([finding('A001', Severity.INFO, a=1)])
    assert changes.options == {}


def test_paths():
    assert fixed_path('x/a.py', Path('')) == Path('x/a_fixed.py')
    assert fixed_path('x/a.py', Path('b.py')) == Path('b.py')


def test_written(tmp_path):
    config = tmp_path / 'a.py'
    config.write_text('a = 1\nb = dict(c=1, d=2)\n')
    changes = collect_changes([finding('A001', b__c=5)])
    path = write_fixed_config(str(config), changes, Path(''))
    assert path == tmp_path / 'a_fixed.py'
    cfg = Config.fromfile(path)
    assert cfg.to_dict() == {'a': 1, 'b': {'c': 5, 'd': 2}}
    assert 'A001: m' in path.read_text()
