"""Make class embeddings from class names, and write them to a file.

:class:`mmext.models.CoDINOClassEmbedHead` classifies by the cosine to them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from ..utils.files import atomic_path
from .class_names import check_templates, class_phrases, fill_templates
from .text_encoders import TextEncoder

__all__ = [
    'SIMILAR_COSINE',
    'check_embeddings_path',
    'closest_classes',
    'make_class_embeddings',
    'save_class_embeddings',
]

# About 18 degrees. The cosines of any one query to two classes of cosine c
# differ by sqrt(2 - 2c) at the most: 0.32 of a range of 2 for this one.
SIMILAR_COSINE = 0.95
_SUFFIXES = ('.safetensors', '.pt', '.npy')


def _unit_rows(vectors: Tensor, texts: Sequence[str]) -> Tensor:
    """Normalise what an encoder gave; ``(N, D)`` float64."""
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.numel():
        raise ValueError(
            f'encoder must give a vector for each of {len(texts)} texts, got '
            f'shape {tuple(vectors.shape)}'
        )
    vectors = vectors.detach().to('cpu', torch.float64)
    norms = vectors.norm(dim=1)
    bad = ~norms.isfinite() | (norms == 0)
    if bad.any():
        text = texts[int(bad.nonzero()[0])]
        raise ValueError(
            'encoder must give finite vectors that are not zero, got one '
            f'that is for {text!r}; try another model or device'
        )
    return vectors / norms[:, None]


@torch.no_grad()
def make_class_embeddings(
    classes: Sequence[str],
    encoder: TextEncoder,
    templates: Sequence[str] | None = None,
    *,
    batch_size: int = 64,
    on_texts: Callable[[int], Any] | None = None,
) -> Tensor:
    r"""Embed class names with a text encoder.

    Each name is put into each of the T templates. The embedding of class k
    is the direction of the mean of the directions of its texts,

    .. math:: e_k = \frac{m_k}{|m_k|}, \quad
        m_k = \frac{1}{T} \sum_t \frac{f(text_{kt})}{|f(text_{kt})|}

    Args:
        classes: K names; underscores are read as blanks.
        encoder: Gives the vectors f, see
            :func:`~mmext.apis.text_encoders.build_text_encoder`.
        templates: T texts with ``{}`` for the name. By default those that
            suit the encoder.
        batch_size: Texts at once.
        on_texts: Called after each batch with the number of its texts.

    Returns:
        ``(K, D)``, float32, on the CPU, rows of length 1.

    Raises:
        TypeError: If ``classes`` or ``templates`` is one string.
        ValueError: If names or templates are empty or repeated, a template
            does not hold ``{}`` once, ``batch_size`` is less than one, or
            the encoder gives vectors that are zero, not finite, of a wrong
            number, or that cancel each other.

    Source:
        Averaging over templates follows Radford et al., Learning
        Transferable Visual Models From Natural Language Supervision, 2021.
    """
    phrases = class_phrases(classes)
    if templates is None:
        templates = encoder.default_templates
    templates = check_templates(templates)
    if batch_size < 1:
        raise ValueError(f'batch_size must be at least 1, got {batch_size}')
    texts = fill_templates(phrases, templates)
    parts = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        parts.append(_unit_rows(encoder.encode(batch), batch))
        if on_texts is not None:
            on_texts(len(batch))
    means = torch.cat(parts).unflatten(0, (len(phrases), -1)).mean(dim=1)
    cancelled = means.norm(dim=1) < 1e-6
    if cancelled.any():
        name = classes[int(cancelled.nonzero()[0])]
        raise ValueError(
            f'the templates of a class must not cancel out, got a mean of '
            f'zero for {name!r}; use other templates'
        )
    return normalize(means, dim=1).float()


def closest_classes(embeddings: Tensor) -> tuple[int, int, float] | None:
    """Find the two classes that are hardest to tell apart.

    Args:
        embeddings: ``(K, D)``, rows of length 1.

    Returns:
        Their indices, the smaller one first, and their cosine; None if there
        is only one class.

    Examples:
        >>> closest_classes(torch.eye(3)[[0, 1, 0]])
        (0, 2, 1.0)
    """
    count = len(embeddings)
    if count < 2:
        return None
    cosines = embeddings @ embeddings.T
    cosines.fill_diagonal_(-2.0)
    first, second = divmod(int(cosines.argmax()), count)
    return first, second, float(cosines[first, second])


def check_embeddings_path(path: str | Path, *, force: bool = False) -> Path:
    """Check that class embeddings can be written to a path, before the work.

    Args:
        path: File to write.
        force: An existing file may be replaced.

    Returns:
        The path.

    Raises:
        FileExistsError: If there is a file and ``force`` is false.
        IsADirectoryError: If it is a directory.
        ValueError: If the suffix is not ``.safetensors``, ``.pt`` or
            ``.npy``.
    """
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            f'path must end in {", ".join(_SUFFIXES)}, got {path}'
        )
    if path.is_dir():
        raise IsADirectoryError(f'path must be a file, got directory {path}')
    if path.exists() and not force:
        raise FileExistsError(
            f'path must not exist, got {path}; name another file, or replace '
            'it with --force'
        )
    return path


def _as_text(value: Any) -> str:
    """Metadata of safetensors are strings; all others become JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def save_class_embeddings(
    path: str | Path,
    embeddings: Tensor,
    classes: Sequence[str],
    info: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write class embeddings whole or not at all; missing folders are made.

    =================  ====================================================
    suffix             content
    =================  ====================================================
    ``.safetensors``   tensor ``class_embeddings``; metadata ``classes``, a
                       JSON list, and ``info``, strings as they are and all
                       else as JSON
    ``.pt``            dict with ``class_embeddings``, ``classes``, a list,
                       and ``info``; can be read with ``weights_only=True``
    ``.npy``           the bare array, without names
    =================  ====================================================

    Args:
        path: File to write.
        embeddings: ``(K, D)``, floating point; written as float32.
        classes: K names, as the data set has them.
        info: More to write down, such as the encoder: plain values.
        force: Replace an existing file.

    Returns:
        The path.

    Raises:
        FileExistsError: If there is a file and ``force`` is false.
        IsADirectoryError: If the path is a directory.
        TypeError: If ``embeddings`` are not floating point.
        ValueError: If the suffix is unknown, the embeddings are not a finite
            ``(K, D)`` with a row for each class, or ``info`` has a key of
            the file's own.
    """
    path = check_embeddings_path(path, force=force)
    if not embeddings.is_floating_point():
        raise TypeError(
            f'embeddings must be floating point, got {embeddings.dtype}'
        )
    shape = tuple(embeddings.shape)
    if len(shape) != 2 or shape[0] != len(classes) or 0 in shape:
        raise ValueError(
            f'embeddings must have a row for each of {len(classes)} classes, '
            f'got shape {shape}'
        )
    taken = {'class_embeddings', 'classes'} & set(info or {})
    if taken:
        raise ValueError(
            f'info must not hold {", ".join(sorted(taken))}, which the file '
            'holds already'
        )
    rows = embeddings.detach().to('cpu', torch.float32).clone().contiguous()
    if not rows.isfinite().all():
        raise ValueError('embeddings must be finite, got some that are not')
    names = {'classes': list(classes), **(info or {})}
    with atomic_path(path) as temporary:
        if path.suffix == '.npy':
            np.save(temporary, rows.numpy())
        elif path.suffix == '.pt':
            torch.save({'class_embeddings': rows, **names}, temporary)
        else:
            save_file(
                {'class_embeddings': rows},
                temporary,
                {key: _as_text(value) for key, value in names.items()},
            )
    return path
