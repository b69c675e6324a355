"""The commands of docs/your_data.md, one after the other."""

import json
import re
import shlex
from pathlib import Path

import pytest
from helpers.toy_ranks import load_tool, start_ranks

# Less of everything, and else what the page says.
SMALLER = {
    '--num-train 500 --num-val 100': '--num-train 16 --num-val 4',
    '--num-train 100 --num-val 50': '--num-train 8 --num-val 2',
    '--epochs 8': '--epochs 1',
    '--epochs 2': '--epochs 1',
    'epoch_8': 'epoch_1',
    '--from-val 20': '--from-val 2',
    # A model of one epoch is sure of nothing.
    'mmext infer': 'mmext infer --score-thr 0.001',
}


def commands(page: Path) -> list[str]:
    blocks = re.findall(r'```bash\n(.*?)```', page.read_text(), re.DOTALL)
    return ''.join(blocks).replace('\\\n', ' ').splitlines()


def images_of(folder: Path) -> list[dict]:
    """What was found, but not where it was drawn."""
    images = json.loads((folder / 'predictions.json').read_text())['images']
    for image in images:
        assert Path(image.pop('picture')).parent.name == folder.name
    return images


@pytest.mark.slow
def test_every_command_of_the_page(checkout, tmp_path, monkeypatch):
    pytest.importorskip('onnxruntime')
    lines = commands(checkout / 'docs/your_data.md')
    for long, short in SMALLER.items():
        assert any(long in line for line in lines), long
        lines = [line.replace(long, short) for line in lines]
    # What the children do not have to load again.
    load_tool('train')
    monkeypatch.chdir(tmp_path)
    used = set()
    for number, line in enumerate(lines):
        program, name, *argv = shlex.split(line)
        assert program == 'mmext'
        used.add(name)
        ranks = start_ranks(argv, 1, tmp_path / f'out{number}', tool=name)
        assert ranks.wait() == [0], f'{line}\n{ranks.output()}'
    assert used >= {
        'new_config',
        'train',
        'test',
        'infer',
        'export',
        'share',
    }
    run = tmp_path / 'work_dirs/shapes'
    report = json.loads((run / 'shared_report/report.json').read_text())
    assert report['task'] == 'detection'
    assert (run / 'shared_report/report.html').is_file()
    card = (run / 'shared/README.md').read_text()
    assert re.search(r'\| coco/bbox\\_mAP \| [0-9.e-]+ \|', card)
    assert [*run.glob('best_coco_bbox_mAP_epoch_*.pth')]
    assert (run / 'model.onnx').is_file()
    # The folder that is shared predicts what the checkpoint does.
    first, again = (images_of(run / name) for name in ('pictures', 'again'))
    assert len(first) == 4
    assert first == again
    assert all(image['boxes'] for image in first)
    assert all(
        len(image['masks']) == len(image['boxes']) > 0
        for image in images_of(tmp_path / 'work_dirs/masks/pictures')
    )
