from types import SimpleNamespace

import pytest
from helpers import toy_training as toy
from mmdet.models.detectors import RPN
from mmengine.model import BaseTTAModel
from torch import nn

from mmext.engine import ClassCountCheckHook
from mmext.engine.hooks.label_range import check_class_count
from mmext.utils.label_spec import class_vocabulary, heads_of_model


def model_class_counts(model):
    return {
        f'{head.location}.num_classes': head.num_classes
        for head in heads_of_model(model)
    }


def head(num_classes):
    module = nn.Module()
    module.num_classes = num_classes
    return module


def model(**parts):
    """Parts by path, ``__`` for a dot."""
    root = nn.Module()
    for path, part in parts.items():
        *parents, name = path.split('__')
        module = root
        for parent in parents:
            if not hasattr(module, parent):
                setattr(module, parent, nn.Module())
            module = getattr(module, parent)
        setattr(module, name, part)
    return root


@pytest.mark.parametrize(
    ('parts', 'expected'),
    [
        (dict(num_classes=5, bbox_head=head(7)), {'model.num_classes': 5}),
        (
            dict(roi_head__bbox_head=nn.ModuleList([head(3), head(4)])),
            {
                'model.roi_head.bbox_head[0].num_classes': 3,
                'model.roi_head.bbox_head[1].num_classes': 4,
            },
        ),
        (
            dict(decode_head=head(19), auxiliary_head=head(1)),
            {'model.decode_head.num_classes': 19},
        ),
        (
            # The segmentor's own number is none of its config.
            dict(num_classes=19, decode_head=head(19)),
            {'model.decode_head.num_classes': 19},
        ),
        (
            dict(
                panoptic_fusion_head=head(133),
                roi_head__bbox_head=head(80),
                semantic_head=head(53),
            ),
            {'model.panoptic_fusion_head.num_classes': 133},
        ),
        (dict(rpn_head=head(1)), {}),
        (dict(head=head(None)), {}),
    ],
)
def test_counts_of_hosts(parts, expected):
    assert model_class_counts(model(**parts)) == expected


def test_region_proposals_have_no_classes():
    """Its only head says 1, and takes objects of any class for it."""
    model = RPN.__new__(RPN)
    nn.Module.__init__(model)
    model.bbox_head = nn.Module()
    model.bbox_head.num_classes = 1
    assert model_class_counts(model) == {}


def test_wrapped_model():
    class Tta(BaseTTAModel):
        def merge_preds(self, data_samples_list):
            return data_samples_list

    assert model_class_counts(Tta(model(num_classes=5, test_step=None))) == {
        'model.num_classes': 5
    }


def test_equal_counts_and_unknown_ones_pass():
    for metainfo in (dict(classes=('a', 'b')), dict(), None):
        check_class_count(model(num_classes=2), metainfo, 'train')
    check_class_count(model(), dict(classes=['a']), 'val')


def with_classes(*names, **kwargs):
    loader = toy.loader(**kwargs)
    loader['dataset']['metainfo'] = dict(classes=names)
    return loader


@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_training_does_not_start(tmp_path, split):
    trace = tmp_path / 'trace.0'
    with pytest.raises(ValueError, match=f'and the {split} data must have'):
        toy.train(
            tmp_path,
            custom_hooks=[dict(type='mmext.ClassCountCheckHook')],
            **{f'{split}_dataloader': with_classes('a', 'b', 'c')},
        )
    assert not trace.exists()


def test_validation_and_test_do_not_start(tmp_path):
    changes = dict(
        custom_hooks=[dict(type='mmext.ClassCountCheckHook')],
        val_dataloader=with_classes('a'),
        test_dataloader=with_classes('a'),
        test_cfg=dict(),
        test_evaluator=dict(type='ToyMetric'),
    )
    runner = toy.build(tmp_path, **changes)
    assert any(isinstance(h, ClassCountCheckHook) for h in runner.hooks)
    with pytest.raises(ValueError, match='the val data'):
        runner.val()
    with pytest.raises(ValueError, match='the test data'):
        runner.test()


def embedding_model(trained, tested):
    """A model whose query head was given these names, or counts of them."""

    def given(names):
        if names is None:
            return None
        count = names if isinstance(names, int) else len(names)
        return SimpleNamespace(
            vectors=[0] * count,
            classes=None if isinstance(names, int) else tuple(names),
            source='file.pt',
        )

    query_head = nn.Module()
    query_head.class_vocabulary = lambda training: given(
        trained if training else tested
    )
    return model(num_classes=3, query_head=query_head)


def test_class_embeddings_count_where_there_are_any():
    data = dict(classes=('a', 'b'))
    for tested in (2, 'ab'):
        embeds = embedding_model('abc', tested)
        check_class_count(embeds, data, 'test')
        check_class_count(embeds, data, 'val')
        check_class_count(embeds, dict(classes=('a', 'b', 'c')), 'train')
    assert class_vocabulary(embedding_model(None, None), True) is None


@pytest.mark.parametrize(
    ('built', 'classes', 'split', 'message'),
    [
        (
            model(bbox_head=head(80)),
            tuple('abcdefgh'),
            'val',
            r'model.bbox_head.num_classes=80 and 8 in the data \(a, b, c, d, '
            r'e, f, ...\); set model.bbox_head.num_classes to 8, or name the '
            r"model's classes in val_dataloader.dataset.metainfo.classes",
        ),
        (
            model(num_classes=1),
            'person',
            'train',
            r"write classes=\('person', \)",
        ),
        (
            embedding_model('abc', 'ab'),
            ('a', 'b'),
            'train',
            r'got 3 in file\.pt and 2 in th',
        ),
        (
            embedding_model(None, None),
            ('a', 'b'),
            'val',
            r'model\.num_classes=3 and 2',
        ),
        (
            embedding_model('abc', 'abd'),
            ('a', 'b', 'c'),
            'test',
            r"same order, got 'd' in file\.pt and 'c' in the data as number "
            r'2; make .* or set test_dataloader.dataset.metainfo.classes',
        ),
    ],
)
def test_rejects(built, classes, split, message):
    with pytest.raises((TypeError, ValueError), match=message):
        check_class_count(built, dict(classes=classes), split)
