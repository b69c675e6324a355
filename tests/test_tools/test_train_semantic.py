"""A segmentor from the data to the test: train, resume, validate, plot."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.reduce_semantic_config import reduce_model
from helpers.toy_ranks import load_segmentation, load_tool, start_ranks
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


def weights(file: Path) -> dict[str, torch.Tensor]:
    return torch.load(file, weights_only=False)['state_dict']


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


@pytest.mark.slow
def test_goes_on_where_it_was(config: Path, trained: Path, tmp_path: Path):
    """From the second step on, with the same outcome, bit for bit."""
    folder = tmp_path / 'resumed'
    code, output = run(folder, config, '--resume', str(trained / 'iter_2.pth'))
    assert code == 0, output[-3000:]
    steps = [line['iter'] for line in scalars(folder) if 'loss' in line]
    assert steps == [3, 4]
    expected = weights(trained / 'iter_4.pth')
    results = weights(folder / 'iter_4.pth')
    assert set(results) == set(expected)
    for key, value in expected.items():
        assert torch.equal(results[key], value), key


@pytest.mark.slow
def test_groups_are_merged_on_the_way(config: Path, tmp_path: Path):
    """With single groups until a checkpoint, then as the config says."""
    child = tmp_path / 'rates.py'
    child.write_text(f"""
_base_ = {str(config)!r}
keys = {{'decode_head': dict(lr_mult=10.0)}}
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=keys, norm_decay_mult=0.0))
""")
    constructor = 'optim_wrapper.constructor=DefaultOptimWrapperConstructor'
    single, merged = tmp_path / 'single', tmp_path / 'merged'
    for folder, more in (
        (single, ['--cfg-options', constructor]),
        (merged, ['--resume', str(single / 'iter_2.pth')]),
    ):
        code, output = run(folder, str(child), *more)
        assert code == 0, output[-3000:]
    assert 'the same settings in other groups' in output
    one, other = (
        torch.load(folder / 'iter_4.pth', weights_only=False)
        for folder in (single, merged)
    )
    groups = other['optimizer']['param_groups']
    assert len(one['optimizer']['param_groups']) > 50
    assert len(groups) == 3
    for key, value in one['state_dict'].items():
        torch.testing.assert_close(
            other['state_dict'][key], value, rtol=1e-5, atol=1e-6
        )
    rates = [
        [line['lr'] for line in scalars(folder) if 'loss' in line]
        for folder in (single, merged)
    ]
    assert rates[0][2:] == rates[1]


def test_tests(config: Path, trained: Path, tmp_path: Path):
    """The same metric as the validation of the training."""
    folder = tmp_path / 'tested'
    code, output = run(
        folder, config, str(trained / 'iter_4.pth'), tool='test'
    )
    assert code == 0, output[-3000:]
    result = float(re.search(r'mIoU: ([\d.]+)', output).group(1))
    last = [line['mIoU'] for line in scalars(trained) if 'mIoU' in line][-1]
    assert result == pytest.approx(last)


def test_draws_the_metric(trained: Path, tmp_path: Path):
    out = tmp_path / 'curves.png'
    assert load_tool('plot_log').main([str(trained), '--out', str(out)]) == 0
    assert out.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize('checked', [False, True])
def test_a_bad_label_names_its_image(
    config: Path, shapes: Path, tmp_path: Path, checked: bool
):
    """A class that the model does not have, in one mask of six.

    The pipeline of the config finds it; without that step, the loss does.
    """
    root = tmp_path / 'bad'
    for split in ('img_dir', 'annotations'):
        root.mkdir(exist_ok=True)
        (root / split).symlink_to(shapes / split)
    for path in (shapes / 'ann_dir').rglob('*.png'):
        copy = root / path.relative_to(shapes)
        copy.parent.mkdir(parents=True, exist_ok=True)
        mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if copy.name == '000004.png' and copy.parent.name == 'train':
            mask[5:7, 8:10] = 9
        assert cv2.imwrite(str(copy), np.ascontiguousarray(mask))
    if not checked:
        cfg = Config.fromfile(config)
        dataset = cfg.train_dataloader.dataset
        dataset.pipeline = [
            step
            for step in dataset.pipeline
            if step['type'] != 'mmext.ValidateLabels'
        ]
        config = tmp_path / 'unchecked.py'
        cfg.dump(config)
    code, output = run(
        tmp_path / 'w', config, '--cfg-options', f'data_root={root}'
    )
    assert code == 1
    end = output[-4000:]
    assert '000004.' in end
    if checked:
        assert 'SampleError' in end
        assert '9 (4)' in end
    else:
        assert 'LabelRangeError' in end
        assert 'decode_head.loss_decode' in end


def test_wrong_classes_are_refused(config: Path, tmp_path: Path):
    code, output = run(
        tmp_path / 'w',
        config,
        '--cfg-options',
        'model.decode_head.num_classes=5',
    )
    assert code == 1
    assert 'set model.decode_head.num_classes to 7' in output
    assert 'LabelRangeError' not in output


def test_missing_data_are_one_line(config: Path, tmp_path: Path, capsys):
    options = ['--cfg-options', f'data_root={tmp_path / "none"}']
    with pytest.raises(SystemExit) as info:
        load_tool('train').main([str(config), *options])
    assert info.value.code == 2
    assert 'make_shapes_dataset.py --out' in capsys.readouterr().err
