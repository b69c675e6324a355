"""Test-time augmentation and tiles for the model of a config."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from ..checks.config import dataset_configs

SCALES = (1.0, 0.75, 1.25)
"""Of test-time augmentation; each view is also flipped."""

OVERLAP = 0.25
"""Of neighbouring tiles, as a share of their size."""

_NMS = {'type': 'nms', 'iou_threshold': 0.5}
_META_KEYS = ('flip', 'flip_direction', 'tile')


def _kind(step: Mapping) -> str:
    """The name of a transform, without its scope."""
    return str(step['type']).rpartition('.')[2]


def _is_resize(step: Mapping) -> bool:
    return 'Resize' in _kind(step) and _kind(step) != 'ResizeToMultiple'


def _is_detector(pipeline: Sequence[Mapping]) -> bool:
    last = _kind(pipeline[-1])
    if last == 'TestTimeAug':
        last = _kind(pipeline[-1]['transforms'][-1][-1])
    if last not in ('PackDetInputs', 'PackSegInputs'):
        raise ValueError(
            '--tta and --tile need a test pipeline that ends in PackDetInputs '
            f'or PackSegInputs, got {last}'
        )
    return last == 'PackDetInputs'


def _scaled(step: Mapping, factor: float) -> dict:
    """A resize to another size."""
    step = copy.deepcopy(dict(step))
    for key in ('scale', 'scale_factor'):
        value = step.get(key)
        if value is None:
            continue
        many = isinstance(value, Sequence)
        values = [item * factor for item in (value if many else [value])]
        if key == 'scale':
            values = [round(item) for item in values]
        step[key] = tuple(values) if many else values[0]
        return step
    raise ValueError(
        f'--tta must know the size of {step["type"]}, got neither scale nor '
        'scale_factor; set tta_pipeline in the config'
    )


def _packing(step: Mapping) -> dict:
    """The last transform, which keeps what views are put together by."""
    step = copy.deepcopy(dict(step))
    keys = step.get('meta_keys') or (
        *('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
        *('seg_map_path', 'pad_shape', 'reduce_zero_label'),
    )
    step['meta_keys'] = tuple(dict.fromkeys((*keys, *_META_KEYS)))
    return step


def _augmented(steps: Sequence[Mapping]) -> list[dict]:
    """One transform for all steps that gives scaled and flipped views."""
    steps = [copy.deepcopy(dict(step)) for step in steps]
    scope = str(steps[-1]['type']).rpartition('.')[0]
    scope = scope or steps[-1].get('_scope_', '')
    prefix = f'{scope}.' if scope else ''
    # Larger views do not fit into a size that is padded to.
    padded = any(_kind(step) == 'Pad' and 'size' in step for step in steps)
    scales = [scale for scale in SCALES if scale <= 1 or not padded]
    flips = [
        {'type': f'{prefix}RandomFlip', 'prob': prob} for prob in (0.0, 1.0)
    ]
    choices: list[list[dict]] = [
        [_scaled(step, scale) for scale in scales]
        if _is_resize(step)
        else [step]
        for step in steps
    ]
    resizes = [n for n, step in enumerate(steps, 1) if _is_resize(step)]
    if not resizes:
        kept = {'type': f'{prefix}Resize', 'keep_ratio': True}
        choices.insert(0, [{**kept, 'scale_factor': s} for s in scales])
    # Before it is padded: what is flipped back is the picture alone.
    location = max(resizes, default=1)
    choices.insert(location, flips)
    if not _is_detector(steps):
        # Networks of several strides do not take all sizes.
        choices.insert(location, [{'type': 'mmseg.ResizeToMultiple'}])
    return [{'type': 'TestTimeAug', 'transforms': choices}]


def _views(
    config: Config, pipeline: Sequence[Mapping], tta: bool, tile: int | None
) -> list[dict]:
    """The pipeline that gives several views of a picture."""
    if tta and config.get('tta_pipeline'):
        pipeline = config.tta_pipeline
    steps = [copy.deepcopy(dict(step)) for step in pipeline]
    loaded = next(
        (
            n
            for n, step in enumerate(steps, 1)
            if 'Image' in _kind(step) and _kind(step).startswith('Load')
        ),
        None,
    )
    if loaded is None:
        raise ValueError(
            '--tta and --tile need a test pipeline that loads an image, got '
            f'{[step["type"] for step in steps]}'
        )
    first, rest = steps[:loaded], steps[loaded:]
    if _kind(rest[-1]) == 'TestTimeAug':
        packs = rest[-1]['transforms'][-1]
        rest[-1]['transforms'][-1] = [_packing(pack) for pack in packs]
    else:
        rest[-1] = _packing(rest[-1])
        rest = _augmented(rest) if tta else rest
    if tile is not None and _is_detector(steps):
        rest = [
            {
                'type': 'mmext.TileViews',
                'size': tile,
                'overlap': OVERLAP,
                'transforms': rest,
            }
        ]
    return [*first, *rest]


def _wrapper(
    config: Config, detector: bool, tta: bool, tile: int | None
) -> dict | None:
    """Config of what puts views together; None if there is one view."""
    given = dict(config.get('tta_model') or {}) if tta else {}
    if detector and tile is not None:
        cfg = {'nms': _NMS, 'max_per_img': 1000}
        cfg['nms'] = (given.get('tta_cfg') or cfg)['nms']
        return {'type': 'mmext.TiledDetector', 'tta_cfg': cfg}
    if not tta:
        return None
    if given or not detector:
        return given or {'type': 'mmseg.SegTTAModel'}
    return {
        'type': 'DetTTAModel',
        '_scope_': 'mmdet',
        'tta_cfg': {'nms': _NMS, 'max_per_img': 300},
    }


def _slide(test_cfg: Any, tile: int, padding: Mapping | None) -> None:
    """Have a segmentor slide over the picture, as MMSegmentation does."""
    # Sides that the model can divide, where it says so.
    tile += -tile % ((padding or {}).get('size_divisor') or 1)
    stride = max(1, round(tile * (1 - OVERLAP)))
    test_cfg.update(
        mode='slide', crop_size=(tile, tile), stride=(stride, stride)
    )


def _refuse_masks(model: Mapping) -> None:
    """Neither model that puts views together takes masks."""
    heads = model.get('roi_head') or []
    heads = [heads] if isinstance(heads, Mapping) else heads
    masks = any(item.get('mask_head') for item in (model, *heads))
    if masks and model.get('eval_masks', True):
        raise ValueError(
            '--tta and --tile put boxes together, not masks, got a model with '
            'a mask_head; leave them out, or have an mmext.CoDETR give boxes '
            'only: --cfg-options model.eval_masks=False'
        )


def _prepare(
    config: Config, tta: bool, tile: int | None
) -> tuple[dict | None, bool]:
    """Change the pipelines; the wrapper, and whether it is a detector."""
    if tile is not None and tile < 1:
        raise ValueError(f'--tile must be at least 1 pixel, got {tile}')
    dataset = (config.get('test_dataloader') or {}).get('dataset')
    parts = [part for _, part in dataset_configs(dataset)]
    parts = [part for part in parts if part.get('pipeline')]
    if not parts:
        raise ValueError(
            'config must have test_dataloader.dataset.pipeline for --tta and '
            f'--tile, got {sorted(config)}'
        )
    detector = _is_detector(parts[0]['pipeline'])
    if detector and (tile is not None or not config.get('tta_model')):
        _refuse_masks(config.get('model') or {})
    for part in parts:
        part['pipeline'] = _views(config, part['pipeline'], tta, tile)
    return _wrapper(config, detector, tta, tile), detector


def wrap_test(config: Config, *, tta: bool, tile: int | None) -> None:
    """Make the config of a test one with several views of each picture.

    ``tta``: the views of ``tta_pipeline``, put together by ``tta_model``, if
    the config has them; else three scales, each flipped and not, put together
    by ``mmdet.DetTTAModel`` or ``mmseg.SegTTAModel``. ``tile``: of a detector
    the whole picture and tiles of that many pixels
    (:class:`mmext.TileViews`), one picture at a time; a segmentor slides over
    its input (``test_cfg.mode='slide'``), by the next larger tile that its
    preprocessor's ``test_cfg.size_divisor`` divides.

    Args:
        config: Is changed.
        tta: Whether to augment.
        tile: Sides of the tiles, None for none.

    Raises:
        ValueError: If the test pipeline is of another kind, or ``tile`` is
            less than 1.
    """
    wrapper, detector = _prepare(config, tta, tile)
    if tile is not None and detector:
        config.test_dataloader['batch_size'] = 1
    elif tile is not None:
        padding = (config.model.get('data_preprocessor') or {}).get('test_cfg')
        _slide(config.model.setdefault('test_cfg', {}), tile, padding)
    if wrapper is not None:
        config.model = {**wrapper, 'module': config.model}


def add_views(
    model: nn.Module, *, tta: bool = False, tile: int | None = None
) -> nn.Module:
    """The model of :func:`load_detector`, with several views of each picture.

    See :func:`wrap_test` for the views and errors. Of a detector with
    ``tile`` only one image at a time can be predicted.

    Returns:
        The model, or one around it, with the same attributes.
    """
    if not tta and tile is None:
        return model
    config = copy.deepcopy(model.cfg)
    wrapper, detector = _prepare(config, tta, tile)
    if tile is not None and not detector:
        padding = getattr(model.data_preprocessor, 'test_cfg', None)
        _slide(model.test_cfg, tile, padding)
    whole = model
    if wrapper is not None:
        with DefaultScope.overwrite_default_scope(
            config.get('default_scope', 'mmdet')
        ):
            whole = MODELS.build(ConfigDict(wrapper, module=model))
        whole.dataset_meta = model.dataset_meta
    whole.cfg = config
    return whole.eval()
