"""Share a model: a folder without pickles, and with a card for the hub."""

# First: the hosts are quiet then.
import mmext.utils.quiet_hosts  # noqa: F401, I001

import html
import logging
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import yaml
from mmengine.config import Config
from mmengine.logging import print_log
from PIL import Image
from torch import nn

from ..checks.config import (
    config_to_json,
    near_files,
    read_config,
    walk_dicts,
)
from ..engine import read_checkpoint, resolve_device, write_pretrained
from ..utils.safe_load import is_pretrained
from .detector import build_detector, load_detector
from .infer import Images, Prediction, infer_images, is_video
from .prediction_files import Video

_HUB_NAME = re.compile(r'[\w-][\w.-]*(/[\w-][\w.-]*)?', re.ASCII)
# Config keys of weights that are not read when a model is only built.
_INITIAL = ('checkpoint', 'pretrained')
_CARD = """\
---
{head}---

# {title}

A model of [mmext]({link}), {version}: `{kind}`.

```python
import mmext

predict = mmext.from_pretrained('{name}')
predict('IMAGE').plot('out.png')
```

or `mmext infer IMAGE --checkpoint FOLDER --out out`. The weights
are safetensors, the config is data; loading runs no code of this folder.

## Classes

{classes}
"""
# What a file of weights is called, and no model of the hub.
_FILES = ('.pth', '.pt', '.ckpt', '.safetensors', '.onnx', '.json')
_LINK = 'https://pypi.org/project/mmext/'


def save_pretrained(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    config: Config | str | Path | None = None,
    cfg_options: Mapping | None = None,
    trust_checkpoint: bool = False,
) -> Path:
    """Write a model into a folder that others load without pickle.

    The folder holds ``model.safetensors``, ``config.json`` (the resolved
    config and the class names) and ``README.md``, a model card with the
    front matter that the Hugging Face hub reads; metrics and a licence are
    yours to write there. Optimizer, random states and the like are left out.
    Wherever tools and functions of mmext take a
    checkpoint, they take such a folder.

    Args:
        checkpoint: A checkpoint, as :func:`mmext.apis.load_detector` takes
            it; it must hold all weights of the model.
        folder: Where to; a new folder, or an empty one.
        config: A config, its file, or None for the one in the checkpoint.
        cfg_options: Settings to put over the config.
        trust_checkpoint: Let the checkpoint run code when it is read.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder holds files.
        FileNotFoundError: If the checkpoint or the config does not exist.
        ValueError: If the checkpoint cannot be read or lacks weights, or
            the config cannot be data: it has functions or classes, names
            modules or files of your own, or has unregistered components.

    Note:
        The config goes with its paths; a warning lists absolute ones.
    """
    loaded = read_checkpoint(checkpoint, mmap=True, trust=trust_checkpoint)
    cfg = read_config(
        config,
        meta=loaded.get('meta') or {},
        cfg_options=cfg_options,
        trust_checkpoint=trust_checkpoint,
    )
    return share_model(cfg, loaded, checkpoint, folder, trust_checkpoint)


def share_model(
    cfg: Config,
    loaded: Mapping,
    checkpoint: str | Path,
    folder: str | Path,
    trust_checkpoint: bool,
) -> Path:
    """:func:`save_pretrained` of a checkpoint that is read already."""
    # What cannot be shared is said before the model is built.
    config_to_json(cfg)
    _refuse_files(cfg)
    _warn_of_paths(cfg)
    model = build_detector(cfg, loaded, str(checkpoint), trust_checkpoint)
    folder = Path(folder)
    write_pretrained(
        folder,
        config=cfg,
        dataset_meta=model.dataset_meta,
        state_dict=model.state_dict(),
        card=_card(model, folder.resolve().name),
    )
    return folder


def _refuse_files(cfg: Config) -> None:
    """Raise if the model reads a file that the folder would not have."""
    for path, part in walk_dicts(cfg.model, ('model',)):
        for key, value in part.items():
            if key in _INITIAL or not isinstance(value, str):
                continue
            if '.' in value and Path(value).is_file():
                location = '.'.join(map(str, (*path, key)))
                raise ValueError(
                    f'the model cannot be shared: {location} of the config '
                    f'names the file {value!r}, which others do not have; '
                    'share it with the checkpoint and the config'
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


# The card ---------------------------------------------------------------


def _card(model: nn.Module, name: str) -> str:
    """Text of the model card; names of others are text in it, and no HTML."""
    scopes = {kind.__module__.split('.')[0] for kind in type(model).__mro__}
    kind, head = str(model.cfg.model['type']), {'library_name': 'mmext'}
    # The hub's word for what a model does.
    if hasattr(model, 'decode_head') or 'mmseg' in scopes:
        head['pipeline_tag'] = 'image-segmentation'
    elif 'mmdet' in scopes:
        head['pipeline_tag'] = 'object-detection'
    head['tags'] = ['mmext', kind]
    return _CARD.format(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True),
        title=_plain(name),
        # In a block of code, where Markdown reads nothing but its end.
        name=re.sub(r"[`'\\\s]", '', str(name)),
        link=_LINK,
        version=import_module('mmext').__version__,
        kind=kind,
        classes='\n'.join(
            f'{index}. {_plain(label)}'
            for index, label in enumerate(model.dataset_meta['classes'])
        )
        or 'None.',
    )


def add_figures(folder: str | Path, metrics: Mapping[str, float]) -> None:
    """Write the metrics of a test into the model card of a folder."""
    card = Path(folder, 'README.md')
    rows = '\n'.join(
        f'| {_plain(name)} | {value:.4g} |' for name, value in metrics.items()
    )
    table = f'## Figures of its test\n\n| metric | value |\n|---|---|\n{rows}'
    text = card.read_text(encoding='utf-8')
    text = text.replace('\n## Classes\n', f'\n{table}\n\n## Classes\n', 1)
    card.write_text(text, encoding='utf-8')


def _plain(text: str) -> str:
    """Text on one line, with nothing that Markdown or HTML reads."""
    text = html.escape(' '.join(str(text).split()), quote=False)
    return re.sub(r'([\\`*_{}\[\]()#!|~])', r'\\\1', text)


# Loading ----------------------------------------------------------------


def from_pretrained(
    name: str | Path,
    *,
    device: str = 'auto',
    revision: str | None = None,
    cfg_options: Mapping | None = None,
) -> 'Predictor':
    """Load a model that :func:`save_pretrained` wrote; runs no code of it.

    Nothing but ``config.json`` and ``model.safetensors`` is read. The config
    must be values, of components that mmext and the hosts have.

    Args:
        name: The folder, or the name of a model on the Hugging Face hub,
            such as ``'someone/shapes'``; or a checkpoint of a training,
            which has its config.
        device: ``'auto'`` (the first GPU, else the CPU), ``'cpu'``,
            ``'cuda'`` or ``'cuda:N'``.
        revision: Of a model on the hub: branch, tag or commit.
        cfg_options: Settings to put over the config, keys with dots.

    Returns:
        What predicts. Its ``model`` is in eval mode, on the device, as
        :func:`mmext.apis.load_detector` gives it.

    Raises:
        FileNotFoundError: If there is no such folder, or a file is missing.
        ImportError: If ``name`` is of the hub, and ``huggingface_hub`` is
            not installed.
        ValueError: If a file is damaged, or asks for code.
    """
    folder = Path(name).expanduser()
    if folder.suffix == '.py':
        raise ValueError(
            f'name must be a model, got the config {str(name)!r}; give its '
            'checkpoint, such as work_dirs/NAME/epoch_12.pth'
        )
    if not folder.exists():
        folder = _download(str(name), revision)
    elif folder.is_dir() and not is_pretrained(folder):
        raise FileNotFoundError(
            'name must be a folder with config.json and model.safetensors, '
            f'got {str(name)!r}; make one with mmext.save_pretrained'
        )
    return Predictor(
        load_detector(None, folder, device=device, cfg_options=cfg_options)
    )


class Predictor:
    """A model that takes pictures and gives results that can be drawn.

    Args:
        model: From :func:`mmext.apis.load_detector`, or with the views of
            :func:`mmext.apis.add_views`.

    Attributes:
        model: The module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.model.dataset_meta['classes'])

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def to(self, device: str) -> 'Predictor':
        """Move the model; a device as of :func:`from_pretrained`."""
        self.model.to(resolve_device(device))
        return self

    def __call__(
        self, images: Images, *, threshold: float = 0.3, batch_size: int = 1
    ) -> Prediction | list[Prediction] | Iterator[Prediction]:
        """Predict what is in pictures.

        Args:
            images: As :func:`mmext.apis.infer_images` takes them: files, NumPy
                arrays (blue green red) or pictures of Pillow, one or several,
                a folder or a pattern; or a video for its frames.
            threshold: Objects of a lower score are left out, in [0, 1]; of
                no effect on models that find no objects.
            batch_size: How many pictures are taken at once; those of one
                size go through the model together.

        Returns:
            For one picture its result, for a list a list, else an iterator,
            which computes a batch when it is asked for.

        Raises:
            TypeError: If one of ``images`` is none of these.
            ValueError: For an empty list, and the reasons of
                :func:`mmext.apis.infer_images`.
        """
        several = isinstance(images, list | tuple)
        if several and not images:
            raise ValueError(
                'images must be at least one picture, got an empty '
                f'{type(images).__name__}'
            )
        is_one = isinstance(images, np.ndarray | Image.Image)
        if isinstance(images, str | Path) and Path(images).is_file():
            is_one = not is_video(images)
            images = images if is_one else Video(images)
        results = infer_images(
            self.model, images, score_thr=threshold, batch_size=batch_size
        )
        if several:
            return list(results)
        return next(results) if is_one else results


def _download(name: str, revision: str | None) -> Path:
    """Get the two files from the hub, into its cache."""
    is_file = Path(name).suffix in _FILES
    if is_file or not _HUB_NAME.fullmatch(name) or '..' in name:
        raise FileNotFoundError(
            'name must be an existing folder or checkpoint, or a name of the '
            f'hub as OWNER/NAME, got {name!r} (looked from {Path.cwd()})'
            f'{near_files(Path(name))}'
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
