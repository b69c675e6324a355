"""Optional packages: absent, broken, there."""

import json

import pytest

from mmext.apis._extras import import_extra


def test_imports_what_is_there():
    assert import_extra('json', 'any') is json
    assert import_extra('json.decoder', 'any') is json.decoder


def test_names_the_extra_that_is_missing():
    command = r"is not installed; run: pip install 'mmext\[some-extra\]'"
    with pytest.raises(ImportError, match=f'no_such_package {command}'):
        import_extra('no_such_package.part', 'some-extra')


@pytest.mark.parametrize('error', ['ImportError', 'OSError', 'RuntimeError'])
def test_tells_broken_from_missing(tmp_path, monkeypatch, error):
    name = f'broken_{error.lower()}'
    (tmp_path / f'{name}.py').write_text(f'raise {error}("no operator nms")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        import_extra(name, 'x')
    message = str(caught.value)
    assert f'{name} is installed and cannot be imported' in message
    assert f'{error}: no operator nms' in message
    assert "pip install 'mmext[x]'" in message
