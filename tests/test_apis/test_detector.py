"""Config, class names and weights come together, or say why not."""

import logging

import cv2
import numpy as np
import pytest
import torch
from helpers import random_checkpoints as small
from helpers.toy_ranks import load_segmentation
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.infer import BaseInferencer

from mmext.apis.detector import (
    inference_pipeline,
    load_detector,
    read_metainfo,
)
from mmext.apis.infer import infer_images
from mmext.checks.config import read_config

CLASSES = ('red', 'blue')


@pytest.fixture
def config(finder, tmp_path):
    return Config.fromfile(finder.write_config(tmp_path))


def with_dataset(**dataset):
    return Config({'test_dataloader': {'dataset': dataset}})


def test_pipeline_is_found_in_wrappers_and_loads_no_annotations():
    steps = [{'type': 'A'}, {'type': 'mmdet.LoadAnnotations'}, {'type': 'B'}]
    inner = {'type': 'X', 'pipeline': steps}
    for dataset in (
        inner,
        {'type': 'Repeat', 'dataset': inner},
        {'type': 'Concat', 'datasets': [inner, inner]},
    ):
        pipeline = inference_pipeline(with_dataset(**dataset))
        assert pipeline == [{'type': 'A'}, {'type': 'B'}]
    only_val = Config({'val_dataloader': {'dataset': inner}})
    assert len(inference_pipeline(only_val)) == 2


def test_names_of_the_checkpoint_come_first(config):
    meta = {'dataset_meta': {'CLASSES': ['x', 'y'], 'palette': [(1, 2, 3)]}}
    assert read_metainfo(config, meta=meta) == {
        'classes': ('x', 'y'),
        'palette': [(1, 2, 3)],
    }
    meta = {'CLASSES': ('old', 'style')}
    assert read_metainfo(config, meta=meta)['classes'] == ('old', 'style')
    assert read_metainfo(config, meta={})['classes'] == CLASSES


@pytest.mark.parametrize('kind', ['mmdet.VOCDataset', 'VOCDataset'])
def test_names_of_the_data_set_class_come_last(kind):
    config = with_dataset(type=kind, pipeline=[])
    config.default_scope = 'mmdet'
    assert read_metainfo(config)['classes'][:2] == ('aeroplane', 'bicycle')


@pytest.mark.parametrize('classes', [None, (), 'names.txt'])
def test_rejects_no_names(classes):
    config = with_dataset(pipeline=[], metainfo={'classes': classes})
    with pytest.raises(ValueError, match='classes must be in the checkpoint'):
        read_metainfo(config)


def test_loads_ready_to_predict(finder, config, tmp_path):
    before = config.pretty_text
    path = finder.write_checkpoint(
        tmp_path, dataset_meta={'classes': ('one', 'two')}
    )
    model = load_detector(config, path, device='cpu')
    assert not model.training
    assert model.dataset_meta['classes'] == ('one', 'two')
    assert model.cfg.model == config.model
    assert model.scores.tolist() == pytest.approx([0.9, 0.4])
    assert config.pretty_text == before


def test_loads_without_a_config(finder, config, tmp_path):
    path = finder.write_checkpoint(tmp_path, cfg=config.pretty_text)
    model = load_detector(
        None, str(path), cfg_options={'model.masks': True}, device='cpu'
    )
    assert model.masks
    assert model.dataset_meta['classes'] == CLASSES


def test_logs_weights_that_have_no_use(config, tmp_path, monkeypatch):
    path = tmp_path / 'more.pth'
    torch.save(
        {'scores': torch.ones(2), 'mask_head.weight': torch.ones(1)}, path
    )
    logged = []
    monkeypatch.setattr(
        'mmext.apis.detector.print_log',
        lambda text, level, **_: logged.append((level, text)),
    )
    load_detector(config, path, device='cpu')
    ((level, text),) = logged
    assert level == logging.WARNING
    assert 'mask_head.weight' in text


@pytest.fixture
def picture(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (50, 66, 3))
    path = tmp_path / 'a.png'
    assert cv2.imwrite(str(path), noise.astype(np.uint8))
    return str(path)


def instances(model, picture):
    """What our function finds, to compare with a host's."""
    (prediction,) = infer_images(model, [picture], score_thr=0)
    return prediction


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_functions_of_mmdet_take_our_checkpoints(tmp_path, picture):
    """By config and checkpoint, and by the checkpoint alone."""
    from mmdet.apis import DetInferencer, inference_detector, init_detector

    path = str(tmp_path / 'a.pth')
    config = small.write_co_dino(tmp_path / 'a.pth')
    expected = instances(load_detector(None, path, device='cpu'), picture)
    model = init_detector(config.copy(), path, device='cpu')
    assert model.dataset_meta['classes'] == small.CLASSES[:6]
    results = inference_detector(model, picture).pred_instances
    for given in ((config, path), (None, path)):
        caller = DetInferencer(*given, device='cpu', show_progress=False)
        assert caller.model.dataset_meta['classes'] == small.CLASSES[:6]
        result = caller(picture, out_dir=str(tmp_path / 'theirs'))
        assert (tmp_path / 'theirs/vis/a.png').is_file()
        (theirs,) = result['predictions']
        for scores in (theirs['scores'], results.scores):
            np.testing.assert_allclose(
                sorted(scores, reverse=True), expected.scores, rtol=1e-6
            )


@pytest.mark.filterwarnings('ignore')
def test_functions_of_mmseg_take_our_checkpoints(tmp_path, picture):
    """The inferencer takes out what loads annotations by its plain name."""
    load_segmentation()
    from mmseg.apis import MMSegInferencer, inference_model, init_model

    path = str(tmp_path / 'a.pth')
    config = small.write_pidnet(tmp_path / 'a.pth')
    expected = instances(load_detector(None, path, device='cpu'), picture)
    model = init_model(config.copy(), path, device='cpu')
    assert model.dataset_meta['palette'] == small.PALETTE
    results = inference_model(model, picture).pred_sem_seg.data[0].numpy()
    np.testing.assert_array_equal(results, expected.label_map)
    for given in ((config, path), (None, path)):
        caller = MMSegInferencer(*given, device='cpu')
        caller.show_progress = False
        result = caller(picture, return_vis=True, with_labels=False)
        np.testing.assert_array_equal(result['predictions'], results)
        colors = np.array(small.PALETTE)[results] * 0.8
        drawn = result['visualization'] - colors
        assert -1 <= drawn.min() <= drawn.max() <= 0.2 * 255 + 1


@pytest.mark.filterwarnings('ignore')
def test_hosts_find_our_configs_by_name():
    """As MMEngine's hub has them; docs/your_data.md shows the rest."""
    name = 'pidnet/pidnet_small_shapes.py'
    config = get_config(f'mmext::{name}')
    assert config.model == read_config(f'mmext::{name}').model
    listed = BaseInferencer.list_models('mmext')
    assert {'pidnet_small_shapes', 'co_dino_r18_shapes'} < set(listed)
    for wrong in ('mmext::pidnet/none.py', 'none::a.py'):
        with pytest.raises(FileNotFoundError, match='that a package ships'):
            read_config(wrong)
