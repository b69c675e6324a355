"""A user's mistake on real data: void is 11, the config ignores 255.

The training has to end in its first step, in all processes, and say which
value is wrong, how often, and in which images.
"""

import re
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.reduce_semantic_config import reduce_model
from helpers.toy_ranks import load_segmentation, start_ranks
from mmengine import Config

pytestmark = pytest.mark.xdist_group('processes')

VOID = 11
LINE = re.compile(
    r'LabelRangeError: decode_head\.loss_decode\.0 \(loss_ce\): '
    r'([\d,]+) pixels .* in (\d) of 2 images .*num_classes=11, '
    r'ignore_index=255.*iteration 1, rank (\d)'
)


@pytest.fixture
def camvid(shared_path) -> Path:
    return shared_path('data/camvid')


@pytest.fixture
def config(checkout: Path, camvid: Path, tmp_path: Path) -> Path:
    """PIDNet-S for CamVid, small, on whole images, with the mistake."""
    cfg = Config.fromfile(checkout / 'configs/pidnet/pidnet_s_camvid.py')
    model = reduce_model(cfg.to_dict()['model'])
    steps = cfg.train_dataloader.dataset.pipeline
    left_out = ('RandomResize', 'mmseg.RandomCrop', 'mmseg.RandomFlip')
    cfg.merge_from_dict(
        {
            'model.backbone': model['backbone'],
            'model.decode_head': model['decode_head'],
            'model.decode_head.ignore_index': 255,
            'model.data_preprocessor.size': None,
            'model.data_preprocessor.size_divisor': 8,
            'data_root': f'{camvid}/',
        }
    )
    cfg.train_dataloader.dataset.pipeline = [
        step for step in steps if step['type'] not in left_out
    ]
    cfg.train_dataloader.update(
        batch_size=2, num_workers=0, persistent_workers=False
    )
    path = tmp_path / 'mistake.py'
    cfg.dump(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize('world_size', [1, 2])
def test_ends_in_the_first_step(config, camvid, tmp_path, world_size):
    load_segmentation()
    argv = [config, '--device', 'cpu', '--work-dir', tmp_path / 'run']
    start = time.monotonic()
    ranks = start_ranks(argv, world_size, tmp_path / 'out')
    codes = ranks.wait()
    took = time.monotonic() - start
    assert codes == [1] * world_size
    # A process that waited for the other would wait for a minute.
    assert took < 50
    for rank in range(world_size):
        output = ranks.output(rank)
        matches = {int(match[2]): match for match in LINE.findall(output)}
        count, images, _ = matches[rank]
        text = output[output.index(f'iteration 1, rank {rank}') :]
        assert f'values: {VOID} ({count})' in text
        assert f'set ignore_index={VOID} of the heads' in text
        lines = re.findall(
            r'^  \S+\.jpg, mask (\S+\.png): ([\d,]+) pixels', text, re.M
        )
        assert len(lines[: int(images)]) == int(images)
        for file, stated in lines[: int(images)]:
            mask = cv2.imread(str(camvid / 'trainannot' / Path(file).name), -1)
            assert int(stated.replace(',', '')) == np.sum(mask == VOID)
