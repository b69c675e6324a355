"""Labels out of range in a validation or a test: an error, not a number."""

import importlib
import json

import cv2
import numpy as np
import pytest
import torch
from helpers.toy_ranks import load_segmentation, start_ranks
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import PixelData

pytestmark = pytest.mark.xdist_group('processes')

# As a user of MMSegmentation writes it, with nothing of ours but the runner.
SEGMENTATION = """
default_scope = 'mmseg'
runner_type = 'mmext.PortableRunner'
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label={zero}),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root={root!r},
        img_suffix='.png',
        reduce_zero_label={zero},
        data_prefix=dict(img_path='images', seg_map_path='masks'),
        metainfo=dict(classes=('road', 'car', 'sky')),
        pipeline=pipeline,
    ),
)
val_dataloader = test_dataloader = train_dataloader
val_evaluator = test_evaluator = dict(
    type='IoUMetric', iou_metrics=['mIoU'], ignore_index={ignore}
)
train_cfg = dict(by_epoch=True, max_epochs=1)
val_cfg = test_cfg = dict()
default_hooks = dict(checkpoint=dict(type='CheckpointHook', save_best='mIoU'))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
model = dict(type='mmengine.Oracle', shift={shift})
"""


@MODELS.register_module(force=True)
class Oracle(BaseModel):
    """Predicts the true label map; ``shift`` is added to the class 2."""

    def __init__(self, shift=0, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.shift = shift

    def forward(self, inputs, data_samples=None, mode='tensor'):
        if mode == 'loss':
            return {'loss': self.weight * 1.0}
        for sample in data_samples:
            label = sample.gt_sem_seg.data.clamp(0, 2)
            label[label == 2] += self.shift
            sample.pred_sem_seg = PixelData(data=label)
        return data_samples


@pytest.fixture(scope='module', autouse=True)
def _loaded():
    load_segmentation()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)


@pytest.fixture
def data(tmp_path):
    """Four images of 8 x 6 with classes 0 to 2 and some void, 255."""
    for folder in ('images', 'masks'):
        (tmp_path / folder).mkdir()
    for index in range(4):
        cv2.imwrite(
            str(tmp_path / 'images' / f'{index}.png'),
            np.full((6, 8, 3), 40 * index, np.uint8),
        )
        label = np.arange(48, dtype=np.uint8).reshape(6, 8) % 3
        label[0, 0] = 255
        cv2.imwrite(str(tmp_path / 'masks' / f'{index}.png'), label)
    return tmp_path


def paint(data, value, index=2):
    """Set the pixel y=3, x=5 of a mask."""
    path = str(data / 'masks' / f'{index}.png')
    label = cv2.imread(path, cv2.IMREAD_UNCHANGED)
    label[3, 5] = value
    cv2.imwrite(path, label)
    return path


def evaluate(data, tool='train', world=1, more='', **settings):
    """Exit code and output of a training with a validation, or of a test."""
    settings = {'zero': False, 'ignore': 255, 'shift': 0, **settings}
    config = data / 'config.py'
    text = SEGMENTATION.format(root=str(data), **settings)
    config.write_text(text + more)
    argv = [config, '--device', 'cpu', '--work-dir', data / 'w']
    if tool == 'test':
        state = {'state_dict': {'weight': torch.ones(())}, 'meta': {}}
        torch.save(state, data / 'a.pth')
        argv.insert(1, data / 'a.pth')
    ranks = start_ranks(argv, world, data / 'out', tool=tool)
    codes = ranks.wait()
    return codes, ''.join(map(ranks.output, range(world)))


@pytest.mark.parametrize(
    'tool', ['train', pytest.param('test', marks=pytest.mark.slow)]
)
def test_clean_labels_pass(data, tool):
    codes, output = evaluate(data, tool)
    assert codes == [0], output
    assert 'mIoU: 100.0000' in output
    if tool == 'train':
        (best,) = (data / 'w').glob('best_mIoU_*.pth')
        hub = torch.load(best, weights_only=False)['message_hub']
        # So that the hosts' functions read it without running its code.
        assert type(hub['runtime_info']['best_score']) is float


@pytest.mark.parametrize(
    ('tool', 'world'),
    [pytest.param('train', 2, marks=pytest.mark.slow), ('test', 1)],
)
def test_a_label_of_no_class(data, tool, world):
    mask = paint(data, 7)
    codes, output = evaluate(data, tool, world)
    assert 1 in codes
    assert 'LabelRangeError: IoUMetric, labels of' in output
    assert f'{data}/images/2.png, mask {mask}: 1 pixels, first 7' in output
    assert 'at (y=3, x=5)' in output
    assert 'labels must be in [0, 2] (num_classes=3, ignore_index=255)' in (
        output
    )
    assert 'values: 7 (1)' in output
    assert 'Likely cause:' in output
    assert 'mIoU:' not in output


@pytest.mark.parametrize(
    ('value', 'settings', 'said'),
    [
        pytest.param(254, {}, 'values: 254 (1)', marks=pytest.mark.slow),
        # The void of the files is not what the metric ignores.
        (0, {'ignore': 254}, 'values: 255 (1)'),
        # 0 becomes 255, the rest goes down by one: 255 stays.
        pytest.param(
            9, {'zero': True}, 'values: 8 (1)', marks=pytest.mark.slow
        ),
        (0, {'zero': True, 'ignore': 2}, 'values: 255 (17)'),
    ],
)
def test_what_is_in_range_goes_by_the_metric(data, value, settings, said):
    paint(data, value, index=0)
    codes, output = evaluate(data, 'test', **settings)
    assert codes == [1]
    assert said in output, output[-3000:]


def test_predictions_of_no_class(data):
    codes, output = evaluate(data, 'test', shift=1)
    assert codes == [1]
    assert 'LabelRangeError: IoUMetric, predictions of test' in output
    assert 'values: 3 (' in output
    assert 'set num_classes of its head to 3' in output


def test_the_metric_may_be_asked_to_go_on(data):
    paint(data, 7)
    paint(data, 7, index=3)
    hook = "dict(type='mmext.EvaluationLabelHook', out_of_range='ignore')"
    codes, output = evaluate(data, 'test', more=f'custom_hooks = [{hook}]')
    assert codes == [0], output[-3000:]
    assert output.count('values: 7 (1)') == 1
    assert '2 labels out of range were counted as nothing' in output
    assert 'mIoU:' in output


@pytest.fixture
def finder(monkeypatch, checkout, data):
    """A detector, its config with metrics, and two images."""
    monkeypatch.syspath_prepend(checkout / 'tests' / 'reference')
    module = importlib.import_module('rectangle_finder')
    for index in range(2):
        module.paint(
            data / f'images/{index}.png', (64, 48), red=(5, 6, 25, 30)
        )
    text = module.write_config(data).read_text()
    text += """
runner_type = 'mmext.PortableRunner'
test_dataloader = dict(
    **val_dataloader, num_workers=0, batch_size=1,
    sampler=dict(type='DefaultSampler', shuffle=False))
test_dataloader['dataset']['pipeline'][-1].pop('meta_keys')
test_cfg = dict()
test_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'val.json', metric='bbox')
val_dataloader = None
"""
    (data / 'finder.py').write_text(text)
    module.write_checkpoint(data)
    return data


def write_annotations(folder, category=1, names=('red', 'blue')):
    content = {
        'images': [
            {'id': i, 'file_name': f'{i}.png', 'width': 64, 'height': 48}
            for i in range(2)
        ],
        'annotations': [
            {
                'id': number + 1,
                'image_id': number,
                'category_id': [1, category][number],
                'bbox': [5, 6, 20, 24],
                'area': 480,
                'iscrowd': 0,
            }
            for number in range(2)
        ],
        'categories': [
            {'id': number + 1, 'name': name}
            for number, name in enumerate(names)
        ],
    }
    (folder / 'val.json').write_text(json.dumps(content))


def run_finder(folder) -> tuple[int, str]:
    argv = [folder / 'finder.py', folder / 'finder.pth', '--device', 'cpu']
    argv += ['--work-dir', folder / 'w']
    ranks = start_ranks(argv, 1, folder / 'out', tool='test')
    return ranks.wait()[0], ranks.output()


class TestDetection:
    def test_an_annotation_of_no_category(self, finder):
        write_annotations(finder, category=9)
        code, output = run_finder(finder)
        assert code == 1
        assert 'LabelRangeError: CocoMetric of test: ' in output
        assert f'1 of 2 annotations in {finder}/val.json' in output
        assert 'values of category_id: 9 (1)' in output
        assert 'annotation 2 of image 1.png' in output

    @pytest.mark.slow
    def test_a_class_that_the_file_lacks(self, finder):
        write_annotations(finder, names=('red', 'bleu'))
        code, output = run_finder(finder)
        assert code == 1
        assert "classes: 'blue'" in output
        assert "categories: 'red', 'bleu'" in output

    @pytest.mark.parametrize('policy', ['raise', 'ignore'])
    def test_categories_in_another_order_than_the_classes(
        self, finder, policy
    ):
        """MMDetection numbers labels by the file: red counts as blue."""
        write_annotations(finder, names=('blue', 'red'))
        path = finder / 'finder.py'
        hook = f"type='mmext.EvaluationLabelHook', out_of_range={policy!r}"
        path.write_text(f'{path.read_text()}custom_hooks = [dict({hook})]\n')
        code, output = run_finder(finder)
        assert code == (policy == 'raise')
        assert 'not in this order among the categories' in output
        assert "classes: 'red', 'blue'" in output
        assert "categories: 'blue', 'red'" in output
        assert ('coco/bbox_mAP' in output) == (policy == 'ignore')

    def test_labels_and_predictions_of_other_metrics(self, finder):
        write_annotations(finder, names=('red',))
        path = finder / 'finder.py'
        path.write_text(
            path.read_text()
            + "test_evaluator = dict(type='VOCMetric', metric='mAP')\n"
            "test_dataloader['dataset'].update("
            # For several pictures the metric forks processes, which hung.
            "metainfo=dict(classes=('red', )), indices=1)\n"
            "model['type'] = 'mmengine.KeepingFinder'\n"
        )
        module = importlib.import_module('rectangle_finder')

        @MODELS.register_module(force=True)
        class KeepingFinder(module.RectangleFinder):
            def find(self, image, sample):
                misplaced = super().find(image, sample)
                misplaced.gt_instances = sample.gt_instances
                misplaced.ignored_instances = sample.ignored_instances
                return misplaced

        code, output = run_finder(finder)
        assert code == 0, output[-3000:]
        image = finder / 'images' / '0.png'
        module.paint(image, (64, 48), blue=(5, 6, 25, 30))
        code, output = run_finder(finder)
        assert code == 1
        assert 'VOCMetric, predictions of test' in output
        assert f'{image}: 1 labels, first 1' in output


def test_bad_policy():
    from mmext.engine import EvaluationLabelHook

    with pytest.raises(ValueError, match='out_of_range must be one of'):
        EvaluationLabelHook(out_of_range='skip')
