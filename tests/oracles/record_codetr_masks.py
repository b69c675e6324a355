"""Record the mask heads of the original CO-DETR on a small input.

Runs, of Sense-X/Co-DETR at 26653521: ``SimpleRefineMaskHead``
(mmdet/models/roi_heads/mask_heads/refine_mask_head.py), ``MaskIoUHead``
(maskiou_head.py beside it), ``BARCrossEntropyLoss``
(mmdet/models/losses/cross_entropy_loss.py), ``LN2d``
(projects/models/norm.py), and ``CoDETR._mask_forward_train`` and
``simple_test_mask`` (projects/models/co_detr.py). The builders of mmcv 1.x
are stand-ins; RoIs are pooled by the installed mmdet's extractor::

    PYTHONPATH=. python tests/oracles/record_codetr_masks.py CHECKOUT OUT.pt
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

# isort: off
import mmext  # noqa: F401  (mmcv's operators, before mmdet)

# isort: on
from mmdet.models.roi_heads import mask_heads  # noqa: F401
from mmdet.registry import MODELS as HOST
from mmdet.structures import bbox, mask
from mmengine.config import ConfigDict
from mmengine.model import BaseModule
from mmengine.registry import MODELS as ROOT
from mmengine.registry import Registry, init_default_scope

PUBLIC = Registry('public')
CHANNELS, CLASSES, SIZE = 16, 5, (64, 80)
EXTRACTOR = {
    'type': 'SingleRoIExtractor',
    'roi_layer': {'type': 'RoIAlign', 'output_size': 14, 'sampling_ratio': 0},
    'out_channels': CHANNELS,
    'featmap_strides': [4, 8, 16],
    'finest_scale': 12,
}


def stand_in(name: str, **content: object) -> None:
    """A module of mmcv 1.x or mmdet 2.x."""
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(content)


def load(checkout: Path, file: str, name: str) -> ModuleType:
    """A file of the checkout, as the module that it was."""
    spec = importlib.util.spec_from_file_location(name, checkout / file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_public(checkout: Path) -> type:
    """Register the public modules; their detector."""

    def build(cfg: dict) -> torch.nn.Module:
        kind = cfg['type']
        return (PUBLIC if PUBLIC.get(kind) else HOST).build(cfg)

    def keep(apply_to: object = None):
        return lambda function: function

    builders = dict.fromkeys(('HEADS', 'LOSSES', 'DETECTORS'), PUBLIC)
    names = ('backbone', 'head', 'loss', 'neck', 'roi_extractor')
    builders |= {f'build_{name}': build for name in names}
    stand_in('mmdet.models.builder', **builders)
    stand_in('mmcv.runner', BaseModule=BaseModule, force_fp32=keep)
    stand_in('mmcv.cnn.bricks.registry', NORM_LAYERS=ROOT)
    unused = dict.fromkeys(('bbox2result', 'build_assigner', 'build_sampler'))
    stand_in('mmdet.core', bbox2roi=bbox.bbox2roi, **unused)
    stand_in('mmdet.core.mask')
    sys.modules['mmdet.core.mask.structures'] = mask.structures
    heads = 'mmdet.models.roi_heads.mask_heads'
    folder = heads.replace('.', '/')
    losses = 'mmdet.models.losses.cross_entropy_loss'
    load(checkout, 'projects/models/norm.py', 'projects_norm')
    load(checkout, losses.replace('.', '/') + '.py', losses)
    for name in ('refine_mask_head', 'maskiou_head'):
        load(checkout, f'{folder}/{name}.py', f'{heads}.public_{name}')
    return load(checkout, 'projects/models/co_detr.py', 'co_detr').CoDETR


def make_detector(kind: type) -> torch.nn.Module:
    """The parts of the detector that its masks need."""
    names = ('_mask_forward', '_mask_forward_train', 'simple_test_mask')
    methods = {name: getattr(kind, name) for name in names}
    model = type('Masks', (torch.nn.Module,), methods)()
    norm = {'type': 'LN2d'}
    model.mask_roi_extractor = HOST.build(EXTRACTOR)
    model.mask_head = PUBLIC.get('SimpleRefineMaskHead')(
        num_convs_instance=1,
        num_convs_semantic=2,
        conv_in_channels_instance=CHANNELS,
        conv_in_channels_semantic=CHANNELS,
        conv_out_channels_instance=CHANNELS,
        conv_out_channels_semantic=CHANNELS,
        norm_cfg=norm,
        stage_num_classes=[CLASSES] * 3 + [1],
        loss_weight=1.33 * 12,
        loss_cfg={
            'type': 'BARCrossEntropyLoss',
            'stage_instance_loss_weight': [0.5, 0.75, 0.75, 1.0],
            'boundary_width': 2,
            'start_stage': 1,
        },
    )
    model.mask_iou_head = PUBLIC.get('MaskIoUHead')(
        num_convs=2,
        num_fcs=1,
        in_channels=CHANNELS,
        conv_out_channels=CHANNELS,
        fc_out_channels=24,
        num_classes=CLASSES,
        score_use_sigmoid=True,
        norm_cfg=norm,
        loss_iou={'type': 'MSELoss', 'loss_weight': 6.0},
    )
    cfg = ConfigDict(mask_thr_binary=0.5)
    model.rcnn_train_cfg = model.rcnn_test_cfg = cfg
    for parameter in model.parameters():
        # Also norms and biases say something then.
        parameter.data += 0.1 * torch.randn_like(parameter)
    for stage in model.mask_head.stages:
        # Few channels are initialised for large logits, which round much.
        stage.fuse_transform_out.weight.data *= 0.3
    return model


def discs(boxes: torch.Tensor) -> np.ndarray:
    """An ellipse in each box."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    radius = (boxes[:, 2:] - boxes[:, :2]) / 2
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    (u, v), (r, s) = centre.T[..., None, None], radius.T[..., None, None]
    inside = ((x - u.numpy()) / r.numpy()) ** 2
    return (inside + ((y - v.numpy()) / s.numpy()) ** 2 <= 1).astype(np.uint8)


def main(checkout: str, out: str) -> None:
    torch.manual_seed(0)
    init_default_scope('mmdet')
    model = make_detector(load_public(Path(checkout)))
    height, width = SIZE
    feats = [
        torch.randn(2, CHANNELS, height // s, width // s, requires_grad=True)
        for s in (4, 8, 16)
    ]
    objects = [
        torch.tensor([[4.0, 6.0, 30.0, 50.0], [20.0, 3.0, 77.0, 40.0]]),
        torch.tensor([[10.0, 10.0, 22.0, 24.0]]),
    ]
    masks = [discs(boxes) for boxes in objects]
    labels = [torch.tensor([1, 4]), torch.tensor([0])]
    matched = [torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0])]
    rois = []
    for boxes, index in zip(objects, matched):
        boxes = boxes[index] + 6 * torch.randn(len(index), 4)
        rois.append(boxes.clamp(min=0).minimum(torch.tensor([80, 64] * 2)))
    # One that is far from its object, which the IoU does not learn from.
    rois[1][1] = torch.tensor([60.0, 40.0, 78.0, 60.0])
    record = {
        'feats': [feat.detach().clone() for feat in feats],
        'masks': [torch.from_numpy(item) for item in masks],
        'labels': labels,
        'matched': matched,
        'rois': [item.clone() for item in rois],
        'state_dict': {k: v.clone() for k, v in model.state_dict().items()},
    }
    sampled = [
        SimpleNamespace(
            pos_bboxes=boxes, pos_gt_labels=of[i], pos_assigned_gt_inds=i
        )
        for boxes, of, i in zip(rois, labels, matched)
    ]
    maps = [mask.BitmapMasks(item, *SIZE) for item in masks]
    results = model._mask_forward_train(feats, sampled, maps, None)
    losses = {**results['loss_mask'], **results['loss_mask_iou']}
    sum(losses.values()).backward()
    record['losses'] = {name: loss.detach() for name, loss in losses.items()}
    record['preds'] = [p.detach() for p in results['stage_instance_preds']]
    record['grads'] = [feat.grad for feat in feats]
    record['grads_of'] = {k: p.grad for k, p in model.named_parameters()}
    # In evaluation, one picture at a time, for it takes no more.
    detected = torch.cat((record['rois'][0], torch.rand(4, 1)), 1)
    classes = torch.tensor([1, 4, 2, 0])
    metas = [{'ori_shape': (32, 40), 'scale_factor': np.full(4, 2.0, 'f4')}]
    small = detected / torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0])
    with torch.no_grad():
        ((segments, scores),) = model.simple_test_mask(
            [feat[:1] for feat in feats],
            metas,
            small[None],
            classes[None],
            rescale=True,
        )
    record['detected'], record['classes'] = detected, classes
    record['segments'] = torch.stack(
        [torch.from_numpy(segments[i][0]) for i in classes]
    )
    record['scores'] = torch.tensor([float(scores[i][0]) for i in classes])
    torch.save(record, out)


if __name__ == '__main__':
    main(*sys.argv[1:])
