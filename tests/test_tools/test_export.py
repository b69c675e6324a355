"""An exported file computes what the model does, or is not there."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import load_tool
from mmcv.ops import batched_nms
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_overlaps
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmext import config_path
from mmext.apis import (
    Segmentation,
    infer_images,
    load_detector,
    run_onnx,
)
from mmext.apis.export import export
from mmext.apis.export.exported_models import ExportableModel


@pytest.fixture(scope='module')
def tool():
    return load_tool('export')


def make_checkpoint(folder: Path, config: Path) -> Path:
    """Random weights of a fixed seed, and the config they are for."""
    config = Config.fromfile(config)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(config.default_scope):
        model = MODELS.build(config.model)
    model.init_weights()
    settle(model)
    path = folder / f'{model.__class__.__name__}.pth'
    meta = {'cfg': config.pretty_text}
    torch.save({'meta': meta, 'state_dict': model.state_dict()}, path)
    return path


def settle(model: nn.Module) -> None:
    """Statistics of batches as after a training, else activations explode."""
    norms = [
        module for module in model.modules() if isinstance(module, _BatchNorm)
    ]
    for norm in norms:
        norm.momentum = None
    if norms:
        images = torch.from_numpy(picture((4, 96, 128))).permute(0, 3, 1, 2)
        model.train()(images / 64 - 2, mode='tensor')
        # And logits of some units, not of hundreds.
        model.decode_head.conv_seg.weight.data *= 0.05


@pytest.fixture(scope='module')
def detector(tmp_path_factory, checkout):
    return make_checkpoint(
        tmp_path_factory.mktemp('detector'),
        checkout / 'configs/co_dino/co_dino_r18_shapes.py',
    )


@pytest.fixture(scope='module')
def segmentor(tmp_path_factory, checkout):
    return make_checkpoint(
        tmp_path_factory.mktemp('segmentor'),
        checkout / 'configs/pidnet/pidnet_small_shapes.py',
    )


@pytest.fixture(scope='module')
def onnxruntime():
    pytest.importorskip('onnx')
    return pytest.importorskip('onnxruntime')


def picture(size: tuple[int, ...]) -> np.ndarray:
    """RGB ``(..., H, W, 3)``, uint8."""
    return np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)


def detect(checkpoint: Path, image: np.ndarray) -> DetDataSample:
    """What the model detects without NMS, by mmengine's own way."""
    options = {'model.test_cfg.query_head.nms': None}
    model = load_detector(None, checkpoint, cfg_options=options)
    size = image.shape[:2]
    sample = DetDataSample(
        metainfo={'img_shape': size, 'ori_shape': size, 'scale_factor': (1, 1)}
    )
    blue_first = torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)
    batch = {'inputs': [blue_first], 'data_samples': [sample]}
    with torch.no_grad():
        (predicted,) = model.test_step(batch)
    return predicted.pred_instances


def facts_of(session) -> dict:
    texts = session.get_modelmeta().custom_metadata_map
    return {
        key: value if key in ('task', 'input') else json.loads(value)
        for key, value in texts.items()
        if key != 'mmext_version'
    }


@pytest.mark.slow
def test_detector_as_onnx(tool, detector, onnxruntime, tmp_path, capsys):
    file = tmp_path / 'new' / 'model.onnx'
    args = [str(detector), '--onnx', str(file)]
    assert tool.main(args) == 0
    printed = capsys.readouterr().out
    assert 'checked at 6 shapes' in printed
    assert 'left out' in printed
    assert 'soft_nms' in printed
    session = onnxruntime.InferenceSession(file)
    facts = facts_of(session)
    assert facts['task'] == 'detection'
    assert facts['classes'][0] == 'circle'
    assert len(facts['classes']) == 6
    assert facts['size_divisor'] == 1
    assert facts['mean'] == [123.675, 116.28, 103.53]
    # Another size than those of the check, against mmengine's way.
    image = picture((137, 211))
    expected = detect(detector, image)
    pixels = image.transpose(2, 0, 1)[None].astype(np.float32)
    boxes, scores, labels = session.run(None, {'images': pixels})
    assert boxes.shape == (1, 100, 4)
    np.testing.assert_allclose(scores[0], expected.scores, atol=1e-4)
    np.testing.assert_allclose(boxes[0], expected.bboxes, atol=1e-2)
    assert labels[0].tolist() == expected.labels.tolist()


RESIZED = (161, 120)


@pytest.fixture(params=['detector', 'segmentor'])
def resizing(request, tmp_path) -> tuple[Path, Path]:
    """A checkpoint, and a config whose test pipeline resizes and pads."""
    checkpoint = request.getfixturevalue(request.param)
    meta = torch.load(checkpoint, weights_only=True)['meta']
    cfg = Config.fromstring(meta['cfg'], '.py')
    scope = 'mmseg' if request.param == 'segmentor' else 'mmdet'
    load, *rest = cfg.test_dataloader.dataset.pipeline
    resize = {
        'type': f'{scope}.Resize',
        '_scope_': scope,
        'scale': RESIZED,
        'keep_ratio': True,
    }
    rest = [step for step in rest if not step['type'].endswith('Resize')]
    if request.param == 'detector':
        pad = {
            'type': 'mmdet.Pad',
            '_scope_': 'mmdet',
            'size': (176, 144),
            'pad_val': {'img': (10, 114, 200)},
        }
        rest = [pad, *rest]
    cfg.test_dataloader.dataset.pipeline = [load, resize, *rest]
    cfg.dump(tmp_path / 'resizing.py')
    return checkpoint, tmp_path / 'resizing.py'


@pytest.mark.slow
def test_run_onnx_gives_what_the_model_does(
    tool, resizing, onnxruntime, tmp_path, checkout
):
    """Resize, soft-NMS and label maps; and the program of the docs."""
    checkpoint, config = resizing
    image = Image.fromarray(picture((12, 16)))
    image = image.resize((203, 151), Image.Resampling.BICUBIC)
    image.save(tmp_path / 'picture.png')
    model = load_detector(config, checkpoint, device='cpu')
    (expected,) = infer_images(
        model, [tmp_path / 'picture.png'], score_thr=0.0
    )
    file = tmp_path / 'model.onnx'
    args = [str(checkpoint), '--config', str(config), '--onnx', str(file)]
    assert tool.main(args) == 0
    session = onnxruntime.InferenceSession(file)
    assert facts_of(session)['size_divisor'] == (
        8 if isinstance(expected, Segmentation) else 1
    )
    outputs = run_onnx(session, np.asarray(image), score_thr=0.0)
    assert outputs['classes'] == list(model.dataset_meta['classes'])
    printed = run_docs(checkout, file, tmp_path)
    if isinstance(expected, Segmentation):
        labels = expected.label_map
        assert outputs['labels'].shape == labels.shape == (151, 203)
        # The nearest pixels of a map that is smaller.
        assert (outputs['labels'] == labels).mean() > 0.95
        assert len(printed) == len(np.unique(outputs['labels'])) > 2
        return
    assert len(outputs['boxes']) == len(expected.boxes) == len(printed)
    np.testing.assert_allclose(outputs['scores'], expected.scores, atol=1e-4)
    overlaps = bbox_overlaps(
        torch.from_numpy(outputs['boxes']),
        torch.from_numpy(expected.boxes),
        is_aligned=True,
    )
    assert overlaps.min() > 0.99
    assert outputs['labels'].tolist() == expected.labels.tolist()
    numbers = [float(word) for word in printed[0].split()[-4:]]
    assert numbers == pytest.approx(expected.boxes[0].tolist(), abs=0.06)


def run_docs(checkout: Path, file: Path, folder: Path) -> list[str]:
    """What the program of docs/export.md prints, without mmext and PyTorch."""
    page = (checkout / 'docs' / 'export.md').read_text()
    blocks = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    (code,) = [block for block in blocks if 'onnxruntime' in block]
    # Random weights give low scores.
    code = code.replace('score_thr=0.3', 'score_thr=0.0')
    code += "assert not {'mmext', 'torch', 'mmengine'} & set(sys.modules)"
    (folder / 'run.py').write_text(code)
    copy = checkout / 'mmext/apis/export/onnx_inference.py'
    shutil.copy(copy, folder / 'onnx_inference.py')
    done = subprocess.run(
        [sys.executable, 'run.py', file, 'picture.png'],
        cwd=folder,
        text=True,
        capture_output=True,
        env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Session:
    """As one of onnxruntime, with a file's metadata and outputs."""

    def __init__(self, texts, outputs, arrays=()):
        self.texts, self.outputs, self.arrays = texts, outputs, arrays

    def get_modelmeta(self):
        return SimpleNamespace(custom_metadata_map=self.texts)

    def get_outputs(self):
        return [SimpleNamespace(name=name) for name in self.outputs]

    def run(self, names, inputs):
        return [array[None] for array in self.arrays]


DETECTOR = {
    'task': 'detection',
    'classes': '["a", "b"]',
    'resize': '[]',
    'size_divisor': '1',
}
BOXES = ('boxes', 'scores', 'labels')


@pytest.mark.parametrize(
    'nms',
    [
        {'type': 'nms', 'iou_threshold': 0.5},
        {'iou_threshold': 0.5, 'class_agnostic': True},
        {'type': 'soft_nms', 'iou_threshold': 0.6, 'min_score': 0.05},
        {'type': 'soft_nms', 'method': 'gaussian', 'sigma': 0.3},
        {'type': 'soft_nms', 'method': 'naive', 'iou_threshold': 0.4},
    ],
)
def test_run_onnx_suppresses_as_mmcv_does(nms):
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 60, (200, 2))
    boxes = np.hstack([corners, corners + rng.uniform(20, 40, (200, 2))])
    boxes = boxes.astype(np.float32)
    scores = np.sort(rng.uniform(0, 1, 200).astype(np.float32))[::-1].copy()
    labels = rng.integers(0, 2, 200)
    completion = {'nms': nms, 'score_thr': 0.02}
    texts = {**DETECTOR, 'completion': json.dumps(completion)}
    session = Session(texts, BOXES, (boxes.copy(), scores, labels))
    outputs = run_onnx(session, np.zeros((100, 100, 3), np.uint8), score_thr=0)
    kept = torch.from_numpy(scores) > 0.02
    dets, index = batched_nms(
        torch.from_numpy(boxes)[kept],
        torch.from_numpy(scores)[kept],
        torch.from_numpy(labels)[kept],
        nms,
    )
    assert 10 < len(dets) < 200
    np.testing.assert_allclose(outputs['boxes'], dets[:, :4], atol=1e-5)
    np.testing.assert_allclose(outputs['scores'], dets[:, 4], atol=1e-5)
    assert outputs['labels'].tolist() == labels[: len(kept)][index].tolist()


@pytest.mark.parametrize(
    ('texts', 'outputs', 'image', 'message'),
    [
        ({}, BOXES, (8, 8, 3), 'written by tools/export.py of this version'),
        ({}, BOXES, (8, 8), r'image must be .* got uint8 \(8, 8\)'),
        (
            {'completion': '{}'},
            BOXES[:2],
            (8, 8, 3),
            r"got outputs \['boxes', 'scores'\]",
        ),
        (
            {
                'completion': '{}',
                'resize': '[{"type": "mmdet.FixScaleResize"}]',
            },
            BOXES,
            (8, 8, 3),
            'must be Resize, bilinear, by cv2, or Pad to a size, got .*FixSca',
        ),
        (
            {'completion': '{"score_thr": 0, "nms": {"type": "nms_match"}}'},
            BOXES,
            (8, 8, 3),
            "nms of the file must be 'nms' or 'soft_nms'.*nms_match",
        ),
    ],
)
def test_what_run_onnx_refuses(texts, outputs, image, message):
    arrays = [np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)]
    session = Session({**DETECTOR, **texts}, outputs, arrays)
    with pytest.raises(ValueError, match=message):
        run_onnx(session, np.zeros(image, np.uint8))


@pytest.mark.slow
def test_swin_as_onnx(tool, onnxruntime, tmp_path, capfd, monkeypatch):
    """Heights and widths are rounded up to what Swin halves without rests."""
    config = tmp_path / 'swin.py'
    path = config_path('co_dino/co_dino_5scale_swin_t_8xb2_1x_coco.py')
    cfg = Config.fromfile(path)
    cfg.model = reduce_model(cfg.model.to_dict())
    cfg.dump(config)
    checkpoint = make_checkpoint(tmp_path, config)
    file = tmp_path / 'model.onnx'
    args = [str(checkpoint), '--onnx', str(file)]
    sizes = ((60, 90), (128, 96))
    monkeypatch.setattr(export, '_CHECKED_SIZES', sizes)
    assert tool.main(args) == 0
    assert 'checked at 4 shapes' in capfd.readouterr().out
    assert facts_of(onnxruntime.InferenceSession(file))['size_divisor'] == 32
    # As it would be with Swin's own code.
    monkeypatch.setattr(ExportableModel, 'traceable', nullcontext)
    file.unlink()
    assert tool.main(args) == 1
    err = capfd.readouterr().err
    assert 'must run at every size and number of pictures' in err
    assert 'Traceback' not in err
    assert not file.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'divisor'),
    [
        ('5scale_vit_l_16xb1_1x_coco', 32),
        ('mae_vit_mini_frozen_shapes', 32),
        ('dinov2_vit_s14_frozen_bccd', 56),
    ],
)
def test_vit_as_onnx(tool, name, divisor, onnxruntime, tmp_path, monkeypatch):
    """Any size: windows are filled, and positions computed or resized."""
    cfg = Config.fromfile(config_path(f'co_dino/co_dino_{name}.py'))
    cfg.model = reduce_model(cfg.model.to_dict())
    cfg.dump(tmp_path / 'vit.py')
    checkpoint = make_checkpoint(tmp_path, tmp_path / 'vit.py')
    file = tmp_path / 'model.onnx'
    sizes = ((64, 96), (160, 128))
    monkeypatch.setattr(export, '_CHECKED_SIZES', sizes)
    assert tool.main([str(checkpoint), '--onnx', str(file)]) == 0
    session = onnxruntime.InferenceSession(file)
    assert facts_of(session)['size_divisor'] == divisor
    image = picture((6 * divisor, 5 * divisor))
    expected = detect(checkpoint, image)
    pixels = image.transpose(2, 0, 1)[None].astype(np.float32)
    boxes, scores, labels = session.run(None, {'images': pixels})
    np.testing.assert_allclose(scores[0], expected.scores, atol=1e-4)
    # Rounding may swap neighbours of nearly the same score.
    gaps = -np.diff(expected.scores, prepend=np.inf, append=-np.inf)
    apart = np.minimum(gaps[:-1], gaps[1:]) > 1e-5
    assert apart.sum() >= 50
    np.testing.assert_allclose(
        boxes[0][apart], expected.bboxes[apart], atol=6 * divisor * 1e-4
    )
    assert (labels[0][apart] == expected.labels.numpy()[apart]).all()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_segmentor_as_program(tool, segmentor, tmp_path):
    file = tmp_path / 'model.pt2'
    assert tool.main([str(segmentor), '--pt2', str(file)]) == 0
    extra = {'metadata.json': ''}
    program = torch.export.load(file, extra_files=extra)
    assert json.loads(extra['metadata.json'])['task'] == 'segmentation'
    labels, scores = program.module()(torch.zeros(1, 3, 64, 80))
    assert labels.shape == scores.shape == (1, 64, 80)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_detector_as_program(tool, detector, tmp_path, capsys):
    file = tmp_path / 'model.pt2'
    assert tool.main([str(detector), '--pt2', str(file)]) == 0
    assert 'checked at 6 shapes' in capsys.readouterr().out
    assert file.is_file()


@pytest.mark.slow
def test_a_wrong_file_is_not_written(
    tool, segmentor, onnxruntime, tmp_path, monkeypatch, capsys
):
    """The file that was there stays."""
    file = tmp_path / 'model.onnx'
    file.write_text('before')
    load = export._load_onnx

    def load_badly(path, model):
        run = load(path, model)
        return lambda images: run(images + 1)

    kinds = {'onnx': (export._write_onnx, load_badly)}
    monkeypatch.setattr(export, '_KINDS', kinds)
    assert tool.main([str(segmentor), '--onnx', str(file)]) == 1
    assert 'must compute what the model does' in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['model.onnx']
    assert file.read_text() == 'before'


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['a.pth'], 'one of the arguments --onnx --pt2 is required'),
        (['a.pth', '--onnx', 'a', '--pt2', 'b'], 'not allowed with'),
        (['no.pth', '--pt2', 'b'], 'checkpoint must be an existing'),
    ],
)
def test_wrong_arguments(tool, args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        tool.main(args)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
