"""From options to exit code."""

import io
import json

import numpy as np
import pytest
from helpers.label_data import write_pairs
from helpers.label_sets import clean
from mmengine.config import Config
from PIL import Image
from rich.console import Console

from mmext.checks.labels import check_labels
from mmext.checks.labels.run import sources_of


@pytest.fixture
def data(tmp_path):
    return write_pairs(tmp_path / 'data')


def run(tmp_path, **options) -> tuple[int, str]:
    options.setdefault('workers', 1)
    options['store'] = tmp_path / 'x' / 'facts.sqlite'
    out = io.StringIO()
    result = check_labels(console=Console(file=out, width=400), **options)
    return result.exit_code, out.getvalue()


def folders(data, **more) -> dict:
    return {
        'masks': data / 'masks',
        'images': data / 'images',
        'num_classes': 3,
        **more,
    }


def test_fail_on(data, tmp_path):
    """A copied image in a split is worth a note or a warning, no error."""
    content = (data / 'images' / '0.png').read_bytes()
    (data / 'images' / '1.png').write_bytes(content)
    code, text = run(tmp_path, **folders(data))
    assert 'DUP001' in text
    assert code == 0
    assert run(tmp_path, fail_on='info', **folders(data))[0] == 1


def test_class_weights_of_objects(tmp_path):
    box = '<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>'
    names = {'a': ('dog', 'cat'), 'b': ('dog',), 'c': ('dog',)}
    for name, objects in names.items():
        text = ''.join(
            f'<object><name>{obj}</name>{box}</bndbox></object>'
            for obj in objects
        )
        path = tmp_path / f'{name}.xml'
        path.write_text(f'<annotation>{text}</annotation>')
    _, text = run(tmp_path, voc=tmp_path, class_weights='inverse')
    assert '# inverse, from objects of train' in text
    values: dict = {}
    exec(text[text.index('class_weight = [') :], values)
    cat, dog = values['class_weight']
    assert cat == pytest.approx(3 * dog, rel=1e-2)


def test_camvid(shared_path, tmp_path):
    """Clean with its config; with another ignore_index, what is wrong."""
    root = f'{shared_path("data/camvid")}/'
    options = {'config': 'configs/pidnet/pidnet_s_camvid.py'}
    options['cfg_options'] = {'data_root': root}
    code, text = run(tmp_path, **options)
    assert code == 0
    assert '0 errors, 0 warnings' in text
    options['cfg_options']['model.decode_head.ignore_index'] = 255
    code, text = run(tmp_path, select=['SEG'], **options)
    assert code == 1
    assert '468 masks, 2,801,266 pixels' in text
    assert 'set ignore_index=11' in text
    assert '1 error, 0 warnings' in text


def test_a_config_that_is_read_already(tmp_path, capsys):
    """Findings come back; a quiet console prints none."""
    made = clean('semantic', tmp_path / 'data')
    wrong = np.full((24, 32), 77, np.uint8)
    Image.fromarray(wrong).save(made.mask(0))
    report, code = check_labels(
        Config(made.config),
        store=tmp_path / 'facts.sqlite',
        workers=1,
        console=Console(quiet=True),
    )
    assert code == 1
    assert 'SEG001' in {group.rule for group in report.groups}
    assert capsys.readouterr().out == ''


def test_coco(tmp_path):
    path = tmp_path / 'a.json'
    categories = [{'id': 3, 'name': 'cat'}, {'id': 1, 'name': 'dog'}]
    content = {'images': [], 'annotations': [], 'categories': categories}
    path.write_text(json.dumps(content))
    (source,) = sources_of(coco=path)
    assert source.expected.classes == ('cat', 'dog')
    (source,) = sources_of(coco=path, classes=['dog', 'cat'])
    assert source.expected.classes == ('dog', 'cat')


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({}, 'give a config, or --masks.* got none of them'),
        (
            {'config': 'a.py', 'masks': '.'},
            'got the config a.py and --masks .',
        ),
        ({'coco': 'a', 'voc': 'b'}, 'got --coco a and --voc b'),
        ({'masks': '.'}, '--masks needs --num-classes'),
        (
            {'masks': '.', 'num_classes': 3, 'classes': ['a']},
            '--classes must have as many names .* got 1 and 3',
        ),
    ],
)
def test_rejects(settings, message):
    with pytest.raises(ValueError, match=message):
        sources_of(**settings)


def test_rejects_what_is_not_there(tmp_path):
    none = tmp_path / 'none'
    with pytest.raises(FileNotFoundError, match='--coco must be an annotat'):
        sources_of(coco=none)
    with pytest.raises(NotADirectoryError, match='voc must be an existing'):
        sources_of(voc=none)
    with pytest.raises(NotADirectoryError, match='--images must be'):
        sources_of(voc=tmp_path, images=none)
