"""An exported file computes what the model does, or is not there."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import load_tool
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmext import config_path
from mmext.apis import export, load_detector
from mmext.apis.exported_models import ExportableModel


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
    norms = [each for each in model.modules() if isinstance(each, _BatchNorm)]
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
def masks(tmp_path_factory, checkout):
    return make_checkpoint(
        tmp_path_factory.mktemp('masks'),
        checkout / 'configs/co_dino/co_dino_r18_shapes_instance.py',
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
        (found,) = model.test_step(batch)
    return found.pred_instances


def facts_of(session) -> dict:
    texts = session.get_modelmeta().custom_metadata_map
    return {
        key: value if key in ('task', 'input') else json.loads(value)
        for key, value in texts.items()
        if key != 'mmext_version'
    }


@pytest.mark.slow
def test_detector_as_onnx(
    tool, detector, onnxruntime, tmp_path, capsys, checkout
):
    file = tmp_path / 'new' / 'model.onnx'
    args = [str(detector), '--onnx', str(file), '--time', '2']
    assert tool.main(args) == 0
    printed = capsys.readouterr().out
    assert 'checked at 6 shapes' in printed
    assert 'times as long' in printed
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
    check_script(checkout, file, tmp_path, image, expected)


def block_of(checkout: Path, word: str) -> str:
    """The one block of Python in docs/export.md that has a word."""
    page = (checkout / 'docs' / 'export.md').read_text()
    blocks = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    (code,) = [block for block in blocks if word in block]
    return code


def check_script(checkout, file, folder, image, expected):
    """What docs/export.md shows runs, without mmext and PyTorch."""
    code = block_of(checkout, 'onnxruntime')
    assert len([line for line in code.splitlines() if line]) <= 20
    # Random weights give low scores.
    lowest = float(expected.scores[2])
    code = code.replace('score >= 0.3', f'score >= {lowest - 1e-6}')
    code += (
        "assert not {'mmext', 'torch', 'mmdet', 'mmengine'} & set(sys.modules)"
    )
    Image.fromarray(image).save(folder / 'picture.png')
    (folder / 'run.py').write_text(code)
    done = subprocess.run(
        [sys.executable, 'run.py', file, 'picture.png'],
        cwd=folder,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 3
    numbers = [float(word) for word in lines[0].split()[-4:]]
    assert numbers == pytest.approx(expected.bboxes[0].tolist(), abs=0.06)


@pytest.mark.slow
def test_masks_as_onnx(tool, masks, onnxruntime, tmp_path, capsys, checkout):
    """The block of the page makes of them what the model predicts."""
    file = tmp_path / 'model.onnx'
    assert tool.main([str(masks), '--onnx', str(file)]) == 0
    printed = capsys.readouterr().out
    assert 'masks differ by' in printed
    assert 'masks of the boxes' not in printed
    session = onnxruntime.InferenceSession(file)
    facts = facts_of(session)
    image = picture((137, 211))
    expected = detect(masks, image)
    pixels = image.transpose(2, 0, 1)[None].astype(np.float32)
    boxes, scores, _, found = session.run(None, {'images': pixels})
    assert found.shape == (1, 100, 28, 28)
    np.testing.assert_allclose(scores[0], expected.scores, atol=1e-4)
    code = block_of(checkout, 'mask_threshold')
    counts = np.zeros(2)
    for index in range(10):
        given = {
            'np': np,
            'Image': Image,
            'facts': {key: json.dumps(facts[key]) for key in facts},
            'json': json,
            'image': Image.fromarray(image),
            'box': boxes[0, index],
            'mask': found[0, index],
        }
        exec(code, given)
        ours, theirs = given['whole'], expected.masks[index].numpy()
        assert ours.shape == theirs.shape == image.shape[:2]
        counts += (ours & theirs).sum(), (ours | theirs).sum()
    both, either = counts
    assert both >= 0.95 * either > 100


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
    args += ['--check-sizes', '60x90', '128x96']
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
def test_segmentor_as_onnx(tool, segmentor, onnxruntime, tmp_path, capsys):
    file = tmp_path / 'model.onnx'
    assert tool.main([str(segmentor), '--onnx', str(file)]) == 0
    assert 'checked at 6 shapes' in capsys.readouterr().out
    session = onnxruntime.InferenceSession(file)
    assert facts_of(session)['size_divisor'] == 8
    image = picture((72, 104)).transpose(2, 0, 1)[None].astype(np.float32)
    labels, scores = session.run(None, {'images': image})
    assert labels.shape == scores.shape == (1, 72, 104)
    assert len(np.unique(labels)) > 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_program_with_all_scores(tool, segmentor, tmp_path):
    file = tmp_path / 'model.pt2'
    assert tool.main([str(segmentor), '--pt2', str(file), '--all-scores']) == 0
    extra = {'metadata.json': ''}
    program = torch.export.load(file, extra_files=extra)
    assert json.loads(extra['metadata.json'])['task'] == 'segmentation'
    (scores,) = program.module()(torch.zeros(1, 3, 64, 80))
    assert scores.shape == (1, 7, 64, 80)
    torch.testing.assert_close(scores.sum(1), torch.ones(1, 64, 80))


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
        (['a.pth', '--pt2', 'b', '--check-sizes', '64'], 'a height and a'),
        (['a.pth', '--pt2', 'b', '--time', '-1'], 'must be at least 0'),
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
