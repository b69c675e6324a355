"""data_root: reaches all data sets and evaluators, and nothing else."""

import copy

import pytest
from mmengine.config import Config

import mmext
from mmext.datasets import apply_data_root
from mmext.datasets.data_root import is_below, walk_data_sources


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


def test_moves_data_sets_and_evaluator():
    cfg = apply_data_root(make())
    assert cfg.train_dataloader.dataset.data_root == '/disk/coco'
    assert cfg.train_dataloader.dataset.ann_file == 'a.json'
    assert cfg.val_dataloader.dataset.data_root == '/disk/coco'
    assert cfg.val_evaluator.ann_file == '/disk/coco/b.json'


def test_does_not_change_its_argument():
    cfg = make()
    before = copy.deepcopy(cfg.to_dict())
    apply_data_root(cfg)
    assert cfg.to_dict() == before


def test_twice_is_once():
    once = apply_data_root(make())
    assert once.base_data_root == '/disk/coco'
    assert apply_data_root(once).to_dict() == once.to_dict()


@pytest.mark.parametrize('new', ['/disk/coco', '/disk/coco/'])
@pytest.mark.parametrize('old', ['data/coco', 'data/coco/'])
def test_slashes_at_the_end_do_not_matter(new: str, old: str):
    cfg = apply_data_root(make(data_root=new, base_data_root=old))
    assert cfg.val_dataloader.dataset.data_root == new
    assert cfg.val_evaluator.ann_file == '/disk/coco/b.json'


def test_remote_root():
    cfg = apply_data_root(make(data_root='s3://bucket/coco/'))
    assert cfg.val_evaluator.ann_file == 's3://bucket/coco/b.json'


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


def test_paths_written_without_data_root():
    dataset = dict(
        ann_file='data/coco/a.json',
        data_prefix=dict(img='data/coco/train/', seg='elsewhere/'),
    )
    cfg = apply_data_root(make(train_dataloader=loader(**dataset)))
    moved = cfg.train_dataloader.dataset
    assert moved.ann_file == '/disk/coco/a.json'
    assert moved.data_prefix == dict(img='/disk/coco/train/', seg='elsewhere/')


def test_nothing_without_a_root():
    cfg = Config(dict(train_dataloader=loader(data_root='data/coco/')))
    assert apply_data_root(cfg).to_dict() == cfg.to_dict()


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


def test_no_data_sets_is_no_error():
    cfg = Config(dict(data_root='a', base_data_root='b', model=dict()))
    assert apply_data_root(cfg).base_data_root == 'a'


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


def test_child_config_and_option(tmp_path):
    """The two ways a user sets it, on a shipped config."""
    child = tmp_path / 'child.py'
    child.write_text(
        "_base_ = 'mmext::_base_/datasets/coco_instance_lsj.py'\n"
        "data_root = 'elsewhere/coco'\n"
    )
    by_child = apply_data_root(Config.fromfile(child))
    path = mmext.config_path('_base_/datasets/coco_instance_lsj.py')
    by_option = Config.fromfile(path)
    by_option.merge_from_dict(dict(data_root='elsewhere/coco'))
    for cfg in (by_child, apply_data_root(by_option)):
        inner = cfg.train_dataloader.dataset.dataset
        assert inner.data_root == 'elsewhere/coco'
        assert cfg.val_dataloader.dataset.data_root == 'elsewhere/coco'
        assert cfg.test_evaluator.ann_file == (
            'elsewhere/coco/annotations/instances_val2017.json'
        )


def test_walk_gives_keys_that_options_can_use():
    cfg = make(val_evaluator=[dict(type='M'), dict(type='N')])
    keys = [key for key, _, _ in walk_data_sources(cfg, 'val')]
    assert 'val_dataloader.dataset' in keys
    cfg.merge_from_dict({f'{keys[-1]}.ann_file': 'x'})
    assert cfg.val_evaluator[1].ann_file == 'x'
    assert list(walk_data_sources(Config(dict()), 'train')) == []


def test_is_below():
    assert is_below('a/b/c', 'a/b')
    assert not is_below('a/bc', 'a/b')
    assert not is_below(None, 'a/b')
