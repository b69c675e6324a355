import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

import mmext
from mmext.checks.config import apply_data_root, check_data_paths
from mmext.checks.labels import check_sources
from mmext.checks.labels.sources.config import splits_of_config
from mmext.checks.labels.store import FactStore
from mmext.datasets import ShapesSpec, write_shapes_dataset


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    root = tmp_path_factory.mktemp('shapes') / 'set'
    spec = ShapesSpec(image_size=(64, 48), empty_fraction=0.5)
    write_shapes_dataset(root, spec, num_train=6, num_val=2)
    return root


def build(**kwargs):
    with DefaultScope.overwrite_default_scope('mmdet'):
        return DATASETS.build(dict(type='mmext.UnlabelledImages', **kwargs))


def names(dataset):
    return [
        dataset.get_data_info(i)['img_path'].rsplit('/', 2)[-2:]
        for i in range(len(dataset))
    ]


@pytest.mark.slow
def test_folder_and_folders_below(shapes):
    dataset = build(
        data_root=str(shapes), data_prefix=dict(img_path='img_dir')
    )
    assert len(dataset) == 8
    assert names(dataset) == sorted(names(dataset))
    assert set(dataset.get_data_info(0)) == {'img_path', 'sample_idx'}


def test_list_of_files(shapes, tmp_path):
    files = sorted((shapes / 'img_dir/train').iterdir())[:3]
    listed = tmp_path / 'list.txt'
    listed.write_text('\n'.join([f.name for f in files] + ['', files[0].name]))
    dataset = build(
        ann_file=str(listed),
        data_root=str(shapes),
        data_prefix=dict(img_path='img_dir/train'),
    )
    assert [info[1] for info in names(dataset)] == [f.name for f in files]


@pytest.mark.slow
def test_another_data_set_without_labels(shapes):
    """Pictures without objects too, and each once."""
    detection = dict(
        type='mmext.ShapesDataset',
        data_root=str(shapes),
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=[dict(type='mmdet.LoadAnnotations', with_bbox=True)],
    )
    semantic = dict(
        type='mmext.ShapesSegDataset',
        data_root=str(shapes),
        data_prefix=dict(img_path='img_dir/val/', seg_map_path='ann_dir/val/'),
        pipeline=[],
    )
    dataset = build(
        dataset=dict(
            type='RepeatDataset',
            _scope_='mmengine',
            times=3,
            dataset=detection,
        )
    )
    assert len(dataset) == 6
    assert len(build(dataset=semantic)) == 2
    assert 'instances' not in dataset.get_data_info(0)
    assert detection['filter_cfg'] == dict(filter_empty_gt=True)


def test_no_pictures(shapes, tmp_path):
    with pytest.raises(ValueError, match=r'got none from .*suffixes are'):
        build(data_root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match='must lead to a folder'):
        build(data_root=str(tmp_path / 'none'))
    with pytest.raises(ValueError, match='must not be given both'):
        build(ann_file='a.txt', dataset=dict(type='ShapesDataset'))


def test_pipeline_packs(shapes):
    size = 24
    dataset = build(
        data_root=str(shapes),
        data_prefix=dict(img_path='img_dir/val'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmext.RandomResizedCrop', scale=size),
            dict(type='mmext.PackImages'),
        ],
    )
    sample = dataset[0]
    assert sample['inputs'].shape == (3, size, size)
    assert sample['data_samples'].ori_shape == (48, 64)
    assert sample['data_samples'].img_path.endswith('.jpg')


def test_label_check_looks_at_the_pictures(tmp_path):
    folder = tmp_path / 'pictures'
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in 'abc':
        noise = rng.integers(0, 255, (8, 8, 3), np.uint8)
        image = cv2.resize(noise, (64, 64), interpolation=0)
        cv2.imwrite(str(folder / f'{name}.png'), image)
    (folder / 'd.png').write_bytes((folder / 'a.png').read_bytes())
    (folder / 'b.png').write_bytes((folder / 'b.png').read_bytes()[:90])
    cfg = Config(
        dict(
            default_scope='mmdet',
            train_dataloader=dict(
                dataset=dict(
                    type='mmext.UnlabelledImages', data_root=str(folder)
                )
            ),
        )
    )
    (train,) = splits_of_config(cfg, ['train'])
    assert train.expected.task == 'unlabelled'
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_sources([train], store)
    rules = {group.rule for group in report.groups}
    # Breaks off; the same file twice; and nothing about labels.
    assert {'IMG003', 'DUP001'} <= rules
    assert {rule[:3] for rule in rules} <= {'IMG', 'DUP'}


@pytest.mark.parametrize(
    ('name', 'below', 'size', 'count'),
    [('pictures', 'img_dir/', 224, 8), ('shapes_pictures', '', 64, 6)],
)
def test_configs(shapes, name, below, size, count):
    """The one thing to set is data_root."""
    cfg = Config.fromfile(mmext.config_path(f'_base_/datasets/{name}.py'))
    cfg.merge_from_dict(dict(data_root=f'{shapes}/{below}'))
    cfg = apply_data_root(cfg)
    check_data_paths(cfg)
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
        sample = dataset[0]
    assert len(dataset) == count
    assert sample['inputs'].shape == (3, size, size)
    cfg.merge_from_dict(dict(data_root='none/'))
    with pytest.raises((FileNotFoundError, ValueError), match='none'):
        check_data_paths(apply_data_root(cfg))
