"""The command line around the conversion."""

import subprocess
import sys
from pathlib import Path

import torch
from reference.codetr_port_config import port_model

TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'convert_codetr.py'


def run(*args: str) -> subprocess.CompletedProcess:
    """Run the tool in a process of its own."""
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_checkpoint(tmp_path):
    source, target = tmp_path / 'a.pth', tmp_path / 'b.pth'
    torch.save({'query_head.label_embedding.weight': torch.ones(1)}, source)
    done = run('checkpoint', source, target)
    assert done.returncode == 0, done.stderr
    assert '1 tensors, 1 renamed' in done.stdout
    assert target.is_file()
    again = run('checkpoint', source, target)
    assert again.returncode == 1
    assert 'error: target must not exist' in again.stderr
    assert 'Traceback' not in again.stderr


def test_config(tmp_path):
    source, target = tmp_path / 'a.py', tmp_path / 'b.py'
    source.write_text(f'model = {port_model()!r}')
    done = run('config', source, target)
    assert done.returncode == 0, done.stderr
    assert "type='mmext.CoDETR'" in target.read_text()
    source.write_text(f'model = {dict(port_model(), mask_head=1)!r}')
    done = run('config', source, target, '--overwrite')
    assert done.returncode == 1
    assert 'mask_head' in done.stderr
