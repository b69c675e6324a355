"""A segmentor from the data to the test: train, resume, validate, plot."""

import json
from pathlib import Path

import pytest
import torch
from helpers.reduce_semantic_config import reduce_model
from helpers.toy_ranks import load_segmentation, start_ranks
from mmengine import Config

from mmext.datasets import ShapesSpec, write_shapes_dataset

pytestmark = pytest.mark.xdist_group('processes')

CONFIG = 'pidnet/pidnet_small_shapes.py'
STEPS = 4


@pytest.fixture(scope='module', autouse=True)
def _loaded() -> None:
    load_segmentation()


@pytest.fixture(scope='module')
def shapes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    spec = ShapesSpec(image_size=(64, 48))
    write_shapes_dataset(folder, spec, num_train=6, num_val=3)
    return folder


@pytest.fixture(scope='module')
def config(checkout, shapes, tmp_path_factory) -> Path:
    """The shipped config, small, with four steps and a seed."""
    cfg = Config.fromfile(checkout / 'configs' / CONFIG)
    model = reduce_model(cfg.to_dict()['model'])
    cfg.merge_from_dict(
        {
            'model.backbone': model['backbone'],
            'model.decode_head': model['decode_head'],
            'data_root': str(shapes),
            'train_cfg.max_iters': STEPS,
            'train_cfg.val_interval': 2,
            'default_hooks.checkpoint.interval': 2,
            'default_hooks.logger.interval': 1,
            'randomness': {'seed': 3},
        }
    )
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].update(
            batch_size=2, num_workers=0, persistent_workers=False
        )
    path = tmp_path_factory.mktemp('cfg') / 'tiny.py'
    cfg.dump(path)
    return path


def run(folder: Path, *args, tool: str = 'train') -> tuple[int, str]:
    """Exit code and output of a tool."""
    argv = [*args, '--device', 'cpu', '--work-dir', folder]
    ranks = start_ranks(argv, 1, folder.with_suffix('.out'), tool=tool)
    return ranks.wait()[0], ranks.output()


def scalars(folder: Path) -> list[dict]:
    (file,) = folder.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope='module')
def trained(config, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('run') / 'whole'
    code, output = run(folder, config)
    assert code == 0, output[-3000:]
    return folder


def test_trains_and_validates(trained: Path):
    lines = scalars(trained)
    steps = [line for line in lines if 'loss' in line]
    assert [line['iter'] for line in steps] == list(range(1, STEPS + 1))
    for line in steps:
        parts = [v for k, v in line.items() if k.startswith('decode.loss_')]
        assert len(parts) == 4
        assert sum(parts) == pytest.approx(line['loss'], rel=1e-5)
    results = [line for line in lines if 'mIoU' in line]
    assert len(results) == STEPS // 2
    assert all(0 <= line['mIoU'] <= line['aAcc'] <= 100 for line in results)
    names = {path.name for path in trained.glob('*.pth')}
    assert {'iter_2.pth', 'iter_4.pth'} < names
    assert any(name.startswith('best_mIoU_iter_') for name in names)
    last = torch.load(trained / 'iter_4.pth', weights_only=False)
    # So that the hosts' functions read it without running its code.
    assert type(last['message_hub']['runtime_info']['best_score']) is float
