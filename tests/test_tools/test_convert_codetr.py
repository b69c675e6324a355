"""The command line around the conversion."""

import pytest
import torch
from helpers.toy_ranks import load_tool
from reference.codetr_port_config import port_model


@pytest.fixture
def run(capsys):
    """Run the tool; returns its exit code and what it printed."""

    def run(*args):
        code = load_tool('convert_codetr').main(list(map(str, args)))
        return code, capsys.readouterr()

    return run


def test_checkpoint(run, tmp_path):
    source, target = tmp_path / 'a.pth', tmp_path / 'b.pth'
    torch.save({'query_head.label_embedding.weight': torch.ones(1)}, source)
    code, printed = run('checkpoint', source, target)
    assert code == 0, printed.err
    assert '1 tensors, 1 renamed' in printed.out
    assert target.is_file()
    code, printed = run('checkpoint', source, target)
    assert code == 1
    assert 'error: target must not exist' in printed.err


def test_config(run, tmp_path):
    source, target = tmp_path / 'a.py', tmp_path / 'b.py'
    source.write_text(f'model = {port_model()!r}')
    code, printed = run('config', source, target)
    assert code == 0, printed.err
    assert "type='mmext.CoDETR'" in target.read_text()
    source.write_text(f'model = {dict(port_model(), mask_head=1)!r}')
    code, printed = run('config', source, target, '--overwrite')
    assert code == 1
    assert 'mask_head' in printed.err
