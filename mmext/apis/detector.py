"""Build a model from a config and a checkpoint, ready to predict."""

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, DefaultScope
from torch import nn

from ..checks.config import dataset_configs, read_config
from ..engine import (
    check_complete,
    checkpoint_metainfo,
    load_weights,
    read_checkpoint,
    resolve_device,
)
from ..models import MAE
from ..ops import choose_ops_backend
from ..utils.safe_load import careful_readers


def _plain_dataset(config: Config) -> Mapping:
    """Config of the outermost test data set that has a pipeline."""
    for name in ('test_dataloader', 'val_dataloader'):
        dataset = (config.get(name) or {}).get('dataset')
        for _, part in dataset_configs(dataset):
            if 'pipeline' in part:
                return part
    return {}


def inference_pipeline(config: Config) -> list[dict]:
    """Configs of the test transforms, without those that load annotations."""
    pipeline = _plain_dataset(config).get('pipeline')
    if not pipeline:
        raise ValueError(
            'config must have test_dataloader.dataset.pipeline, got '
            f'{sorted(config)}; inference prepares images as the test does'
        )
    return _without_annotations(pipeline)


def _without_annotations(steps: Sequence[Mapping]) -> list[dict]:
    """Copies of the transforms that need no annotation, nested ones too."""
    kept = []
    for step in steps:
        if str(step['type']).endswith('LoadAnnotations'):
            continue
        step = copy.deepcopy(dict(step))
        inner = step.get('transforms')
        if inner and isinstance(inner[0], Sequence):
            # Of TestTimeAug: choices for each of its steps.
            choices = map(_without_annotations, inner)
            step['transforms'] = [choice for choice in choices if choice]
        elif inner:
            step['transforms'] = _without_annotations(inner)
        kept.append(step)
    return kept


def read_metainfo(config: Config, *, meta: Mapping | None = None) -> dict:
    """``classes`` and ``palette``: the checkpoint's, else the config's."""
    info = checkpoint_metainfo(meta)
    if not info.get('classes'):
        dataset = _plain_dataset(config)
        kind = dataset.get('type')
        scope = dataset.get('_scope_') or config.get('default_scope', 'mmdet')
        if isinstance(kind, str):
            with DATASETS.switch_scope_and_registry(scope) as registry:
                kind = registry.get(kind)
        info = dict(getattr(kind, 'METAINFO', {}))
        info.update(dataset.get('metainfo') or {})
    classes = info.get('classes')
    if not classes or isinstance(classes, str):
        raise ValueError(
            'classes must be in the checkpoint (meta.dataset_meta) or in the '
            f'config (test_dataloader.dataset.metainfo), got {classes!r}; '
            "add metainfo=dict(classes=('name', ...)) to the test data set"
        )
    return {'classes': tuple(classes), 'palette': info.get('palette')}


def _evaluated_metainfo(
    model: nn.Module, config: Config, meta: Mapping
) -> dict:
    """Class names that a model predicts; not always those it learned."""
    if isinstance(model, MAE):
        return {'classes': (), 'palette': None}
    given = getattr(
        getattr(model, 'query_head', None), 'test_vocabulary', None
    )
    if given is None:
        return read_metainfo(config, meta=meta)
    if given.classes is not None:
        return {'classes': given.classes, 'palette': None}
    info = read_metainfo(config)
    if len(info['classes']) != len(given.vectors):
        raise ValueError(
            f'the {len(given.vectors)} class embeddings of {given.source} '
            f'must have names, got {len(info["classes"])} in test_dataloader.'
            'dataset.metainfo.classes of the config; write the names into '
            'the file (.safetensors or .pt), or set them there'
        )
    return info


def load_detector(
    config: Config | str | Path | None,
    checkpoint: str | Path,
    *,
    device: str = 'auto',
    cfg_options: Mapping | None = None,
    trust_checkpoint: bool = False,
) -> nn.Module:
    """Build a model, load its weights and make it ready to predict.

    Detectors and segmentors are taken, a :class:`mmext.MultiTaskModel`, and a
    :class:`mmext.MAE`, which has no classes. A segmentor with the backbone
    PIDNet, which takes sides that are multiples of 8 only, pads pictures.

    The model gets two attributes, as mmdet's own functions expect them:
    ``cfg``, the config, and ``dataset_meta`` with ``classes`` and
    ``palette``. The classes are those of the checkpoint, unless the config
    has the model predict others (``test_cfg.query_head.class_embeddings``).

    Args:
        config: A config, its file, or None for the one stored in the
            checkpoint.
        checkpoint: A checkpoint file, an address that MMEngine can load
            from, or a folder of :func:`mmext.save_pretrained`. Weights that
            the model has no place for are left out, and a log line says so.
        device: ``'auto'`` (the first GPU, else the CPU), ``'cpu'``,
            ``'cuda'`` or ``'cuda:N'``.
        cfg_options: Settings to put over the config, keys with dots.
        trust_checkpoint: Let the checkpoint, and the config in it, run code
            when they are read. Only for files from people you trust.

    Returns:
        The model, in eval mode, on the device.

    Raises:
        FileNotFoundError: If the config or the checkpoint does not exist.
        ValueError: If the checkpoint is damaged, would have to be trusted or
            lacks weights of the model, no config or no class names can be
            found, these are fewer or more than the classes, or there is no
            such device.

    Note:
        A config file is Python that is run. Open only files from people you
        trust.
    """
    location = resolve_device(device)
    loaded = read_checkpoint(checkpoint, mmap=True, trust=trust_checkpoint)
    config = read_config(
        config,
        meta=loaded.get('meta') or {},
        cfg_options=cfg_options,
        trust_checkpoint=trust_checkpoint,
    )
    model = build_detector(config, loaded, str(checkpoint), trust_checkpoint)
    return model.to(location).eval()


def build_detector(
    config: Config, loaded: Mapping, source: str, trust_checkpoint: bool
) -> nn.Module:
    """The model of a config with weights that are read already."""
    choose_ops_backend(config.get('ops_backend') or 'auto')
    scope = config.get('default_scope', 'mmdet')
    with (
        DefaultScope.overwrite_default_scope(scope),
        careful_readers(trust_checkpoint, torch_load=True),
    ):
        model = MODELS.build(copy.deepcopy(config.model))
    model = revert_sync_batchnorm(model)
    meta = loaded.get('meta') or {}
    model.dataset_meta = _evaluated_metainfo(model, config, meta)
    report = load_weights(model, loaded, source)
    # A model that lacks some would predict at random.
    check_complete(report, source)
    if report.unexpected:
        print_log(
            f'{source}: loaded {report}',
            logger='current',
            level=logging.WARNING,
        )
    preprocessor = getattr(model, 'data_preprocessor', None)
    backbone = type(getattr(model, 'backbone', None)).__name__
    if backbone == 'PIDNet' and not getattr(preprocessor, 'test_cfg', True):
        # It fails on sides that it cannot divide.
        preprocessor.test_cfg = {'size_divisor': 8}
    model.cfg = config
    return model
