"""Share a model: a folder without pickles, and with a card for the hub."""

import html
import json
import logging
import math
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.logging import print_log
from torch import nn

from ..checks.config import config_to_json, read_config, walk_dicts
from ..engine import read_checkpoint, write_pretrained
from ..utils.weight_files import is_pretrained
from .detector import load_detector

_HUB_NAME = re.compile(r'[\w-][\w.-]*(/[\w-][\w.-]*)?', re.ASCII)
# Times of a step, which are among the metrics in MMEngine's files.
_NO_METRICS = ('data_time', 'time', 'epoch', 'iter', 'step')
# Config keys of weights that are not read when a model is only built.
_INITIAL = ('checkpoint', 'pretrained')
_CARD = """\
---
{head}---

# {title}

A model of [mmext]({link}), {version}: `{kind}`.

```python
import mmext

model = mmext.from_pretrained('{name}')
```

or `python tools/infer.py IMAGE --checkpoint FOLDER --out out`. The weights
are safetensors, the config is data; loading runs no code of this folder.

## Classes

{classes}
"""
_LINK = 'https://pypi.org/project/mmext/'


def save_pretrained(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    config: Config | str | Path | None = None,
    evaluation: Mapping[str, Any] | str | Path | None = None,
    name: str | None = None,
    license: str | None = None,
    cfg_options: Mapping | None = None,
    trust_checkpoint: bool = False,
) -> Path:
    """Write a model into a folder that others load without pickle.

    The folder holds ``model.safetensors``, ``config.json`` (the resolved
    config and the class names) and ``README.md``, a model card with the
    front matter that the Hugging Face hub reads. Optimizer, random states
    and the like are left out. Wherever tools and functions of mmext take a
    checkpoint, they take such a folder.

    Args:
        checkpoint: A checkpoint, as :func:`mmext.apis.load_detector` takes
            it; it must hold all weights of the model.
        folder: Where to; a new folder, or an empty one.
        config: A config, its file, or None for the one in the checkpoint.
        evaluation: Metrics by name, or a JSON file with them, such as
            ``tools/test.py`` writes into the work dir, or the
            ``report.json`` of its ``--report``; values that are no numbers
            are left out. None for those of the validation right after the
            checkpoint was written, if its work dir has them.
        name: Title of the card, by default the name of the folder.
        license: Licence of the weights, in the hub's words (``'mit'``); by
            default the card names none.
        cfg_options: Settings to put over the config.
        trust_checkpoint: Let the checkpoint run code when it is read.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder holds files.
        FileNotFoundError: If the checkpoint, the config or the file of the
            evaluation does not exist.
        ValueError: If the checkpoint cannot be read or lacks weights, or
            the config cannot be data: it has functions or classes, names
            modules or files of your own, or has unregistered components.

    Note:
        The config goes with its paths; a warning lists absolute ones.
    """
    loaded = read_checkpoint(checkpoint, mmap=True, trust=trust_checkpoint)
    meta = loaded.get('meta') or {}
    cfg = read_config(
        config,
        meta=meta,
        cfg_options=cfg_options,
        trust_checkpoint=trust_checkpoint,
    )
    # What cannot be shared is said before the model is built.
    config_to_json(cfg)
    _refuse_files(cfg)
    _warn_of_paths(cfg)
    model = load_detector(
        cfg, checkpoint, device='cpu', trust_checkpoint=trust_checkpoint
    )
    if evaluation is None:
        evaluation = _find_evaluation(Path(checkpoint), meta, cfg)
    elif not isinstance(evaluation, Mapping):
        evaluation = _read_metrics(Path(evaluation))
    folder = Path(folder)
    write_pretrained(
        folder,
        config=cfg,
        dataset_meta=model.dataset_meta,
        state_dict=model.state_dict(),
        card=_card(
            model,
            name or folder.resolve().name,
            _numbers(evaluation),
            license,
        ),
    )
    return folder


def _refuse_files(cfg: Config) -> None:
    """Raise if the model reads a file that the folder would not have."""
    for path, part in walk_dicts(cfg.model, ('model',)):
        for key, value in part.items():
            if key in _INITIAL or not isinstance(value, str):
                continue
            if '.' in value and Path(value).is_file():
                place = '.'.join(map(str, (*path, key)))
                raise ValueError(
                    f'the model cannot be shared: {place} of the config names '
                    f'the file {value!r}, which others do not have; share it '
                    'with the checkpoint and the config'
                )


def _warn_of_paths(cfg: Config) -> None:
    """Say which paths of this machine are going to be read by others."""
    paths = {
        value
        for _, part in walk_dicts(cfg.to_dict())
        for value in part.values()
        if isinstance(value, str) and Path(value).is_absolute()
    }
    if paths:
        print_log(
            f'config.json names paths of this machine: {", ".join(paths)}; to '
            'keep them to yourself, give others: --cfg-options '
            'data_root=FOLDER',
            logger='current',
            level=logging.WARNING,
        )


def _read_metrics(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(
            f'evaluation must be a JSON file, got {file}: {error}'
        ) from error
    if isinstance(content, dict) and isinstance(content.get('metrics'), dict):
        content = content['metrics']
    if not isinstance(content, dict) or not _numbers(content):
        raise ValueError(
            f'evaluation must hold metrics by name, got {file} with '
            f'{type(content).__name__} and no number'
        )
    return content


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are metrics; -1 is COCO's word for no such objects."""
    return {
        str(name): float(value)
        for name, value in metrics.items()
        if isinstance(value, Real)
        and not isinstance(value, bool)
        and name not in _NO_METRICS
        and math.isfinite(value)
        and not (value == -1 and '_mA' in str(name))
    }


def _find_evaluation(
    checkpoint: Path, meta: Mapping[str, Any], cfg: Config
) -> dict[str, Any]:
    """Metrics of the validation that followed a checkpoint, from its log."""
    logger = (cfg.get('default_hooks') or {}).get('logger') or {}
    key = 'epoch' if logger.get('log_metric_by_epoch', True) else 'iter'
    # MMEngine ends it with the name of the folder that it logs to.
    run = str(meta.get('experiment_name', ''))[-15:]
    log = checkpoint.parent / run / 'vis_data' / 'scalars.json'
    metrics: dict[str, Any] = {}
    if not run or '/' in run or not log.is_file():
        return metrics
    for line in log.read_text(encoding='utf-8').splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # the line at which a run was killed
            continue
        if values.get('step') == meta.get(key) and 'lr' not in values:
            metrics = values
    return metrics


# The card ---------------------------------------------------------------


def _task_of(model: nn.Module) -> str:
    """The hub's word for what a model does, or nothing."""
    scopes = {kind.__module__.split('.')[0] for kind in type(model).__mro__}
    if hasattr(model, 'decode_head') or 'mmseg' in scopes:
        return 'image-segmentation'
    return 'object-detection' if 'mmdet' in scopes else ''


def _card(
    model: nn.Module, name: str, metrics: Mapping[str, float], license: Any
) -> str:
    """Text of the model card; names of others are text in it, and no HTML."""
    task, kind = _task_of(model), str(model.cfg.model['type'])
    head: dict[str, Any] = {'library_name': 'mmext'}
    if license:
        head['license'] = license
    if task:
        head['pipeline_tag'] = task
    head['tags'] = ['mmext', kind]
    if metrics:
        data = _data_of(model.cfg)
        result = {
            'task': {'type': task or 'other'},
            'dataset': {'type': re.sub(r'\W+', '-', data), 'name': data},
            'metrics': [
                {'type': key, 'value': value, 'name': key}
                for key, value in metrics.items()
            ],
        }
        head['model-index'] = [{'name': name, 'results': [result]}]
    text = _CARD.format(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True),
        title=_plain(name),
        name=_plain(name).replace("'", ''),
        link=_LINK,
        version=import_module('mmext').__version__,
        kind=kind,
        classes='\n'.join(
            f'{index}. {_plain(label)}'
            for index, label in enumerate(model.dataset_meta['classes'])
        )
        or 'None.',
    )
    if metrics:
        rows = [f'| {_plain(k)} | {v:.4g} |' for k, v in metrics.items()]
        table = '\n'.join(['| metric | value |', '|---|---|', *rows])
        text += f'\n## Evaluation\n\n{table}\n'
    return text


def _plain(text: str) -> str:
    """Text on one line, with nothing that Markdown or HTML reads."""
    text = html.escape(' '.join(str(text).split()), quote=False)
    return re.sub(r'([\\`*_{}\[\]()#!|~])', r'\\\1', text)


def _data_of(cfg: Config) -> str:
    """Name of the data set that the model was tested on, by its config."""
    for split in ('test_dataloader', 'val_dataloader'):
        for _, part in walk_dicts((cfg.get(split) or {}).get('dataset')):
            if 'type' in part:
                root = Path(str(part.get('data_root') or '')).name
                return root or str(part['type']).rpartition('.')[2]
    return 'unknown'


# Loading ----------------------------------------------------------------


def from_pretrained(
    name: str | Path,
    *,
    device: str = 'auto',
    revision: str | None = None,
    cfg_options: Mapping | None = None,
) -> nn.Module:
    """Load a model that :func:`save_pretrained` wrote; runs no code of it.

    Nothing but ``config.json`` and ``model.safetensors`` is read. The config
    must be values, of components that mmext and the hosts have.

    Args:
        name: The folder, or the name of a model on the Hugging Face hub,
            such as ``'someone/shapes'``.
        device: ``'auto'`` (the first GPU, else the CPU), ``'cpu'``,
            ``'cuda'`` or ``'cuda:N'``.
        revision: Of a model on the hub: branch, tag or commit.
        cfg_options: Settings to put over the config, keys with dots.

    Returns:
        The model in eval mode, on the device, with ``cfg`` and
        ``dataset_meta``, as :func:`mmext.apis.load_detector` gives it.

    Raises:
        FileNotFoundError: If there is no such folder, or a file is missing.
        ImportError: If ``name`` is of the hub, and ``huggingface_hub`` is
            not installed.
        ValueError: If a file is damaged, or asks for code.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _download(str(name), revision)
    elif not is_pretrained(folder):
        raise FileNotFoundError(
            'name must be a folder with config.json and model.safetensors, '
            f'got {str(name)!r}; make one with mmext.save_pretrained'
        )
    return load_detector(None, folder, device=device, cfg_options=cfg_options)


def _download(name: str, revision: str | None) -> Path:
    """Get the two files from the hub, into its cache."""
    if not _HUB_NAME.fullmatch(name) or '..' in name:
        raise FileNotFoundError(
            'name must be an existing folder, or a name of the hub as '
            f'OWNER/NAME, got {name!r} (looked from {Path.cwd()})'
        )
    if find_spec('huggingface_hub') is None:
        raise ImportError(
            f'there is no folder {name!r} in {Path.cwd()}, and '
            'huggingface_hub, which looks for it on the hub, is not '
            "installed; run: pip install 'mmext[hub]'"
        )
    hub = import_module('huggingface_hub')
    return Path(
        hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=['config.json', 'model.safetensors'],
        )
    )
