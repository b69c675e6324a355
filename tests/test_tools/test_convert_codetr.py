"""The command line around the conversion."""

import pytest
import torch
from helpers.toy_ranks import load_tool


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
