"""From a checkpoint of six shapes to a model of four, through the tools.

The six-class model is given as a checkpoint and as the folder that
``tools/share.py`` makes of it.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.hostile import Hostile
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import load_tool, start_ranks
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmext.datasets import ShapesSpec, write_shapes_dataset

pytestmark = [pytest.mark.xdist_group('processes'), pytest.mark.slow]

SIX = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')
# Those of the same name stand elsewhere.
FOUR = ('moon', 'circle', 'cloud', 'square')
FORMER = {'moon': 'triangle', 'cloud': 'star'}


def rename(file):
    """Let an annotation file have the classes of FOUR, in their order."""
    content = json.loads(file.read_text())
    numbers = {item['name']: item['id'] for item in content['categories']}
    ids = {
        numbers[FORMER.get(name, name)]: index
        for index, name in enumerate(FOUR, 1)
    }
    content['categories'] = [
        {'id': index, 'name': name} for index, name in enumerate(FOUR, 1)
    ]
    content['annotations'] = [
        {**item, 'category_id': ids[item['category_id']]}
        for item in content['annotations']
        if item['category_id'] in ids
    ]
    file.write_text(json.dumps(content))


def write_config(folder, data, classes, **changes):
    """The shipped config of CO-DINO on shapes, small."""
    root = Path(__file__).parents[2] / 'configs/co_dino'
    cfg = Config.fromfile(root / 'co_dino_r18_shapes.py')
    cfg.model = reduce_model(cfg.to_dict()['model'])
    cfg.merge_from_dict(
        {
            'model.num_classes': len(classes),
            'data_root': str(data),
            'train_cfg.max_epochs': 1,
            'optim_wrapper.optimizer': {
                '_delete_': True,
                'type': 'SGD',
                'lr': 0.0,
            },
            'randomness': {'seed': 5},
            **changes,
        }
    )
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(batch_size=2, num_workers=0, persistent_workers=False)
        loader.dataset.metainfo = {'classes': classes}
    path = folder / f'{len(classes)}.py'
    cfg.dump(path)
    return path


@pytest.fixture(scope='module')
def six(tmp_path_factory):
    """Data, config, and a checkpoint of a model with random weights."""
    folder = tmp_path_factory.mktemp('six')
    spec = ShapesSpec(image_size=(64, 48))
    write_shapes_dataset(folder / 'data', spec, num_train=2, num_val=2)
    config = write_config(folder, folder / 'data', SIX)
    cfg = Config.fromfile(config)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.to_dict()['model'])
    model.init_weights()
    weights = {k: torch.randn_like(v) for k, v in model.state_dict().items()}
    weights.update(model.neck.state_dict(prefix='neck.'))
    meta = {'cfg': cfg.to_dict(), 'dataset_meta': {'classes': SIX}}
    path = folder / 'six.pth'
    torch.save({'meta': meta, 'state_dict': weights}, path)
    return SimpleNamespace(
        folder=folder, config=config, checkpoint=path, weights=weights
    )


def run(folder, *args, tool='train'):
    """Exit code and output."""
    argv = [*args, '--device', 'cpu', '--work-dir', folder / 'w']
    ranks = start_ranks(argv, 1, folder / 'out', tool=tool)
    return ranks.wait()[0], ranks.output()


@pytest.fixture(scope='module')
def shared(six):
    folder = six.folder / 'shared'
    argv = [str(six.checkpoint), str(folder), '--no-test']
    assert load_tool('share').main(argv) == 0
    return folder


@pytest.mark.parametrize('kind', ['file', 'folder'])
def test_four_classes_from_six(six, tmp_path, request, kind):
    data = tmp_path / 'data'
    write_shapes_dataset(
        data, ShapesSpec(image_size=(64, 48)), num_train=2, num_val=2
    )
    for split in ('train', 'val'):
        rename(data / 'annotations' / f'{split}.json')
    start = six.checkpoint
    if kind == 'folder':
        start = request.getfixturevalue('shared')
    config = write_config(
        tmp_path, data, FOUR, load_from=str(start), freeze=['backbone']
    )
    code, output = run(tmp_path, config)
    assert code == 0, output[-3000:]
    after = torch.load(tmp_path / 'w/epoch_1.pth', weights_only=False)
    assert tuple(after['meta']['dataset_meta']['classes']) == FOUR
    check_rows(six.weights, after['state_dict'])
    (table,) = output[output.index('keeps its initial values.') :].split(
        '\n20'
    )[0:1]
    assert 'rows of circle, square: ' in table
    assert 'rows of moon, cloud' in table
    assert 'rows of triangle, star, ring, cross' in table


def check_rows(before, after):
    """A learning rate of 0: what was trained is what was loaded."""
    others = {
        name for name in before if before[name].shape == after[name].shape
    }
    assert all(torch.equal(before[name], after[name]) for name in others)
    dependent = set(before) - others
    kinds = {name.split('.')[0] for name in dependent}
    assert kinds == {'query_head', 'roi_head', 'bbox_head'}
    boxes = {name for name in dependent if 'fc_reg' in name}
    for name in dependent:
        one, other = before[name], after[name]
        rows = 4 if name in boxes else 1
        one, other = one.split(rows), other.split(rows)
        assert torch.equal(other[1], one[SIX.index('circle')]), name
        assert torch.equal(other[3], one[SIX.index('square')]), name
        assert not any(torch.equal(other[0], row) for row in one), name
        assert not any(torch.equal(other[2], row) for row in one), name
        if len(one) == 7:  # the background
            assert torch.equal(other[4], one[6]), name


def test_a_folder_is_no_training_to_go_on_with(six, shared, capsys):
    with pytest.raises(SystemExit) as info:
        load_tool('train').main([str(six.config), '--resume', str(shared)])
    assert info.value.code == 2
    error = capsys.readouterr().err
    assert 'which has weights only; use --cfg-options load_from=' in error


@pytest.mark.parametrize('tool', ['infer', 'test', 'train'])
def test_a_hostile_folder_runs_nothing(six, shared, tmp_path, tool):
    folder, trap = tmp_path / 'hostile', tmp_path / 'trap'
    shutil.copytree(shared, folder)
    torch.save({'a': Hostile(trap)}, folder / 'model.safetensors')
    argv = {
        'infer': [
            six.folder / 'data/img_dir/val',
            *('--checkpoint', folder, '--out', tmp_path / 'o'),
        ],
        'test': [six.config, folder, '--work-dir', tmp_path / 'w'],
        'train': [
            six.config,
            *('--work-dir', tmp_path / 'w'),
            *('--cfg-options', f'load_from={folder}'),
        ],
    }[tool]
    argv = [*argv, '--device', 'cpu', '--trust-checkpoint']
    ranks = start_ranks(argv, 1, tmp_path / 'out', tool=tool)
    assert ranks.wait()[0] > 0
    assert 'a pickle by another name; nothing of it was' in ranks.output()
    assert not trap.exists()


def test_share_says_what_is_wrong_in_one_line(tmp_path, capsys):
    new = str(tmp_path / 'new')
    with pytest.raises(SystemExit) as info:
        load_tool('share').main(['none.pth', new])
    assert info.value.code == 2
    error = capsys.readouterr().err
    assert "existing file, got 'none.pth'" in error
    assert error.count('\n') == 1
    assert not Path(new).exists()


def test_share_without_the_data_of_its_test_writes_nothing(
    six, tmp_path, capsys
):
    new = tmp_path / 'new'
    gone = f'data_root={tmp_path}/gone'
    argv = [str(six.checkpoint), str(new), '--cfg-options', gone]
    with pytest.raises(SystemExit) as info:
        load_tool('share').main(argv)
    assert info.value.code == 2
    error = capsys.readouterr().err
    assert error.endswith('; --no-test writes the folder without a test\n')
    assert not new.exists()
