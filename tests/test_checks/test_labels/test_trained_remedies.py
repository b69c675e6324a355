"""What remedies say, followed, and trained to the end of a validation."""

from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import box_sets
from helpers.box_sets import CLASSES, WRONG, convert, lines_of, write
from helpers.corpus_bases import write_base, write_data
from helpers.corpus_run import two_steps_only
from helpers.right_sets import check
from helpers.toy_ranks import load_segmentation, start_ranks
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmext.apis import new_config

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]


@pytest.fixture(scope='module')
def base_of(tmp_path_factory):
    """Gives a small right config of a host, by its name."""
    folder = tmp_path_factory.mktemp('bases')
    data = write_data(folder)
    load_segmentation()

    def base(name: str) -> Path:
        (folder / name).mkdir(exist_ok=True)
        return write_base(name, data, folder / name)

    return base


def errors(root: Path, config: Path) -> dict[str, dict]:
    """Errors of the check of a config, by rule."""
    _, report = check(root, config, ignore=['DUP'])
    return {g['rule']: g for g in report['groups'] if g['severity'] == 2}


def assert_trains(config: Path) -> None:
    """Two steps and a validation go well."""
    work = config.with_suffix('')
    argv = [config, '--work-dir', work, '--device', 'cpu', '--no-preflight']
    with two_steps_only():
        ranks = start_ranks(argv, 1, f'{work}.out')
        (code,) = ranks.wait(100)
    assert code == 0, ranks.output()
    assert '(val) [' in ranks.output()


FAULTS = {
    'coco': ('corners (x1, y1, x2, y2)', 0),
    'voc': ('(left, top, width, height)', 0),
    'yolo': ('centre and size (cx, cy, width, height) in pixels', 0),
    'ids': ('', -1),
}


def test_conversion_lines(base_of, tmp_path):
    base = base_of('retina')
    boxes = box_sets.colonies()
    boxes.images = boxes.images[:16]
    for name, (fault, offset) in FAULTS.items():
        form = 'coco' if name == 'ids' else name
        root = tmp_path / name
        write(boxes, form, root, WRONG[form].get(fault), offset=offset)
        write_config = partial(
            new_config,
            root,
            str(base),
            tmp_path / f'{name}.py',
            classes=CLASSES,
            val_fraction=0.25,
            overwrite=True,
        )
        made = write_config()
        found = errors(tmp_path, made.path)
        assert found.keys() == {'DET014' if offset else 'DET013'}
        (group,) = found.values()
        assert fault in group['value']
        (line,) = lines_of(group['remedy'])
        convert(form, root, line)
        # The lists of COCO's splits are parts of the file.
        made = write_config()
        assert errors(tmp_path, made.path) == {}
        assert_trains(made.path)


def test_the_ignored_value_that_loading_changes(base_of, tmp_path):
    """Void is 7, behind the classes 0 to 6, and nothing is to be reduced."""
    small = base_of('psp')
    data = Path(Config.fromfile(small).data_root)
    for path in (data / 'ann_dir').glob('*/*.png'):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        labels[:3] = 7
        cv2.imwrite(str(path), labels)
    text = (
        f'_base_ = {str(small)!r}\n'
        'model = dict(data_preprocessor=dict(seg_pad_val=7),\n'
        '    decode_head=dict(ignore_index=7),\n'
        '    auxiliary_head=dict(ignore_index=7))\n'
        'val_evaluator = dict(ignore_index=7)\n'
        'test_evaluator = val_evaluator\n'
    )
    for split in ('train', 'val'):
        dataset = 'dict(reduce_zero_label=True)'
        text += f'{split}_dataloader = dict(dataset={dataset})\n'
    config = tmp_path / 'a.py'
    config.write_text(text)
    found = errors(tmp_path, config)
    assert found.keys() == {'CFG014'}
    remedy = found['CFG014']['remedy']
    assert remedy.startswith('set reduce_zero_label=False of the data set')
    config.write_text(text.replace('=True', '=False'))
    assert errors(tmp_path, config) == {}
    assert_trains(config)
    cfg = Config.fromfile(config)
    from mmseg.registry import DATASETS

    with DefaultScope.overwrite_default_scope('mmseg'):
        sample = DATASETS.build(cfg.val_dataloader.dataset)[0]
    path = sample['data_samples'].seg_map_path
    stored = cv2.imread(path, cv2.IMREAD_UNCHANGED)
    loaded = sample['data_samples'].gt_sem_seg.data[0].numpy()
    assert np.array_equal(loaded, stored)
