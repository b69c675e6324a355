"""Text encoders for class names: what one is, and how to get one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..engine.device import resolve_device
from .text_backends import (
    OpenClipEncoder,
    SentenceTransformersEncoder,
    TransformersEncoder,
)

__all__ = ['TEXT_ENCODERS', 'TextEncoder', 'build_text_encoder']


class TextEncoder(Protocol):
    """What :func:`~mmext.apis.class_embeddings.make_class_embeddings` needs.

    Attributes:
        name: Kind and model, to be written down beside the embeddings.
        default_templates: Texts with ``{}`` for the class name that suit the
            model.
    """

    name: str
    default_templates: tuple[str, ...]

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts.

        Args:
            texts: N texts.

        Returns:
            ``(N, D)``, floating point; the length of the rows is free.

        Raises:
            ValueError: If the model would read the beginning of a text only.
        """
        ...


TEXT_ENCODERS: dict[str, Callable[..., TextEncoder]] = {
    'open_clip': OpenClipEncoder,
    'sentence-transformers': SentenceTransformersEncoder,
    'transformers': TransformersEncoder,
}


def _remedy(offline: bool) -> str:
    if offline:
        return (
            'offline, it must be in the local cache or a folder: run this '
            'once without --offline where there is a network, or copy the '
            'folder of the model here and name that'
        )
    return (
        'check the name and the network; a machine without one needs the '
        'folder of the model, or the cache of a machine that has it'
    )


def build_text_encoder(
    kind: str,
    model: str,
    *,
    pretrained: str | None = None,
    device: str = 'auto',
    offline: bool = False,
) -> TextEncoder:
    """Load a text encoder.

    Args:
        kind: ``'open_clip'``, ``'sentence-transformers'`` or
            ``'transformers'``: the package that runs the model.
        model: A folder, or a name that the package knows.
        pretrained: Tag or file of the weights, for open_clip only.
        device: ``'auto'``, ``'cpu'``, ``'cuda'`` or ``'cuda:N'``.
        offline: Use what has been downloaded, and nothing else.

    Returns:
        The encoder, in eval mode, float32.

    Raises:
        FileNotFoundError: If the model is neither here nor can be had. The
            message says how to get it.
        ImportError: If the package is not there. The message names the extra
            of mmext that brings it.
        ValueError: If the kind is unknown, there is no such device,
            ``pretrained`` does not suit, the folder of the model cannot be
            loaded, or the model is of no use here.

    Note:
        Unless ``offline``, packages download what is missing and ask the hub
        for news of what is not.
    """
    if kind not in TEXT_ENCODERS:
        raise ValueError(
            f'kind must be one of {", ".join(TEXT_ENCODERS)}, got {kind!r}'
        )
    options = {'device': resolve_device(device), 'offline': offline}
    if kind == 'open_clip':
        options['pretrained'] = pretrained
    elif pretrained is not None:
        raise ValueError(
            f'pretrained must be None for {kind}, got {pretrained!r}; the '
            'model names its weights'
        )
    if model.startswith(('/', './', '../', '~')):
        folder = Path(model).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(
                f'model must be an existing folder, got {model}'
            )
        model = str(folder)
    try:
        return TEXT_ENCODERS[kind](model, **options)
    except torch.cuda.OutOfMemoryError:
        raise
    except (OSError, RuntimeError) as error:
        what = (
            f'{kind} cannot load the model {model!r}, got '
            f'{type(error).__name__}: {" ".join(str(error).split())}'
        )
        if Path(model).exists():
            raise ValueError(
                f'{what}; is this folder a model for {kind}?'
            ) from error
        raise FileNotFoundError(
            f'{what}\nRemedy: {_remedy(offline)}'
        ) from error
