"""The tool: exit codes, and what it prints."""

import csv
import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
from helpers.label_data import write_pairs
from helpers.label_sets import clean
from helpers.toy_ranks import load_tool
from PIL import Image


@pytest.fixture
def main():
    return load_tool('validate_labels').main


@pytest.fixture
def data(tmp_path):
    return write_pairs(tmp_path / 'data')


def argv(data, *more) -> list[str]:
    given = [
        '--masks', data / 'masks', '--images', data / 'images',
        '--num-classes', 3, '--store', data / 'facts.sqlite',
        '--workers', 1, *more,
    ]  # fmt: skip
    return [str(item) for item in given]


def spoil(data, *names: bytes) -> None:
    """Give label maps of other names, with a label that there is not."""
    for name in names:
        for folder in ('masks', 'images'):
            path = os.fsencode(data / folder) + b'/' + name
            os.makedirs(os.path.dirname(path), exist_ok=True)
            size = Image.open(data / folder / '3.png').size
            with open(path, 'wb') as file:
                Image.new('L', size, 7).save(file, 'png')


def read_csv(path: Path) -> list[dict]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def uris(log: dict) -> list[str]:
    (run,) = log['runs']
    return [
        location['physicalLocation']['artifactLocation']['uri']
        for result in run['results']
        for location in result['locations']
    ]


def test_every_location_can_be_listed(main, data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    monkeypatch.setenv('COLUMNS', '80')
    number = 12
    spoil(data, *(b'%02d.png' % index for index in range(number)))
    here = Path()
    more = ['--csv', 'a.csv', '--jsonl', 'a.jsonl', '--sarif', 'a.sarif']
    select = ['--select', 'SEG001', '--html', 'a.html']
    assert main(argv(here, *more, *select, '--json', 'a.json')) == 1
    out = capsys.readouterr().out
    assert out.count('.png: ') == 5
    assert f'and {number - 5} more (--all names every one)' in out
    assert len(uris(json.loads(Path('a.sarif').read_bytes()))) == 5
    rows = read_csv(Path('a.csv'))
    lines = Path('a.jsonl').read_text().splitlines()
    records = [json.loads(line) for line in lines]
    wanted = [f'masks/{index:02}.png' for index in range(number)]
    for locations in (rows, records):
        assert [example['file'] for example in locations] == wanted
        assert {example['rule'] for example in locations} == {'SEG001'}
        assert {example['severity'] for example in locations} == {'error'}
        assert {example['position'] for example in locations} == {'y=0, x=0'}
    html = Path('a.html').read_text()
    assert main(argv(here, *more, *select, '--json', 'a.json', '--all')) == 1
    out = capsys.readouterr().out
    assert out.count('.png: ') == number
    assert '--all' not in out
    assert uris(json.loads(Path('a.sarif').read_bytes())) == wanted
    (group,) = json.loads(Path('a.json').read_bytes())['groups']
    assert [example['file'] for example in group['examples']] == wanted
    # Of so many pictures nobody can make a page.
    assert Path('a.html').read_text() == html


def test_names_that_are_no_text(main, data, capsys, monkeypatch):
    """Bytes, newlines, quotes and what a terminal obeys, in all outputs."""
    monkeypatch.chdir(data)
    monkeypatch.setenv('COLUMNS', '80')
    spoil(data, b'a\xff.png', b'b\nc.png', b'd\x1b[31m,";.png')
    outputs = ('json', 'jsonl', 'csv', 'sarif', 'html')
    more = [part for form in outputs for part in (f'--{form}', f'a.{form}')]
    assert main(argv(Path(), *more, '--select', 'SEG001', '--all')) == 1
    out = capsys.readouterr().out
    assert '\x1b' not in out
    names = [r'a\xff.png', r'b\nc.png', r'd\x1b[31m,";.png']
    assert all(f'    - masks/{name}: y=0, x=0\n' in out for name in names)
    names = [r'masks/a\xff.png', 'masks/b\nc.png', 'masks/d\x1b[31m,";.png']
    (group,) = json.loads(Path('a.json').read_bytes())['groups']
    lines = Path('a.jsonl').read_text().splitlines()
    rows = read_csv(Path('a.csv'))
    for locations in (group['examples'], map(json.loads, lines), rows):
        assert [location['file'] for location in locations] == names
    assert uris(json.loads(Path('a.sarif').read_bytes())) == [
        'masks/a%FF.png',
        'masks/b%0Ac.png',
        'masks/d%1B%5B31m%2C%22%3B.png',
    ]
    assert r'a\xff.png' in Path('a.html').read_text('utf-8')


@pytest.mark.parametrize('inner', [False, True])
def test_linked_folders(main, data, tmp_path, capsys, inner):
    """They are read as a loader reads them; links upwards are not."""
    linked = tmp_path / 'linked'
    linked.mkdir()
    for name in ('masks', 'images'):
        if inner:
            (linked / name).mkdir()
            (linked / name / 'part').symlink_to(data / name)
            (linked / name / 'loop').symlink_to(linked / name)
        else:
            (linked / name).symlink_to(data / name)
    assert main(argv(linked)) == 0
    out = capsys.readouterr().out
    assert '  train: 6 samples, 6 images, 6 label maps, 3 classes\n' in out


def test_many_absent_classes_are_one_finding(main, data, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    # 255 is ignored.
    more = ['--num-classes', '300', '--select', 'CLS']
    assert main(argv(data, *more)) == 0
    out = capsys.readouterr().out
    assert '0 errors, 1 warning, 0 notes' in out
    assert (
        'warning CLS001: class that no training sample has: 296 classes\n'
        '    - class 3 has no pixels\n' in out
    )
    assert '    - and 291 more (--all names every one)\n' in out
    assert main(argv(data, *more, '--all')) == 0
    assert 'class 299 has no pixels' in capsys.readouterr().out


def test_class_weights_that_cannot_be_read(main, data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    Path('weights.json').write_text('[1.0,')
    Path('cfg.py').write_text(
        "default_scope = 'mmseg'\n"
        "loss = dict(type='CrossEntropyLoss', class_weight='weights.json')\n"
        'head = dict(num_classes=4, loss_decode=loss)\n'
        'model = dict(decode_head=head)\n'
        "prefix = dict(img_path='images', seg_map_path='masks')\n"
        "dataset = dict(type='BaseSegDataset', data_prefix=prefix)\n"
        'train_dataloader = dict(dataset=dataset)\n'
    )
    with pytest.raises(SystemExit) as caught:
        main(['cfg.py'])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a file of numbers, 'weights.json' cannot be read" in line


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (['--fail-on', 'fatal'], "invalid choice: 'fatal'"),
        (['--workers', 'x'], "invalid int value: 'x'"),
        (['--workers', '-1'], '--workers must be at least 0, got -1'),
        (['--select', 'NOPE'], "got 'NOPE'"),
        (['--nope'], 'unrecognized arguments: --nope'),
        (['--class-weights', 'x'], "got 'x'"),
        (['--store', 'file/a'], '--store file/a: '),
        (['--store', 'file'], 'file must be a store of label checks'),
        (['--csv', 'file/a', '--jsonl', 'file/b'], '--jsonl file/b: '),
    ],
)
def test_one_line_says_why_it_could_not_run(
    main, data, capsys, monkeypatch, given, message
):
    monkeypatch.chdir(data)
    Path('file').write_text('x')
    with pytest.raises(SystemExit) as caught:
        main(argv(Path(), *given))
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ''
    (line,) = printed.err.splitlines()
    assert ': error: ' in line
    assert message in line


@pytest.mark.parametrize('levels', [900, 20_000])
@pytest.mark.parametrize('kind', ['coco', 'panoptic', 'openmmlab'])
def test_deep_annotations(main, kind, levels, tmp_path, capsys):
    """Python reads about 990 levels, and MMEngine copies about 300."""
    data = clean(kind, tmp_path / 'data')
    file = data.root / 'train.json'
    key = 'data_list' if kind == 'openmmlab' else 'annotations'
    start, end = file.read_text().split(f'"{key}": [{{', 1)
    deep = f'"more": {"[" * levels}{"]" * levels}'
    file.write_text(f'{start}"{key}": [{{{deep}, {end}')
    is_read = kind != 'openmmlab' and levels < 990
    for more in ({}, {'fix': tmp_path / 'fixed'}):
        if more and kind == 'panoptic':
            continue  # --fix does not repair it.
        try:
            code = main(data.argv(**more))
        except SystemExit as error:
            code = error.code
        printed = capsys.readouterr()
        assert (code == 0) is is_read
        assert (str(file) in printed.out + printed.err) is not is_read


def test_a_file_system_without_locks(main, data, capsys, monkeypatch):
    """SQLite would wait for 30 s, and say that the database is locked."""

    def lockf(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    spoil(data, b'5.png')
    assert main(argv(data)) == 1
    report = capsys.readouterr().out
    (data / 'facts.sqlite').unlink()
    monkeypatch.setattr(fcntl, 'lockf', lockf)
    with pytest.warns(RuntimeWarning, match='ENOLCK: No locks') as warned:
        assert main(argv(data)) == 1
    assert f'{data}/facts.sqlite is not used' in str(warned[0].message)
    assert capsys.readouterr().out == report
    assert not (data / 'facts.sqlite').exists()
