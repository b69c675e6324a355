"""Missing data: the message names split, key, path and remedy."""

import logging
from pathlib import Path

import pytest
from mmengine.config import Config

import mmext
from mmext.datasets import apply_data_root, check_data_paths


def shapes_config(root: Path) -> Config:
    path = mmext.config_path('_base_/datasets/shapes_detection.py')
    cfg = Config.fromfile(path)
    cfg.data_root = str(root)
    return apply_data_root(cfg)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders and files that the shapes config names."""
    for name in ('annotations', 'img_dir/train', 'img_dir/val'):
        (tmp_path / name).mkdir(parents=True)
    for split in ('train', 'val'):
        (tmp_path / f'annotations/{split}.json').write_text('{}')
    return tmp_path


def message(cfg: Config, **options) -> str:
    with pytest.raises(FileNotFoundError, match='does not exist') as error:
        check_data_paths(cfg, **options)
    return str(error.value)


def test_complete_data_passes(root: Path):
    check_data_paths(shapes_config(root))


def test_missing_root_names_split_key_and_command(tmp_path: Path):
    text = message(shapes_config(tmp_path / 'no'))
    where = str(tmp_path / 'no')
    for split in ('train', 'val', 'test'):
        key = f'{split}_dataloader.dataset.data_root'
        assert f'{split} data: {where!r} ({key})' in text
    assert f'Set data_root (now {where!r})' in text
    assert f'python tools/make_shapes_dataset.py --out {where}' in text
    assert 'img_dir' not in text


def test_missing_file_below_an_existing_root(root: Path):
    (root / 'annotations/train.json').unlink()
    text = message(shapes_config(root))
    path = str(root / 'annotations/train.json')
    assert f'train data: {path!r} (train_dataloader.dataset.ann_file)' in text
    assert 'val data' not in text


def test_missing_folder_of_pictures(root: Path):
    (root / 'img_dir/val').rmdir()
    text = message(shapes_config(root))
    assert '(val_dataloader.dataset.data_prefix.img)' in text


def test_missing_file_of_the_evaluator(root: Path):
    cfg = shapes_config(root)
    cfg.val_evaluator.ann_file = str(root / 'other.json')
    text = message(cfg)
    assert f'{str(root / "other.json")!r} (val_evaluator.ann_file)' in text
    cfg.val_evaluator = [dict(type='M'), cfg.val_evaluator]
    assert '(val_evaluator.1.ann_file)' in message(cfg)


def test_only_the_splits_that_are_asked_for(root: Path):
    (root / 'annotations/train.json').unlink()
    check_data_paths(shapes_config(root), splits=['val', 'test'])
    assert 'train data' in message(shapes_config(root), splits=['train'])


def test_absolute_paths_need_no_root(root: Path):
    cfg = shapes_config(root)
    dataset = cfg.train_dataloader.dataset
    dataset.data_root = 'no/such/root'
    dataset.ann_file = str(root / 'annotations/train.json')
    dataset.data_prefix = dict(img=str(root / 'img_dir/train'))
    check_data_paths(cfg)


@pytest.mark.parametrize(
    ('wrap', 'key'),
    [
        (lambda d: dict(type='RepeatDataset', times=2, dataset=d), 'dataset'),
        (lambda d: dict(type='ConcatDataset', datasets=[d]), 'datasets.0'),
        (
            lambda d: dict(type='ClassBalancedDataset', dataset=d),
            'dataset',
        ),
        (
            lambda d: dict(type='MultiImageMixDataset', dataset=d),
            'dataset',
        ),
    ],
)
def test_wrapped_data_sets(tmp_path: Path, wrap, key: str):
    dataset = dict(type='D', data_root=str(tmp_path), ann_file='no.json')
    cfg = Config(dict(train_dataloader=dict(dataset=wrap(dataset))))
    text = message(cfg)
    assert f'(train_dataloader.dataset.{key}.ann_file)' in text
    assert 'Set these keys in the config or by --cfg-options' in text
    assert 'make_shapes_dataset' not in text


@pytest.mark.parametrize(
    'dataset',
    [
        dict(data_root='s3://bucket/coco/', ann_file='a.json'),
        dict(
            data_root='data/coco/',
            ann_file='a.json',
            backend_args=dict(backend='petrel'),
        ),
    ],
)
def test_remote_paths_are_not_checked_and_it_says_so(dataset: dict, caplog):
    cfg = Config(dict(val_dataloader=dict(dataset=dataset)))
    with caplog.at_level(logging.INFO):
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                'mmext.datasets.data_paths.print_log',
                lambda text, **_: lines.append(text),
            )
            check_data_paths(cfg)
    assert len(lines) == 1
    assert 'val_dataloader.dataset.ann_file is not checked' in lines[0]


def test_local_backend_is_checked_in_silence(tmp_path: Path, monkeypatch):
    def fail(*_args, **_kwargs):
        raise AssertionError('logged something')

    monkeypatch.setattr('mmext.datasets.data_paths.print_log', fail)
    dataset = dict(
        data_root=str(tmp_path / 'no'),
        ann_file='a.json',
        backend_args=dict(backend='local'),
    )
    message(Config(dict(val_dataloader=dict(dataset=dataset))))


def test_config_without_data_passes():
    check_data_paths(Config(dict(model=dict(), train_dataloader=None)))
    check_data_paths(Config(dict(val_dataloader=dict(dataset=object()))))


def test_long_lists_are_cut():
    datasets = [dict(ann_file=f'no/{i}.json') for i in range(20)]
    cfg = Config(dict(test_dataloader=dict(dataset=dict(datasets=datasets))))
    text = message(cfg)
    assert 'and 12 more' in text
    assert text.count('no/') == 8


def test_rejects_unknown_split():
    with pytest.raises(ValueError, match=r"splits must be .* got 'trainval'"):
        check_data_paths(Config(dict()), splits=['trainval'])
