"""ValidateLabels in real pipelines of mmseg and mmdet, on generated data.

At the end: its arguments, and samples made by hand.
"""

import copy
import json
import logging
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.right_sets import host_path
from mmcv.transforms import Compose
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from mmengine.runner import Runner
from PIL import Image

from mmext.datasets import ShapesSpec, write_shapes_dataset
from mmext.datasets.transforms import LabelError, ValidateLabels

SPEC = ShapesSpec(
    image_size=(64, 48), min_objects=2, max_objects=5, empty_fraction=0.0
)
COUNT = 6
BAD = '000002'
PIXEL = (10, 20)


@pytest.fixture(scope='module')
def clean(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('shapes') / 'set'
    write_shapes_dataset(folder, SPEC, num_train=COUNT, num_val=0)
    return folder


@pytest.fixture
def bad_map(clean, tmp_path) -> Path:
    """One map has three pixels of a class that does not exist."""
    root = tmp_path / 'set'
    shutil.copytree(clean, root)
    file = root / 'ann_dir' / 'train' / f'{BAD}.png'
    label_map = np.array(Image.open(file))
    y, x = PIXEL
    label_map[y, x : x + 3] = 9
    Image.fromarray(label_map).save(file)
    return root


def seg_data(root, check, after=(), **changes):
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='mmseg.LoadAnnotations'),
        dict(type='mmext.ValidateLabels', **check),
        *after,
    ]
    cfg = dict(
        type='mmext.ShapesSegDataset',
        data_root=str(root),
        data_prefix=dict(
            img_path='img_dir/train/', seg_map_path='ann_dir/train/'
        ),
        pipeline=pipeline,
    )
    with DefaultScope.overwrite_default_scope('mmseg'):
        return DATASETS.build(cfg | changes)


def det_data(root, check, before=(), **changes):
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(
            type='mmdet.LoadAnnotations',
            with_bbox=True,
            with_mask=True,
            poly2mask=changes.pop('poly2mask', True),
            with_seg=changes.pop('with_seg', True),
        ),
        *before,
        dict(type='mmext.ValidateLabels', **check),
        dict(type='mmdet.PackDetInputs'),
    ]
    cfg = dict(
        type='mmext.ShapesDataset',
        data_root=str(root),
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/', seg='ann_dir/train/'),
        pipeline=pipeline,
    )
    with DefaultScope.overwrite_default_scope('mmdet'):
        return DATASETS.build(cfg | changes)


def loaded(dataset, num_workers):
    """All samples, in order, by a data loader as runners build it."""
    loader = Runner.build_dataloader(
        dict(
            dataset=dataset,
            batch_size=2,
            num_workers=num_workers,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='pseudo_collate'),
        )
    )
    return list(loader)


def the_check(dataset) -> ValidateLabels:
    (check,) = (
        step
        for step in dataset.pipeline.transforms
        if isinstance(step, ValidateLabels)
    )
    return check


def journal(dataset) -> list:
    return the_check(dataset).journal.drain()


# Processes of a data loader take seconds to start.
WORKERS = [0, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize('num_workers', WORKERS)
def test_clean_semantic_data(clean, num_workers):
    after = [dict(type='mmseg.GenerateEdge'), dict(type='mmseg.PackSegInputs')]
    dataset = seg_data(clean, dict(num_classes=7), after)
    batches = loaded(dataset, num_workers)
    assert sum(len(batch['inputs']) for batch in batches) == COUNT
    assert journal(dataset) == []


@pytest.mark.parametrize('num_workers', [0, 2])
def test_raise_names_all(bad_map, num_workers):
    dataset = seg_data(bad_map, dict(num_classes=7))
    with pytest.raises(LabelError) as caught:
        loaded(dataset, num_workers)
    text = str(caught.value)
    y, x = PIXEL
    for part in (
        f'{BAD}.png',
        f'(image {bad_map}',
        '3 of 3,072 pixels are out of range, labels must be in [0, 6]',
        '(num_classes=7, ignore_index=255); values: 9 (3); first 9 at '
        f'(y={y}, x={x})',
        'compare num_classes=7 of the head',
    ):
        assert part in text


def test_number_of_classes_is_found_in_workers(bad_map):
    """Neither an argument, nor a hook: the data set has them."""
    dataset = seg_data(bad_map, {})
    with pytest.raises(LabelError, match='num_classes=7, ignore'):
        loaded(dataset, 2)
    with pytest.raises(
        ValueError, match=r'not known; set it, or add mmext\.L'
    ):
        loaded(dataset, 0)
    the_check(dataset).adopt(dataset)
    with pytest.raises(LabelError, match='num_classes=7, ignore'):
        loaded(dataset, 0)


@pytest.mark.parametrize('num_workers', WORKERS)
def test_ignore_pixels(bad_map, clean, num_workers):
    check = dict(num_classes=7, action='ignore_pixels')
    dataset = seg_data(bad_map, check, [dict(type='mmseg.PackSegInputs')])
    others = seg_data(
        clean, dict(num_classes=7), [dict(type='mmseg.PackSegInputs')]
    )
    pairs = zip(loaded(dataset, num_workers), loaded(others, 0))
    changed = 0
    for ours, theirs in pairs:
        for one, two in zip(ours['data_samples'], theirs['data_samples']):
            a, b = one.gt_sem_seg.data, two.gt_sem_seg.data
            changed += int((a != b).sum())
            assert set(a[a != b].tolist()) <= {255}
            assert (BAD in one.img_path) == bool((a != b).any())
    assert changed == 3
    (entry,) = journal(dataset)
    assert (entry.action, entry.pixels) == ('ignored', 3)
    assert entry.file.endswith(f'{BAD}.png')
    assert 'values: 9 (3)' in entry.text


@pytest.mark.parametrize('num_workers', WORKERS)
def test_skip_sample(bad_map, num_workers):
    check = dict(num_classes=7, action='skip_sample')
    dataset = seg_data(bad_map, check, [dict(type='mmseg.PackSegInputs')])
    batches = loaded(dataset, num_workers)
    names = [
        Path(sample.img_path).stem
        for batch in batches
        for sample in batch['data_samples']
    ]
    assert len(names) == COUNT
    assert BAD not in names
    entries = journal(dataset)
    # The data set may have drawn the bad one again.
    assert {entry.action for entry in entries} == {'skipped'}
    assert all(entry.file.endswith(f'{BAD}.png') for entry in entries)


@pytest.mark.parametrize('num_workers', WORKERS)
def test_skipping_in_test_mode_is_an_error(bad_map, num_workers):
    check = dict(num_classes=7, action='skip_sample')
    dataset = seg_data(bad_map, check, test_mode=True)
    if not num_workers:
        the_check(dataset).adopt(dataset)
    with pytest.raises(LabelError, match='In test mode no sample can'):
        loaded(dataset, num_workers)


def messages(call) -> list[str]:
    """What a call logs by mmengine's logger of this process."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    try:
        call()
    finally:
        logger.removeHandler(handler)
    return lines


def test_warn_leaves_the_sample_and_tells_five_times(bad_map):
    dataset = seg_data(bad_map, dict(num_classes=7, action='warn'))
    lines = messages(lambda: [dataset[1] for _ in range(8)])
    assert (dataset[1]['gt_seg_map'] == 9).sum() == 3
    assert len(lines) == 5
    assert all('values: 9 (3)' in line for line in lines)
    assert 'They are left as they are.' in lines[0]
    assert 'counted, not shown' in lines[4]
    assert 'counted, not shown' not in lines[3]
    assert [entry.action for entry in journal(dataset)] == ['warned'] * 9


@pytest.mark.parametrize('num_workers', WORKERS)
@pytest.mark.parametrize('poly2mask', [True, False])
def test_clean_instances(clean, num_workers, poly2mask):
    """The masks are RLE: as polygons, the loader flags them as ignored."""
    check = dict(num_classes=6, num_seg_classes=7)
    before = [
        dict(type='mmdet.RandomFlip', prob=0.5),
        dict(type='mmdet.Resize', scale=(96, 72), keep_ratio=True),
    ]
    dataset = det_data(clean, check, before, poly2mask=poly2mask)
    batches = loaded(dataset, num_workers)
    assert sum(len(batch['inputs']) for batch in batches) == COUNT
    assert journal(dataset) == []


def evaluation(data, host: str, root, check: dict):
    """A data set with the host's pipeline for evaluation, and a check."""
    steps = Config.fromfile(host_path(host)).test_pipeline
    names = [step['type'] for step in steps]
    assert names.index('Resize') < names.index('LoadAnnotations')
    # As the host's, only quicker.
    steps[names.index('Resize')]['scale'] = (96, 72)
    steps.insert(-1, dict(type='mmext.ValidateLabels', **check))
    return data(root, check, pipeline=steps, serialize_data=False)


EVALUATIONS = (
    (seg_data, 'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py'),
    (seg_data, 'mmseg::fcn/fcn_r50-d8_4xb4-40k_voc12aug-512x512.py'),
    (det_data, 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'),
    (det_data, 'mmdet::yolox/yolox_s_8xb8-300e_coco.py'),
)


@pytest.mark.parametrize(('data', 'host'), EVALUATIONS)
def test_hosts_load_labels_after_resizing(clean, data, host):
    """Labels are those of the image as it was."""
    check = dict(num_classes=7)
    dataset = evaluation(data, host, clean, check)
    for step in dataset.pipeline.transforms:
        # ADE20K's: the generated set has no label to be ignored.
        if getattr(step, 'reduce_zero_label', None):
            step.reduce_zero_label = False
    assert sum(len(batch['inputs']) for batch in loaded(dataset, 0)) == COUNT
    assert journal(dataset) == []


@pytest.mark.parametrize(('data', 'host'), EVALUATIONS[1:3])
def test_errors_are_found_after_resizing(clean, tmp_path, data, host):
    def change(content):
        content['annotations'][0]['bbox'][2] = 70

    root = edited(clean, tmp_path, change)
    file = root / 'ann_dir' / 'train' / f'{BAD}.png'
    Image.open(file).crop((0, 0, 60, 48)).save(file)
    dataset = evaluation(data, host, root, dict(num_classes=7))
    with pytest.raises(LabelError, match=r'PAIR001|DET005'):
        loaded(dataset, 0)


def test_boxes_that_are_ignored_may_be_anything(clean, tmp_path):
    """Crowds, and boxes that are too small, as loaders flag them."""
    check = dict(num_classes=6)
    dataset = det_data(clean, check, with_seg=False, serialize_data=False)
    sample = dataset.pipeline.transforms[0](dataset.get_data_info(0))
    sample = dataset.pipeline.transforms[1](sample)
    boxes, flags = sample['gt_bboxes'], sample['gt_ignore_flags']
    flags[:] = [True] + [False] * (len(flags) - 1)
    sample['gt_bboxes_labels'][0] = -1
    for box in ((5, 5, 5, 9), (-9, -9, -2, -2), (9, 9, 900, 20)):
        boxes.tensor[0] = boxes.tensor.new_tensor(box)
        assert the_check(dataset)(sample) is sample
    flags[0] = False
    with pytest.raises(LabelError, match='DET005'):
        the_check(dataset)(sample)


def edited(clean, tmp_path, change):
    root = tmp_path / 'edited'
    shutil.copytree(clean, root)
    file = root / 'annotations' / 'train.json'
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return root


def test_box_out_of_the_image(clean, tmp_path):
    def change(content):
        content['annotations'][0]['bbox'][2] = 200

    root = edited(clean, tmp_path, change)
    check = dict(num_classes=6, action='ignore_pixels')
    dataset = det_data(root, check, with_seg=False)
    with pytest.raises(LabelError, match='reach out of the image') as caught:
        loaded(dataset, 0)
    assert "action='ignore_pixels' is for values of label maps only" in str(
        caught.value
    )


def test_map_beside_boxes_needs_its_own_number(clean):
    with pytest.raises(ValueError, match=r'num_seg_classes .* not known; set'):
        loaded(det_data(clean, dict(num_classes=6)), 0)


@pytest.mark.parametrize('resized', [False, True])
def test_panoptic_pipeline(clean, monkeypatch, tmp_path, resized):
    """mmdet's loader, with the formula of the package that it asks for.

    The hosts' pipelines for evaluation resize the image before.
    """
    utils = SimpleNamespace(rgb2id=lambda c: c @ np.array([1, 256, 65536]))
    monkeypatch.setitem(
        sys.modules, 'panopticapi', SimpleNamespace(utils=utils)
    )
    colours = np.zeros((40, 60, 3), np.uint8)
    colours[5:15, 10:30, 0], colours[20:, :, 1] = 7, 2
    Image.fromarray(colours).save(tmp_path / 'p.png')
    Image.fromarray(colours).save(tmp_path / 'p.jpg')
    info = {
        'img_path': str(tmp_path / 'p.jpg'),
        'seg_map_path': str(tmp_path / 'p.png'),
        'instances': [
            {'bbox': [10, 5, 30, 15], 'bbox_label': 1, 'ignore_flag': 0}
        ],
        'segments_info': [
            {'id': 7, 'category': 1, 'is_thing': True},
            {'id': 512, 'category': 3, 'is_thing': False},
        ],
    }
    check = ValidateLabels()
    check.adopt(
        SimpleNamespace(metainfo={'classes': 'abcd', 'thing_classes': 'ab'})
    )
    with DefaultScope.overwrite_default_scope('mmdet'):
        resize = dict(type='mmdet.Resize', scale=(120, 90))
        steps = [
            dict(type='LoadImageFromFile'),
            *[resize] * resized,
            dict(type='mmdet.LoadPanopticAnnotations'),
        ]
        load = Compose([TRANSFORMS.build(step) for step in steps])
    results = load(copy.deepcopy(info))
    assert set(np.unique(results['gt_seg_map'])) == {1, 3, 255}
    assert check(results) is results
    info['segments_info'][1]['category'] = 4
    with pytest.raises(LabelError, match=r'must be in \[0, 3\]'):
        check(load(info))


@pytest.mark.parametrize(
    ('kwargs', 'match'),
    [
        ({'action': 'skip'}, 'action must be one of'),
        ({'action': 'ignore_pixels', 'ignore_index': None}, 'got None'),
        ({'num_classes': 0}, 'num_classes must be in'),
        ({'num_seg_classes': -3}, 'num_seg_classes must be in'),
        ({'box_tolerance': -1}, 'box_tolerance must be in'),
        ({'min_size': -1}, 'min_size must be in'),
        ({'mask_box_iou': 1.5}, r'mask_box_iou must be in \[0, 1\], got 1.5'),
    ],
)
def test_rejects(kwargs, match):
    with pytest.raises(ValueError, match=match):
        ValidateLabels(**kwargs)


def test_rejects_a_place_where_there_is_nothing_to_check():
    check = ValidateLabels(num_classes=2)
    with pytest.raises(ValueError, match='must come after LoadAnnotations'):
        check({'img': np.zeros((2, 2, 3)), 'img_path': 'a.jpg'})
    with pytest.raises(ValueError, match=r"with \['data_samples', 'inputs'\]"):
        check({'inputs': 1, 'data_samples': 2})


def test_rejects_two_values_to_ignore():
    check = ValidateLabels(num_classes=2)
    results = {'gt_seg_map': np.zeros((2, 2), int), 'ignore_index': 254}
    with pytest.raises(ValueError, match='is 255, that of LoadAnnotations'):
        check(results)


def test_ignored_value_must_fit_the_dtype():
    check = ValidateLabels(2, ignore_index=-100, action='ignore_pixels')
    results = {'gt_seg_map': np.array([[0, 3]], np.uint8)}
    with pytest.raises(LabelError, match='-100, which uint8 does not hold'):
        check(results)
    label_map = np.array([[0, 3]], np.int16)
    changed = check({'gt_seg_map': label_map})['gt_seg_map']
    assert changed.tolist() == [[0, -100]]
    assert label_map.tolist() == [[0, 3]]


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmext'])
def test_builds_from_registry(scope):
    with DefaultScope.overwrite_default_scope(scope):
        check = TRANSFORMS.build(
            dict(type='mmext.ValidateLabels', num_classes=3)
        )
    assert isinstance(check, ValidateLabels)
    assert "action='raise'" in repr(check)
    again = pickle.loads(pickle.dumps(check))
    assert again.spec == check.spec
    assert again.journal.path == check.journal.path
