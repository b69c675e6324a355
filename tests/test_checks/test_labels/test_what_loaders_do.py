"""What findings say that loaders and metrics do, they do."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.label_boxes import edit_json
from helpers.label_plants import Plant, all_plants
from helpers.label_sets import DataSet, clean
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from mmext.checks.findings import ErrorCatcher, Severity

CRITERIA = ('HuasdorffDisstanceLoss', 'TverskyLoss')


def spoilt(rule: str, kind: str, root: Path, number: int = 0) -> DataSet:
    """A data set with one of the plants of a rule."""
    plants: list[Plant] = [
        plant
        for plant in all_plants()
        if (plant.rule, plant.kind) == (rule, kind)
    ]
    data = clean(kind, root / 'data')
    plants[number].spoil(data)
    return data


def built(data: DataSet, split: str = 'train'):
    """The data set of a split, as a training has it."""
    config = Config(data.config)
    scope = config.default_scope
    with (
        DefaultScope.overwrite_default_scope(scope),
        DATASETS.switch_scope_and_registry(scope),
    ):
        return DATASETS.build(config[f'{split}_dataloader'].dataset)


def loaded(data: DataSet, index: int, color_type: str = 'color') -> dict:
    """A sample of the training with its image, as MMDetection loads both."""
    load = LoadImageFromFile(color_type=color_type)
    return load(built(data).get_data_info(index))


def left(report) -> list[str]:
    return [group.message for group in report.groups if group.rule == 'CFG012']


@pytest.mark.parametrize('kind', ['coco', 'voc'])
def test_images_that_filter_cfg_leaves(kind, tmp_path):
    data = spoilt('CFG012', kind, tmp_path)
    # Of no class, which counts for neither.
    if kind == 'coco':
        edit_json(
            data.annotation(),
            lambda content: [
                note.update(category_id=77)
                for note in content['annotations'][:3]
            ],
        )
    _, report = data.check()
    (message,) = left(report)
    number = len(built(data))
    assert f'leaves {number} of 6 images of train' in message


def test_small_boxes_are_ignored(tmp_path):
    """As MMDetection's configs of Pascal VOC have it, with 32 pixels."""
    data = spoilt('CFG012', 'voc', tmp_path, 1)
    _, report = data.check()
    loaded = built(data)
    flags = [
        instance['ignore_flag']
        for index in range(len(loaded))
        for instance in loaded.get_data_info(index)['instances']
    ]
    assert (len(flags), sum(flags)) == (18, 3)
    assert left(report) == [
        'filter_cfg leaves 6 of 6 images of train; of 18 objects, 3 are '
        'ignored as narrower or lower than bbox_min_size=10: 1 split'
    ]
    data.config['train_dataloader']['dataset']['filter_cfg'] = {
        'bbox_min_size': 32
    }
    _, report = data.check()
    (group,) = report.groups
    assert 'of 18 objects, 18 are ignored' in group.message
    assert group.severity is Severity.ERROR


@pytest.mark.slow
def test_a_crowd_alone_keeps_its_image(tmp_path):
    """The loader looks at annotations, not at boxes that it keeps."""
    data = spoilt('CFG012', 'coco', tmp_path)

    def change(content: dict) -> None:
        for note in content['annotations'][:3]:
            note['iscrowd'] = 1
        for note in content['annotations'][3:6]:
            note['ignore'] = 1

    edit_json(data.annotation(), change)
    _, report = data.check()
    assert len(built(data)) == 4
    assert 'leaves 4 of 6 images' in left(report)[0]


@pytest.mark.parametrize('kind', ['coco', 'voc'])
def test_an_empty_data_set_cannot_be_built(kind, tmp_path):
    data = spoilt('CFG012', kind, tmp_path, -1)
    code, report = data.check()
    assert code == 1
    assert 'leaves 0 of 6 images' in left(report)[0]
    with pytest.raises(ValueError, match='at least one array'):
        built(data)


@pytest.mark.parametrize('code', ['utf-8', 'utf-8-sig', 'utf-16', 'utf-16-le'])
def test_annotations_in_another_code_cannot_be_read(code, tmp_path):
    data = clean('coco', tmp_path / 'data')
    path = data.annotation()
    path.write_bytes(path.read_text().encode(code))
    exit_code, report = data.check()
    if code == 'utf-8':
        assert (exit_code, len(built(data))) == (0, 6)
        return
    (group,) = [item for item in report.groups if item.rule == 'COCO001']
    if code != 'utf-16-le':
        assert 'as UTF-8 without a byte-order mark' in group.remedy
    # UnicodeDecodeError is one, and JSONDecodeError, too.
    with pytest.raises(ValueError, match=r'UTF-8 BOM|utf-8|Expecting'):
        built(data)


@pytest.mark.parametrize('key', ['id', 'image_id', 'category_id'])
def test_text_for_ids_is_evaluated(key, tmp_path):
    from mmext.evaluation import CocoMetric

    data = clean('coco', tmp_path / 'data')
    path = data.annotation(split='val')

    def change(content: dict) -> None:
        owners = {'image_id': 'images', 'category_id': 'categories'}
        for record in content.get(owners.get(key), ()):
            record['id'] = str(record['id'])
        for note in content['annotations']:
            note[key] = str(note[key])

    edit_json(path, change)
    data.config['val_evaluator'] = {
        'type': 'mmext.CocoMetric',
        'ann_file': str(path),
    }
    assert data.check()[0] == 0
    metric = CocoMetric(ann_file=str(path))
    metric.dataset_meta = {'classes': ('road', 'car', 'sky')}
    for info in map(built(data, 'val').get_data_info, range(4)):
        objects = info['instances']
        prediction = {
            'bboxes': torch.tensor([obj['bbox'] for obj in objects]).float(),
            'labels': torch.tensor([obj['bbox_label'] for obj in objects]),
            'scores': torch.full((len(objects),), 0.9),
        }
        sample = {'img_id': info['img_id'], 'ori_shape': (36, 48)}
        metric.process({}, [sample | {'pred_instances': prediction}])
    assert metric.evaluate(4)['coco/bbox_mAP'] == 1


OF_BOXES = [
    plant
    for plant in all_plants()
    if plant.kind in ('coco', 'voc', 'yolo')
    and plant.rule.startswith(('DET', 'COCO', 'CFG012', 'VOC', 'YOLO'))
]


@pytest.mark.parametrize('plant', OF_BOXES, ids=lambda plant: plant.name)
def test_objects_are_counted_as_the_loader_keeps_them(plant, tmp_path):
    data = clean(plant.kind, tmp_path / 'data')
    plant.spoil(data)
    _, report = data.check()
    failed = []
    with ErrorCatcher(failed.append):
        dataset = built(data)
    if failed:
        return  # It keeps none.
    flags = [
        instance['ignore_flag']
        for info in dataset.load_data_list()
        for instance in info['instances']
    ]
    (train,) = [split for split in report.splits if split.split == 'train']
    assert train.num_boxes == flags.count(0)
    rows = sum(row.boxes for row in train.classes)
    assert rows == train.num_boxes <= train.num_annotated


@pytest.mark.parametrize('split', ['train', 'val'])
def test_a_split_of_which_the_loader_keeps_nothing(split, tmp_path, capsys):
    """Boxes of less than a pixel, too few to tell what is meant."""
    data = clean('coco', tmp_path / 'data')

    def change(content: dict) -> None:
        del content['annotations'][11:]
        for note in content['annotations']:
            note['bbox'] = [side / 48 for side in note['bbox']]
            note['segmentation'] = []

    edit_json(data.annotation(split=split), change)
    code, report = data.check()
    out = capsys.readouterr().out
    number = {'train': 6, 'val': 4}[split]
    assert f'{split}: {number} samples, {number} images, 0 of 11 obj' in out
    (group,) = [item for item in report.groups if item.rule == 'CLS005']
    assert (code, group.severity) == (1, Severity.ERROR)
    assert 'the loader keeps none of 11 annotated objects' in group.message
    for info in built(data, split).load_data_list():
        assert info['instances'] == []


@pytest.mark.parametrize('images', [True, False])
@pytest.mark.parametrize('kind', ['coco_bare', 'panoptic_bare'])
def test_images_and_objects_are_counted(kind, images, tmp_path):
    """Not the changes of the file that a finding is in."""
    data = clean(kind, tmp_path / 'data')
    if not images:
        del data.settings['images']

    def change(content: dict) -> None:
        for owner in content['annotations'][:9]:
            # Three objects an image, by themselves or in a list.
            for note in owner.get('segments_info', [owner])[:2]:
                note['bbox'] = [40, 8, 20, 9]
                note['segmentation'] = []

    edit_json(data.annotation(), change)
    _, report = data.check(select='DET005')
    (group,) = report.groups
    number, boxes = (3, 9) if kind == 'coco_bare' else (6, 12)
    assert (group.num_files, group.num_subjects) == (1, number)
    assert group.message.endswith(f': {number} images, {boxes} boxes')
    (train,) = report.splits
    assert train.num_annotated == 18


def test_an_image_that_a_list_names_twice(tmp_path):
    data = spoilt('DUP001', 'voc', tmp_path)
    code, report = data.check()
    (group,) = report.groups
    assert (code, group.rule) == (0, 'DUP001')
    assert 'names the image repeatedly, and loaders load it' in group.message
    ids = [info['img_id'] for info in map(built(data).get_data_info, range(7))]
    assert ids.count('train_3') == 2


def test_images_of_xml_files_that_are_no_jpg(tmp_path):
    data = spoilt('IMG001', 'voc', tmp_path, 1)
    path = data.image(2)
    (group,) = data.check()[1].groups
    assert (group.rule, group.examples[0].file) == ('IMG001', str(path))
    with pytest.raises(FileNotFoundError, match=r'train_2\.jpg'):
        loaded(data, 2)
    # What the remedy says.
    path.rename(path.with_suffix('.jpg'))
    assert loaded(data, 2)['img_shape'] == (36, 48)
    assert data.check()[1].groups == ()


@pytest.mark.parametrize(
    ('kind', 'orientation', 'rule'),
    [
        ('coco', 6, 'PAIR005'),
        ('coco', 3, 'PAIR003'),
        ('voc', 6, 'PAIR005'),
        ('yolo', 6, 'PAIR003'),
    ],
)
def test_exif_turns_images_and_not_their_boxes(
    kind, orientation, rule, tmp_path
):
    data = clean(kind, tmp_path / 'data')
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = data.image(2)
    Image.open(path).save(path, exif=exif)
    (group,) = data.check()[1].groups
    assert (group.rule, group.examples[0].file) == (rule, str(path))
    shown = loaded(data, 2)
    stored = loaded(data, 2, 'color_ignore_orientation')['img']
    turns = 2 if orientation == 3 else 3
    assert np.array_equal(shown['img'], np.rot90(stored, turns))
    if kind == 'yolo':
        # Fractions are of the image as shown, as in Ultralytics.
        assert (shown['height'], shown['width']) == shown['img_shape']
    else:
        assert (shown['height'], shown['width']) == (36, 48)


def test_objects_that_are_all_crowds(tmp_path):
    data = clean('coco', tmp_path / 'data')
    for split in ('train', 'val'):
        edit_json(
            data.annotation(split=split),
            lambda content: [
                note.update(iscrowd=1) for note in content['annotations']
            ],
        )
    code, report = data.check()
    (group,) = report.groups
    assert (code, group.rule) == (1, 'CLS005')
    assert {instance.severity for instance in group.examples} == {
        Severity.ERROR
    }
    for number, instance in zip((18, 12), group.examples, strict=True):
        assert f'; {number} objects are marked as crowd' in instance.message
    assert 'crowds alone' in group.remedy
    loaded = built(data)
    for index in range(6):
        for instance in loaded.get_data_info(index)['instances']:
            assert instance['ignore_flag'] == 1


@pytest.mark.parametrize('kind', [str, float, 'x{}'.format, (0.5).__add__])
def test_ids_that_are_no_whole_numbers(kind, tmp_path):
    """The loader takes what equals, and repairs keep to it."""
    data = clean('coco', tmp_path / 'data')

    def change(content: dict) -> None:
        for record in (*content['images'], *content['annotations']):
            for key in {'id', 'image_id'}.intersection(record):
                record[key] = kind(record[key])

    for split in ('train', 'val'):
        edit_json(data.annotation(split=split), change)
    code, report = data.check()
    assert (code, report.groups) == (0, ())
    loaded = built(data)
    infos = [loaded.get_data_info(index) for index in range(6)]
    assert [info['img_id'] for info in infos] == [
        kind(i) for i in range(100, 106)
    ]
    assert [len(info['instances']) for info in infos] == [3] * 6
    edit_json(
        data.annotation(),
        lambda content: content['annotations'][4].update(id=kind(1003)),
    )
    code, report = data.check(fix=tmp_path / 'new')
    shown = 1003 if kind is float else kind(1003)
    (group,) = report.groups
    assert (code, group.rule) == (1, 'COCO002')
    assert group.examples[0].value == f'{shown}, first in annotations[3]'
    with pytest.raises(AssertionError, match='not unique'):
        built(data)
    (tmp_path / 'new/train.json').replace(data.annotation())
    assert len(built(data)) == 6
    change_of = json.loads((tmp_path / 'new/fixes.jsonl').read_text())
    assert json.loads(change_of['was']) == kind(1003)


@pytest.mark.slow
def test_evaluation_data_are_not_filtered(tmp_path):
    data = clean('coco', tmp_path / 'data')
    dataset = data.config['val_dataloader']['dataset']
    dataset.update(test_mode=True, filter_cfg={'min_size': 99})
    assert len(built(data, 'val')) == 4
    assert data.check()[1].groups == ()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['semantic', 'reduced'])
def test_two_ways_to_reduce_fail_at_the_first_sample(kind, tmp_path):
    data = spoilt('CFG009', kind, tmp_path)
    with pytest.raises(AssertionError, match='reduce_zero_label'):
        built(data)[0]


@pytest.mark.parametrize('lacks', ['iscrowd', 'area', 'id'])
def test_pycocotools_needs_what_trainings_do_not(lacks, tmp_path):
    from mmdet.evaluation import CocoMetric

    data = clean('coco', tmp_path / 'data')
    path = data.annotation(split='val')
    if lacks == 'id':
        edit_json(path, lambda it: it['annotations'][0].update(id='a'))
    else:
        edit_json(path, lambda content: content['annotations'][0].pop(lacks))
    if lacks != 'area':
        assert len(built(data, 'val')) == 4
    metric = CocoMetric(ann_file=str(path))
    metric.dataset_meta = {'classes': ('road', 'car', 'sky')}
    image = json.loads(path.read_text())['images'][0]
    prediction = {
        'bboxes': torch.tensor([[4.0, 5.0, 16.0, 14.0]]),
        'labels': torch.tensor([0]),
        'scores': torch.tensor([0.9]),
    }
    sample = {
        'img_id': image['id'],
        'ori_shape': (36, 48),
        'pred_instances': prediction,
    }
    metric.process({}, [sample])
    error = ValueError if lacks == 'id' else KeyError
    with pytest.raises(error, match="float: 'a'" if lacks == 'id' else lacks):
        metric.evaluate(1)


def test_our_metric_needs_no_iscrowd(tmp_path):
    from mmext.evaluation import CocoMetric

    data = spoilt('COCO014', 'coco', tmp_path)
    assert [group.rule for group in data.check()[1].groups] == ['COCO014']
    metric = data.config['val_evaluator']
    metric['type'] = 'mmext.CocoMetric'
    assert data.check()[1].groups == ()
    CocoMetric(ann_file=metric['ann_file'])


@pytest.mark.parametrize('kind', [*CRITERIA, 'OhemCrossEntropy', 'DiceLoss'])
def test_a_loss_that_ignores_another_value(kind):
    """Void is 3, its own ignored value 255: only Dice is not harmed."""
    from mmseg.registry import MODELS

    torch.manual_seed(0)
    score = torch.randn(1, 3, 8, 8)
    label = torch.randint(0, 3, (1, 8, 8))
    label[0, :2] = 3
    loss = MODELS.build({'type': f'mmseg.{kind}'})
    if kind == 'OhemCrossEntropy':
        with pytest.raises(IndexError, match='3 is out of bounds'):
            loss(score, label)
        return
    value = loss(score, label, ignore_index=3)
    own = MODELS.build({'type': f'mmseg.{kind}', 'ignore_index': 3})
    right = own(score, label, ignore_index=3)
    assert bool(torch.isclose(value, right)) == (kind == 'DiceLoss')


def test_a_metric_that_ignores_another_value():
    """All is right, and a quarter void."""
    from mmseg.evaluation import IoUMetric

    label = torch.zeros(8, 8, dtype=torch.long)
    label[:2] = 3
    predicted = torch.zeros_like(label)
    for ignored, iou in ((3, 1), (255, 0.75)):
        inside, union, *_ = IoUMetric.intersect_and_union(
            predicted, label, 3, ignored
        )
        assert np.isclose(float(inside[0] / union[0]), iou)


@pytest.mark.slow
def test_names_are_compared_letter_by_letter(tmp_path):
    data = spoilt('DET006', 'voc', tmp_path)
    info = built(data).get_data_info(3)
    assert [instance['bbox_label'] for instance in info['instances']] == [2]
    data = spoilt('COCO012', 'coco', tmp_path / 'other', 1)
    info = built(data).get_data_info(0)
    assert [instance['bbox_label'] for instance in info['instances']] == [0, 2]


def test_a_size_of_zero_is_filtered(tmp_path):
    data = spoilt('VOC004', 'voc', tmp_path)
    assert len(built(data)) == 5
