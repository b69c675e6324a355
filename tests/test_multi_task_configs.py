"""Each multi-task config trains, validates and draws, through the tools."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.device import assert_trained, take_first_step
from helpers.toy_ranks import load_tool
from mmengine import Config
from mmengine.registry import MODELS, TRANSFORMS
from PIL import Image

import mmext
from mmext.datasets import ScenesSpec, write_scenes_dataset
from mmext.datasets.transforms import LoadMultiTaskAnnotations
from mmext.testing import assert_ddp_clean

FOLDER = Path(__file__).resolve().parents[1] / 'configs'
NAMES = sorted(path.stem for path in FOLDER.glob('multi_task/*.py'))
QUICK = ('mmoe_ew_categorical',)
SIZE = (32, 48)

# Each architecture and each way to a gradient; other balancers weigh the
# losses of the same step.
DRY_RUN = [
    'mmoe_ew_categorical',
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            'cgc_ew_categorical',
            'hps_ew_r18_scenes',
            'hps_famo_r18_scenes',
            'hps_pcgrad_r18_scenes',
            'mmoe_ew_r50-d8_1xb8_200e_nyuv2',
            'mtan_dwa_r18_scenes',
            'mtan_pcgrad_r50-d8_1xb8_200e_nyuv2',
        )
    ),
]

every_config = pytest.mark.parametrize(
    'name',
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in NAMES
    ],
)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    """Four samples in the layout of NYUv2."""
    folder = tmp_path_factory.mktemp('data') / 'scenes'
    spec = ScenesSpec(image_size=SIZE[::-1])
    write_scenes_dataset(folder, spec, num_train=4, num_val=2)
    return folder


def reduced(name, data_root):
    """The config with a small model of the same structure, as a file's text.

    The heads of the NYUv2 configs have 13 classes, those of the scenes six.
    """
    cfg = Config.fromfile(FOLDER / 'multi_task' / f'{name}.py')
    cfg.train_cfg.update(max_epochs=1, val_interval=1)
    # Of this run only: visualizers are global, by their names.
    cfg.visualizer.name = f'visualizer of {name} in {data_root}'
    cfg.train_dataloader.batch_size = 2
    if 'categorical' in name:
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.dataset.num_samples = 8
        return cfg
    cfg.model.backbone.update(depth=18, base_channels=8, stem_channels=8)
    cfg.model.backbone.init_cfg = None
    for head in cfg.model.heads.values():
        head.decode_head.update(in_channels=64, channels=8)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[loader].update(num_workers=0, persistent_workers=False)
        cfg[loader].dataset.data_root = str(data_root)
    return cfg


@every_config
def test_trains_and_validates(name, scenes, tmp_path, clean_globals):
    if 'grad' in name:
        pytest.importorskip('torchjd')
        pytest.importorskip('cvxpy')
    cfg = reduced(name, scenes)
    assert not cfg.get('find_unused_parameters')
    path = tmp_path / f'{name}.py'
    cfg.dump(path)
    work_dir = tmp_path / 'work'
    args = [str(path), '--work-dir', str(work_dir), '--device', 'cpu']
    assert load_tool('train').main(args) in (0, None)
    (scalars,) = work_dir.glob('*/vis_data/scalars.json')
    last = json.loads(scalars.read_text().splitlines()[-1])
    assert set(cfg.model.heads) <= {key.split('/')[0] for key in last}


@pytest.mark.parametrize('name', NAMES)
def test_trains_a_step(name, scenes):
    """On a device that does not mix with the host, where there is one."""
    if 'grad' in name:
        pytest.importorskip('torchjd')
        pytest.importorskip('cvxpy')
    done = take_first_step(reduced(name, scenes), SIZE)
    assert_trained(done, most_reads=2, most_loss=100)


@pytest.mark.parametrize('name', DRY_RUN)
def test_is_clean(name, scenes):
    """By the preflight, which makes up batches or takes the first ones."""
    if 'grad' in name:
        pytest.importorskip('torchjd')
        pytest.importorskip('cvxpy')
    report = assert_ddp_clean(reduced(name, scenes), image_size=(64, 96))
    (row,) = [row for row in report.verdicts.rows if row.current]
    assert row.works


@TRANSFORMS.register_module(force=True)
class LoadMyLabels(LoadMultiTaskAnnotations):
    """A loader of a user, which finds labels beside the picture."""

    def transform(self, results):
        depth = results['img_path'].replace('image', 'depth')
        return super().transform({**results, 'depth_path': depth})


@pytest.mark.slow
def test_pictures_without_labels(scenes, tmp_path, clean_globals):
    """By infer.py, of a training whose loader needs labels."""
    cfg = reduced('hps_ew_r18_scenes', scenes)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[loader].dataset.pipeline[0].type = 'LoadMyLabels'
    path = tmp_path / 'config.py'
    cfg.dump(path)
    model = MODELS.build(cfg.model)
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'weights.pth')
    for number, file in enumerate(sorted(scenes.glob('val/image/*.npy'))[:2]):
        picture = (np.load(file) * 255).astype(np.uint8)
        Image.fromarray(picture).save(tmp_path / f'image{number}.png')
    out = tmp_path / 'out'
    args = [
        '--config',
        str(path),
        '--checkpoint',
        str(tmp_path / 'weights.pth'),
    ]
    infer = load_tool('infer').main
    assert infer([str(tmp_path / 'image?.png'), *args, '--out', str(out)]) == 0
    assert (
        len(json.loads((out / 'predictions.json').read_text())['images']) == 2
    )


@TRANSFORMS.register_module(force=True)
class LoadSomeLabels(LoadMultiTaskAnnotations):
    """Each picture has depth or normals; only those of a test have classes."""

    def transform(self, results):
        index = results['sample_idx']
        gone = 'depth' if index % 2 else 'normal'
        kept = {k: v for k, v in results.items() if k != f'{gone}_path'}
        if 'train' in results['img_path'] and index < 2:
            del kept['seg_map_path']
        return super().transform(kept)


@pytest.mark.slow
def test_partial_labels(scenes, tmp_path, clean_globals):
    """Of a training and its validation, in the pipeline that is shipped."""
    cfg = reduced('hps_ew_r18_scenes', scenes)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[loader].dataset.pipeline[0].type = 'LoadSomeLabels'
    cfg.train_dataloader.sampler.shuffle = False
    path, work_dir = tmp_path / 'config.py', tmp_path / 'work'
    cfg.dump(path)
    args = [str(path), '--work-dir', str(work_dir), '--device', 'cpu']
    assert load_tool('train').main(args) in (0, None)
    (scalars,) = work_dir.glob('*/vis_data/scalars.json')
    last = json.loads(scalars.read_text().splitlines()[-1])
    for name in ('semantic/mIoU', 'depth/abs_err', 'normal/mean'):
        assert math.isfinite(last[name])


@pytest.mark.slow
def test_pictures(scenes, tmp_path, clean_globals):
    """By infer.py: the image beside all tasks, and the truth below them."""
    name = 'mtan_dwa_r18_scenes'
    path = tmp_path / 'config.py'
    reduced(name, scenes).dump(path)
    common = ['--work-dir', str(tmp_path / 'work'), '--device', 'cpu']
    load_tool('train').main([str(path), *common])
    (checkpoint,) = (tmp_path / 'work').glob('epoch_1.pth')
    infer = load_tool('infer')
    out = tmp_path / 'pictures'
    files = sorted((scenes / 'val' / 'image').glob('*.npy'))
    base = ['--checkpoint', str(checkpoint), '--out', str(out)]
    assert infer.main([str(files[0]), *base]) == 0
    listed = json.loads((out / 'predictions.json').read_text())
    assert listed['tasks'] == ['depth', 'normal', 'semantic']
    (row,) = listed['images']
    with Image.open(row['picture']) as picture:
        width, height = picture.size
    assert width > 4 * SIZE[1]
    arrays = np.load(row['arrays'])
    assert arrays['semantic'].shape == SIZE
    assert arrays['depth'].shape == SIZE
    assert arrays['normal'].shape == (*SIZE, 3)
    predictor = mmext.from_pretrained(checkpoint, device='cpu')
    result, other = predictor(files[:2], batch_size=2)
    np.testing.assert_array_equal(result.plot(), Image.open(row['picture']))
    assert result.arrays.keys() == {'depth', 'normal', 'semantic'}
    for task, array in predictor(files[1]).arrays.items():
        np.testing.assert_allclose(other.arrays[task], array, atol=1e-5)
        np.testing.assert_allclose(
            result.arrays[task], arrays[task], atol=1e-5
        )
    assert infer.main(['--from-val', '2', '--with-gt', *base]) == 0
    with Image.open(row['picture']) as picture:
        assert picture.size[0] > 4 * SIZE[1]
        assert picture.size[1] > 1.5 * height
    assert (out / 'contact_sheet.png').exists()
    broken = tmp_path / 'broken.npy'
    broken.write_bytes(b'no array')
    assert infer.main([str(broken), *base]) == 1
