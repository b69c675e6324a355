"""data_root: reaches all data sets and evaluators, and nothing else."""

import logging
from pathlib import Path

import pytest
from mmengine.config import Config

import mmext
from mmext.checks.config import apply_data_root, check_data_paths, read_config


def loader(**dataset) -> dict:
    return dict(batch_size=1, dataset=dict(type='D', **dataset))


def make(**changes) -> Config:
    """A config as our bases are, with a root that was changed later."""
    content = dict(
        data_root='/disk/coco',
        base_data_root='data/coco/',
        train_dataloader=loader(
            data_root='data/coco/', ann_file='a.json', data_prefix=dict(img='')
        ),
        val_dataloader=loader(data_root='data/coco/', ann_file='b.json'),
        val_evaluator=dict(type='M', ann_file='data/coco/b.json'),
    )
    return Config(content | changes)


@pytest.mark.parametrize('new', ['/disk/coco', '/disk/coco/'])
@pytest.mark.parametrize('old', ['data/coco', 'data/coco/'])
def test_slashes_at_the_end_do_not_matter(new: str, old: str):
    cfg = apply_data_root(make(data_root=new, base_data_root=old))
    for loader_cfg in (cfg.train_dataloader, cfg.val_dataloader):
        assert loader_cfg.dataset.data_root == new
    assert cfg.train_dataloader.dataset.ann_file == 'a.json'
    assert cfg.val_evaluator.ann_file == '/disk/coco/b.json'


def test_wrapped_data_sets_and_several_metrics():
    inner = dict(type='D', data_root='data/coco/', ann_file='a.json')
    other = dict(type='D', data_root='data/mine/', ann_file='a.json')
    metrics = [
        dict(type='M', ann_file='data/coco/a.json'),
        dict(type='M', ann_file='data/coco2/a.json', seg_prefix='data/coco/s'),
        dict(type='M', ann_file=None, outfile_prefix='data/coco/out'),
    ]
    cfg = make(
        train_dataloader=loader(dataset=dict(type='R', dataset=inner)),
        test_dataloader=loader(datasets=[inner, other]),
        test_evaluator=metrics,
    )
    cfg = apply_data_root(cfg)
    wrapped = cfg.train_dataloader.dataset.dataset.dataset
    assert wrapped.data_root == '/disk/coco'
    roots = [d.data_root for d in cfg.test_dataloader.dataset.datasets]
    assert roots == ['/disk/coco', 'data/mine/']
    first, second, third = cfg.test_evaluator
    assert first.ann_file == '/disk/coco/a.json'
    assert second.ann_file == 'data/coco2/a.json'
    assert second.seg_prefix == '/disk/coco/s'
    assert third.ann_file is None
    assert third.outfile_prefix == 'data/coco/out'


def test_config_of_a_host_is_kept_and_moves_with_options():
    """No base_data_root: the paths are the user's until options come."""
    content = make(data_root='data/coco/').to_dict()
    del content['base_data_root']
    cfg = apply_data_root(Config(content))
    assert cfg.val_dataloader.dataset.data_root == 'data/coco/'
    cfg.merge_from_dict(dict(data_root='/disk/coco'))
    cfg = apply_data_root(cfg)
    assert cfg.val_dataloader.dataset.data_root == '/disk/coco'
    assert cfg.val_evaluator.ann_file == '/disk/coco/b.json'


def test_root_that_the_data_sets_were_given_themselves():
    """mmdet's habit: a child repeats data_root in every dict."""
    mine = loader(data_root='data/mine/', ann_file='a.json')
    cfg = make(
        data_root='data/mine/', train_dataloader=mine, val_dataloader=mine
    )
    cfg = apply_data_root(cfg)
    assert cfg.train_dataloader.dataset.data_root == 'data/mine/'
    # The child forgot the evaluator; its file is where its data set is.
    assert cfg.val_evaluator.ann_file == 'data/mine/b.json'


def test_rejects_a_root_that_no_data_set_has():
    mine = loader(data_root='data/mine/')
    cfg = make(train_dataloader=mine, val_dataloader=mine)
    with pytest.raises(
        ValueError, match=r"got '/disk/coco', but .* has \['data/mine/'\]"
    ):
        apply_data_root(cfg)


@pytest.mark.parametrize('name', ['data_root', 'base_data_root'])
def test_rejects_roots_that_are_no_text(name: str):
    with pytest.raises(TypeError, match=f'{name} must be a string, got 3'):
        apply_data_root(make(**{name: 3}))
    with pytest.raises(ValueError, match=f'{name} must not be empty'):
        apply_data_root(make(**{name: ''}))


@pytest.mark.parametrize('key', ['val_evaluator[1]', 'val_evaluator.1'])
def test_options_take_keys_as_messages_give_them(key):
    cfg = make(val_evaluator=[dict(type='M'), dict(type='N')])
    cfg = read_config(cfg, cfg_options={f'{key}.ann_file': 'x'})
    assert cfg.val_evaluator[1].ann_file == 'x'


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


@pytest.mark.parametrize(
    ('base', 'near'),
    [
        ('mmext::co_dino/co_dino_r18_shape.py', 'co_dino_r18_shapes.py'),
        ('othr.py', 'other.py'),
    ],
)
def test_a_base_that_does_not_exist(tmp_path: Path, base, near):
    (tmp_path / 'other.py').write_text('a = 1\n')
    config = tmp_path / 'mine.py'
    config.write_text(f'# mine\n_base_ = {base!r}\n')
    with pytest.raises(
        FileNotFoundError, match=rf'mine\.py:2 .* did you mean {near}'
    ):
        read_config(config)


def message(cfg: Config, **options) -> str:
    with pytest.raises(FileNotFoundError, match='does not exist') as error:
        check_data_paths(cfg, **options)
    return str(error.value)


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
    check_data_paths(shapes_config(root), splits=['val', 'test'])


def test_missing_file_of_the_evaluator(root: Path):
    cfg = shapes_config(root)
    cfg.val_evaluator.ann_file = str(root / 'other.json')
    text = message(cfg)
    assert f'{str(root / "other.json")!r} (val_evaluator.ann_file)' in text
    cfg.val_evaluator = [dict(type='M'), cfg.val_evaluator]
    assert '(val_evaluator[1].ann_file)' in message(cfg)


@pytest.mark.parametrize(
    ('wrap', 'key'),
    [
        (lambda d: dict(type='RepeatDataset', times=2, dataset=d), 'dataset'),
        (lambda d: dict(type='ConcatDataset', datasets=[d]), 'datasets[0]'),
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
                'mmext.checks.config.read.print_log',
                lambda text, **_: lines.append(text),
            )
            check_data_paths(cfg)
    assert len(lines) == 1
    assert 'val_dataloader.dataset.ann_file is not checked' in lines[0]


def test_rejects_unknown_split():
    with pytest.raises(ValueError, match=r"splits must be .* got 'trainval'"):
        check_data_paths(Config(dict()), splits=['trainval'])


@pytest.mark.parametrize('names', [['mmext.models', 'json.tool'], 'json.tool'])
def test_leaves_own_packages_to_the_registries(tmp_path, monkeypatch, names):
    asked = []
    monkeypatch.setattr(
        'mmext.checks.config.read.import_modules_from_strings',
        lambda **options: asked.append(options),
    )
    path = tmp_path / 'config.py'
    custom = dict(imports=names, allow_failed_imports=False)
    path.write_text(f'custom_imports = {custom}')
    cfg = read_config(path, own_imports=False)
    assert cfg.custom_imports == custom
    assert asked == [{**custom, 'imports': ['json.tool']}]


def test_wrong_imports_fail_also_without_our_own(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text("custom_imports = dict(imports=['mmext.modles'])")
    for own_imports in (True, False):
        with pytest.raises(ImportError, match=r'cannot be loaded: .*modles'):
            read_config(path, own_imports=own_imports)
