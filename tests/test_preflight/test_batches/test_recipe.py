import pytest
from mmengine.registry import DefaultScope
from preflight_configs import detector, segmentor
from torch import nn

from mmext.preflight.batches.recipe import (
    Sizes,
    class_counts,
    fit_to_pictures,
    make_recipe,
)

SIZES = Sizes((64, 64), (64, 64))


def part(**numbers):
    module = nn.Module()
    for name, value in numbers.items():
        setattr(module, name, value)
    return module


def test_recipe_of_a_detector():
    cfg = detector()
    cfg['train_dataloader']['dataset']['metainfo'] = {'classes': ('a', 'b')}
    cfg['train_dataloader']['dataset']['return_classes'] = True
    cfg['train_dataloader']['collate_fn'] = {'type': 'default_collate'}
    with DefaultScope.overwrite_default_scope('mmdet'):
        recipe = make_recipe(
            cfg, part(bbox_head=part(num_classes=3)), Sizes((8, 9), (80, 90))
        )
    assert recipe.task == 'detection'
    assert recipe.size == (8, 9)
    assert recipe.declared_size == (80, 90)
    assert recipe.num_classes == 3
    assert recipe.channels == 3
    assert recipe.classes == ('a', 'b')
    assert recipe.collate == {'type': 'default_collate'}
    (fields,) = recipe.fields
    assert fields.text
    (pipeline,) = recipe.pipelines
    assert pipeline == [{'type': 'PackDetInputs'}]


def test_recipe_of_a_segmentor():
    cfg = segmentor()
    cfg['model']['data_preprocessor']['mean'] = [0] * 25
    head = part(num_classes=5, ignore_index=9)
    with DefaultScope.overwrite_default_scope('mmseg'):
        recipe = make_recipe(cfg, part(decode_head=head), SIZES)
    assert recipe.task == 'semantic'
    assert recipe.channels == 25
    assert recipe.ignore_index == 9
    assert recipe.num_classes == 5


@pytest.mark.parametrize(
    ('scope', 'text', 'task'),
    [
        ('mmdet', {}, 'detection'),
        ('mmdet', {'roi_head': {'mask_head': {}}}, 'instance'),
        ('mmseg', {}, 'semantic'),
    ],
)
def test_without_data(scope, text, task):
    cfg = {'default_scope': scope, 'model': text}
    with DefaultScope.overwrite_default_scope(scope):
        recipe = make_recipe(cfg, nn.Module(), SIZES)
    assert recipe.task == task
    assert recipe.num_classes == 1


@pytest.mark.parametrize(
    ('model', 'counts'),
    [
        (part(bbox_head=part(num_classes=80)), (80, 0)),
        (part(rpn_head=part(num_classes=1)), (0, 0)),
        (
            part(
                rpn_head=part(num_classes=1),
                roi_head=part(
                    bbox_head=nn.ModuleList([part(num_classes=7)] * 3),
                    semantic_head=part(num_classes=183),
                ),
            ),
            (7, 183),
        ),
        (
            part(
                panoptic_head=part(
                    num_classes=133,
                    num_things_classes=80,
                    num_stuff_classes=53,
                )
            ),
            (80, 53),
        ),
        (
            part(
                roi_head=part(bbox_head=part(num_classes=80)),
                semantic_head=part(num_classes=54, num_stuff_classes=53),
            ),
            (80, 53),
        ),
        (part(detector=part(bbox_head=part(num_classes=4))), (4, 0)),
        (
            part(
                decode_head=nn.ModuleList(
                    [part(num_classes=19), part(num_classes=19)]
                )
            ),
            (19, 0),
        ),
    ],
)
def test_counts_of_classes(model, counts):
    assert class_counts(model) == counts


def test_fits_a_segmentor():
    cfg = segmentor()
    sizes, notes = fit_to_pictures(cfg)
    assert sizes.made == (96, 192)
    assert sizes.declared == (512, 1024)
    assert cfg['model']['data_preprocessor']['size'] == (96, 192)
    assert len(notes) == 1


def test_fits_a_size_that_is_told():
    cfg = segmentor()
    sizes, notes = fit_to_pictures(cfg, (64, 64))
    assert sizes.made == (64, 64)
    assert cfg['model']['data_preprocessor']['size'] == (64, 64)
    sizes, notes = fit_to_pictures(segmentor(), (512, 1024))
    assert sizes.made == sizes.declared
    assert notes == []


def test_keeps_the_size_of_anchors():
    cfg = detector()
    cfg['model']['bbox_head']['anchor_generator']['input_size'] = 300
    sizes, notes = fit_to_pictures(cfg)
    assert sizes.made == (300, 300)
    assert notes == []


def test_keeps_a_classifier_as_it_is():
    cfg = {'default_scope': 'mmpretrain', 'model': {'img_size': 224}}
    sizes, notes = fit_to_pictures(cfg)
    assert sizes.made == sizes.declared == (256, 256)
    assert notes == []
    assert cfg['model'] == {'img_size': 224}


@pytest.mark.parametrize(
    ('filters', 'drops'),
    [
        ([{'filter_empty_gt': True}], True),
        ([{'filter_empty_gt': True}, None], False),
        ([{'filter_empty_gt': True}, {'filter_empty_gt': True}], True),
        ([{'filter_empty_gt': False}], False),
        ([None], False),
    ],
)
def test_tells_whether_empty_pictures_are_left_out(filters, drops):
    cfg = detector()
    loader = cfg['train_dataloader']
    inner = [{**loader['dataset'], 'filter_cfg': each} for each in filters]
    loader['dataset'] = {'type': 'ConcatDataset', 'datasets': inner}
    with DefaultScope.overwrite_default_scope('mmdet'):
        recipe = make_recipe(cfg, nn.Module(), SIZES)
    assert recipe.drops_empty is drops
