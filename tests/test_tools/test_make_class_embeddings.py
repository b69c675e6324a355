"""The command line around class embeddings: exit code first."""

import json

import pytest
import torch
from helpers.toy_ranks import load_tool
from safetensors import safe_open

import mmext
from mmext.models.co_dino.class_embeddings import read_class_embeddings

ENCODER = 'mmext.apis.class_embeddings.TextEncoder'
VECTORS = {
    'red cell': [1.0, 0.0, 0.0],
    'white cell': [4.0, 3.0, 0.0],
    'bicycle': [0.0, 0.0, 2.0],
    'bike': [0.0, 0.25, 1.0],
    '[b]x[/b]': [0.0, 1.0, 0.0],
}


class WordEncoder:
    """Knows the names above, and adds nothing for the text around them."""

    default_templates = ('{}', 'one {}')

    def __init__(self, model, **options):
        self.name = f'words: {model}'
        self.options = options

    def encode(self, texts):
        return torch.tensor(
            [VECTORS[text.removeprefix('one ')] for text in texts]
        )


@pytest.fixture
def tool(monkeypatch):
    module = load_tool('make_class_embeddings')
    monkeypatch.setattr(ENCODER, WordEncoder)
    # Wide enough for a folder of the tests in one line of the table.
    monkeypatch.setenv('COLUMNS', '300')
    return module


def arguments(out, *more, model='m', classes=('red_cell', 'bicycle')):
    named = ['--classes', *classes] if classes else []
    fixed = ['--model', model, '--out', out]
    device = ['--device', 'cpu']
    return [str(item) for item in [*named, *fixed, *device, *more]]


def rejected(tool, args, capsys):
    """The message of a call that exits with 2."""
    with pytest.raises(SystemExit) as caught:
        tool.main(args)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_writes_names_and_how_they_were_made(tool, tmp_path, capsys):
    out = tmp_path / 'new' / 'a.safetensors'
    (tmp_path / 'names.txt').write_text('red_cell\nwhite_cell\nbicycle\n')
    names = ['red_cell', 'white_cell', 'bicycle']
    file = ('--classes-file', tmp_path / 'names.txt')
    more = ('--templates', 'one {}', '{}')
    assert tool.main(arguments(out, *file, *more, classes=())) == 0
    embeddings = read_class_embeddings(out)
    expected = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 1]])
    torch.testing.assert_close(embeddings.vectors, expected)
    assert embeddings.classes == tuple(names)
    with safe_open(out, 'pt') as file:
        metadata = file.metadata()
    assert json.loads(metadata['templates']) == ['one {}', '{}']
    assert metadata['encoder'] == 'words: m'
    assert metadata['mmext_version'] == mmext.__version__
    printed = capsys.readouterr()
    rows = [line.split('│')[1:3] for line in printed.out.splitlines()[1:-1]]
    table = {key.strip(): value.strip() for key, value in rows if key.strip()}
    assert table == {
        'classes': '3',
        'dimensions': '3',
        'encoder': 'words: m',
        'templates': 'one {}',
        'most similar': 'red_cell and white_cell, cosine 0.8000',
        'file': str(out),
    }
    assert 'warning' not in printed.err


def test_names_of_the_training_data(tool, tmp_path, checkout, monkeypatch):
    config = checkout / 'configs/co_dino/co_dino_r18_bccd.py'
    vectors = {'RBC': [1.0, 0], 'WBC': [0, 1.0], 'Platelets': [1.0, 1.0]}
    monkeypatch.setitem(globals(), 'VECTORS', vectors)
    out = tmp_path / 'a.safetensors'
    assert tool.main(arguments(out, '--config', config, classes=())) == 0
    assert read_class_embeddings(out).classes == tuple(vectors)


def test_warns_of_classes_that_are_nearly_the_same(tool, tmp_path, capsys):
    names = ['red_cell', 'bicycle', 'bike']
    assert tool.main(arguments(tmp_path / 'a.safetensors', classes=names)) == 0
    message = capsys.readouterr().err
    assert "warning: 'bicycle' and 'bike' have a cosine of 0.9701" in message
    assert 'above 0.95' in message


def test_one_class_and_brackets(tool, tmp_path, capsys):
    """Brackets in a name are no markup."""
    out = tmp_path / 'a.safetensors'
    assert tool.main(arguments(out, classes=['bike'])) == 0
    assert 'none: there is one class' in capsys.readouterr().out
    names = ['[b]x[/b]', 'white_cell']
    assert tool.main(arguments(out, '--force', classes=names)) == 0
    assert '[b]x[/b] and white_cell' in capsys.readouterr().out


def test_settings_reach_the_encoder(tool, tmp_path, monkeypatch):
    results = {}

    def build(model, **options):
        results.update(options, model=model)
        return WordEncoder(model)

    monkeypatch.setattr(ENCODER, build)
    more = ['--offline', '--batch-size', '3']
    assert tool.main(arguments(tmp_path / 'a.safetensors', *more)) == 0
    assert results == {'model': 'm', 'device': 'cpu', 'offline': True}


@pytest.mark.parametrize(
    ('classes', 'more', 'message'),
    [
        (['bike'], ['--templates', 'a'], 'exactly once'),
        ((), ['--classes-file', 'no.txt'], 'must be a text file at no.txt'),
        ((), ['--config', 'no.py'], 'must be an existing file, got no.py'),
        ((), [], 'one of the arguments --classes --classes-file --config'),
    ],
)
def test_rejects(tool, tmp_path, capsys, classes, more, message):
    args = arguments(tmp_path / 'a.safetensors', *more, classes=classes)
    assert message in rejected(tool, args, capsys)
    assert not any(tmp_path.iterdir())


def test_looks_at_the_file_before_the_model(
    tool, tmp_path, capsys, monkeypatch
):
    out = tmp_path / 'a.safetensors'
    out.write_text('mine')
    monkeypatch.setattr(ENCODER, None)
    message = rejected(tool, arguments(out), capsys)
    assert 'replace it with --force' in message
    assert out.read_text() == 'mine'
    message = rejected(tool, arguments(tmp_path / 'a.pt'), capsys)
    assert 'path must end in .safetensors' in message


def test_a_stopped_tool_leaves_nothing(tool, tmp_path, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(WordEncoder, 'encode', stop)
    assert tool.main(arguments(tmp_path / 'a.safetensors')) == 130
    assert 'is as it was' in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
