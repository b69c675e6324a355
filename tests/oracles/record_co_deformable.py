"""Record codetr_deformable.pt: a run of the public Co-Deformable-DETR.

    python tests/oracles/record_co_deformable.py FOLDER

``FOLDER`` holds Sense-X/Co-DETR at 26653521. What runs is its
``projects/models/{co_detr,co_deformable_detr_head,transformer,co_roi_head,
co_atss_head}.py`` and the part of ``mmdet`` 2.25.3 that they import, with the
names of mmcv 1.x given by mmcv 2 and MMEngine, its RoIAlign and NMS by mmext
where there is no compiled mmcv; the config is
``projects/configs/co_deformable_detr/co_deformable_detr_r50_1x_coco.py``, with
fewer channels, layers and queries. ``torch.arange`` takes the place of
``torch.randperm``. The backbone's maps are inputs, so that the gradient with
respect to them is recorded, too.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import mmengine
import mmengine.model
import torch
from mmcv.cnn.bricks import transformer as bricks
from mmengine.config import ConfigDict
from mmengine.registry import MODELS

import mmext  # noqa: F401

C, K = 32, 7
SIZES = ((96, 128), (80, 96))
COUNTS = (3, 2)


class Registry:
    """All registries of mmcv 1.x and mmdet 2.x in one."""

    def __init__(self, *args, **kwargs):
        self.build = build
        self.get = MODELS.get

    def __contains__(self, name):
        return MODELS.get(name) is not None

    def register_module(self, *args, **kwargs):
        return MODELS.register_module(*args, **{**kwargs, 'force': True})


def build(cfg, registry=None, default_args=None, **kwargs):
    """``build_from_cfg`` and ``Registry.build`` of mmcv 1.x."""
    args = {**(default_args or {}), **kwargs, **cfg}
    return MODELS.build(ConfigDict(args))


def plain(*args, **kwargs):
    """A decorator that does nothing."""
    return lambda function: function


def module(name: str, *sources, path: Path | None = None, **values):
    """Put a module with the names of others in its place."""
    made = sys.modules.get(name) or ModuleType(name)
    for source in sources:
        for key, value in vars(source).items():
            if not key.startswith('_') and not hasattr(made, key):
                setattr(made, key, value)
    for key, value in values.items():
        setattr(made, key, value)
    if path is not None:
        made.__path__ = [str(path)]
    sys.modules[name] = made
    parent, _, child = name.rpartition('.')
    if parent in sys.modules:
        setattr(sys.modules[parent], child, made)
    return made


def import_public(folder: Path) -> None:
    """Import the public files, without what their packages import besides."""
    registry = Registry()
    module('mmcv', mmengine, jit=plain)
    module('mmcv.cnn', mmengine.model, MODELS=registry)
    module('mmcv.utils', mmengine.utils, mmengine.utils.dl_utils)
    module(
        'mmcv.utils',
        mmengine,
        Registry=Registry,
        build_from_cfg=build,
        ConfigDict=ConfigDict,
    )
    module(
        'mmcv.runner',
        mmengine.model,
        mmengine.dist,
        force_fp32=plain,
        auto_fp16=plain,
        OptimizerHook=object,
    )
    module('mmcv.runner.base_module', mmengine.model)
    module('mmcv.cnn.utils.weight_init', mmengine.model)
    module('mmdet.core.visualization', imshow_det_bboxes=None)
    # For activation checkpoints, which are off.
    module('fairscale')
    module('fairscale.nn')
    module('fairscale.nn.checkpoint', checkpoint_wrapper=None)
    names = 'ATTENTION', 'FEEDFORWARD_NETWORK', 'POSITIONAL_ENCODING'
    names += 'TRANSFORMER_LAYER', 'TRANSFORMER_LAYER_SEQUENCE'
    module('mmcv.cnn.bricks.registry', **dict.fromkeys(names, registry))
    module(
        bricks.__name__,
        build_positional_encoding=build,
        **dict.fromkeys(names, registry),
    )
    for name in (
        'mmdet',
        'mmdet.core',
        'mmdet.models',
        'mmdet.models.utils',
        'mmdet.models.dense_heads',
        'mmdet.models.roi_heads',
        'mmdet.models.roi_heads.bbox_heads',
        'mmdet.models.detectors',
        'mmdet.models.necks',
        'mmdet.utils',
        'projects',
        'projects.models',
    ):
        module(name, path=folder / name.replace('.', '/'))
    for name in ('anchor', 'utils', 'mask.structures', 'bbox'):
        module('mmdet.core', import_module(f'mmdet.core.{name}'))
    module('mmdet.core', import_module('mmdet.core.bbox.match_costs'))
    import_module('mmdet.core.bbox.assigners')
    module('mmdet.core', import_module('mmdet.core.post_processing'))
    for name in ('builder', 'positional_encoding', 'transformer'):
        module(
            'mmdet.models.utils', import_module(f'mmdet.models.utils.{name}')
        )
    for name in (
        'mmdet.models.losses',
        'mmdet.models.dense_heads.rpn_head',
        'mmdet.models.roi_heads.bbox_heads.convfc_bbox_head',
        'mmdet.models.roi_heads.roi_extractors',
        'projects.models.transformer',
        'projects.models.co_deformable_detr_head',
        'projects.models.co_roi_head',
        'projects.models.co_atss_head',
        'projects.models.co_detr',
    ):
        import_module(name)


def public_config(folder: Path) -> ConfigDict:
    """The public config, smaller."""
    name = 'co_deformable_detr/co_deformable_detr_r50_1x_coco.py'
    model = ConfigDict(
        runpy.run_path(str(folder / 'projects/configs' / name))['model']
    )
    MODELS.register_module('Given', force=True, module=torch.nn.Identity)
    model.backbone = {'type': 'Given'}
    model.neck = None
    head = model.query_head
    head.update(num_query=40, num_classes=K)
    head.positional_encoding.num_feats = C // 2
    for depth, name in enumerate(('encoder', 'decoder'), 1):
        part = head.transformer[name]
        part.num_layers = depth
        part.transformerlayers.update(
            feedforward_channels=64,
            ffn_cfgs={
                'type': 'FFN',
                'embed_dims': C,
                'act_cfg': {'type': 'ReLU', 'inplace': True},
            },
        )
        attentions = part.transformerlayers.attn_cfgs
        if isinstance(attentions, dict):
            attentions = [attentions]
        for attention in attentions:
            attention.embed_dims = C
    model.rpn_head.update(in_channels=C, feat_channels=C)
    model.roi_head[0].bbox_roi_extractor.update(out_channels=C)
    model.roi_head[0].bbox_roi_extractor.roi_layer.output_size = 3
    model.roi_head[0].bbox_head.update(
        in_channels=C, fc_out_channels=C, roi_feat_size=3, num_classes=K
    )
    model.bbox_head[0].update(in_channels=C, feat_channels=C, num_classes=K)
    _, second, _ = model.train_cfg
    second.rpn.sampler = {'type': 'PseudoSampler'}
    second.rpn_proposal.update(nms_pre=100, max_per_img=60)
    second.rcnn.sampler.update(num=100000, pos_fraction=1.0)
    return model


def make_batch() -> dict:
    """Maps of strides 8 to 64, and boxes."""
    height, width = SIZES[0]
    feats = [
        torch.randn(2, C, -(-height // s), -(-width // s))
        for s in (8, 16, 32, 64)
    ]
    boxes, labels, metas = [], [], []
    for count, (h, w) in zip(COUNTS, SIZES):
        start = torch.rand(count, 2) * 0.5
        corners = torch.cat(
            (start, start + 0.2 + torch.rand(count, 2) * 0.3), 1
        )
        boxes.append(corners * torch.tensor([w, h, w, h]))
        labels.append(torch.randint(K, (count,)))
        metas.append(
            {
                'img_shape': (h, w, 3),
                'pad_shape': (h, w, 3),
                'ori_shape': (h * 2, w * 4, 3),
                'scale_factor': torch.tensor([0.25, 0.5, 0.25, 0.5]).numpy(),
                'batch_input_shape': SIZES[0],
            }
        )
    return {'feats': feats, 'boxes': boxes, 'labels': labels, 'metas': metas}


def main(folder: Path, target: Path) -> None:
    """Run the public model and write the record."""
    import_public(folder)
    torch.manual_seed(0)
    model = MODELS.build(public_config(folder))
    # Not all zero where it starts at zero.
    for parameter in model.query_head.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    batch = make_batch()
    feats = [feat.requires_grad_() for feat in batch['feats']]
    model.extract_feat = lambda img, metas: feats
    torch.Tensor.cuda = lambda tensor: tensor
    torch.randperm = torch.arange
    state = {k: v.clone() for k, v in model.state_dict().items()}
    losses = model.train().forward_train(
        torch.zeros(2, 3, *SIZES[0]),
        batch['metas'],
        batch['boxes'],
        batch['labels'],
    )
    losses = {
        name: sum(value) if isinstance(value, list) else value
        for name, value in losses.items()
    }
    sum(v.mean() for k, v in losses.items() if 'loss' in k).backward()
    with torch.no_grad():
        outputs = model.eval().query_head(feats, batch['metas'])
        detections = model.query_head.simple_test_bboxes(
            feats, batch['metas'], rescale=True
        )
    record = {
        'state_dict': state,
        'feats': [feat.detach() for feat in feats],
        'gt': [
            {'bboxes': boxes, 'labels': labels, 'size': size}
            for boxes, labels, size in zip(
                batch['boxes'], batch['labels'], SIZES
            )
        ],
        'scale_factor': (0.25, 0.5),
        'losses': {k: float(v.mean()) for k, v in losses.items()},
        'grads': {k: p.grad for k, p in model.named_parameters()},
        'feat_grads': [feat.grad for feat in feats],
        'scores': outputs[0],
        'boxes': outputs[1],
        'detections': [
            {
                'bboxes': boxes[:, :4].clone(),
                'scores': boxes[:, 4].clone(),
                'labels': labels,
            }
            for boxes, labels in detections
        ],
    }
    torch.save(record, target)


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(__file__).with_name('codetr_deformable.pt'))
