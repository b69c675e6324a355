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

from ..utils.files import atomic_path, is_stream
from .text_encoders import TextEncoder

# About 18 degrees. The cosines of any one query to two classes of cosine c
# differ by sqrt(2 - 2c) at the most: 0.32 of a range of 2 for this one.
SIMILAR_COSINE = 0.95
_SUFFIXES = ('.safetensors', '.pt', '.npy')


def class_phrases(classes: Sequence[str]) -> tuple[str, ...]:
    """Word K names as text, all different; ``_`` and blanks are one blank."""
    if isinstance(classes, str):
        raise TypeError(
            f'classes must be a sequence of names, got the string '
            f'{classes!r}; for one class write [{classes!r}]'
        )
    if not classes:
        raise ValueError('classes must name at least one class, got none')
    first: dict[str, int] = {}
    for index, name in enumerate(classes):
        if not isinstance(name, str):
            raise TypeError(
                f'classes must be strings, got {name!r} at position {index}'
            )
        phrase = ' '.join(name.replace('_', ' ').split())
        if not phrase:
            raise ValueError(
                f'classes must not be empty, got {name!r} at position {index}'
            )
        if phrase in first:
            other = first[phrase]
            raise ValueError(
                f'classes must be different, got {classes[other]!r} at '
                f'position {other} and {name!r} at position {index}, which '
                f'both read {phrase!r}; rename one, since no classifier can '
                'tell them apart'
            )
        first[phrase] = index
    return tuple(first)


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Check texts that hold ``{}`` once; other braces are kept as they are."""
    if isinstance(templates, str):
        raise TypeError(
            'templates must be a sequence of texts, got the string '
            f'{templates!r}; for one template write [{templates!r}]'
        )
    if not templates:
        raise ValueError(
            'templates must hold at least one text, got none; use "{}" for '
            'the bare name'
        )
    for index, template in enumerate(templates):
        if template.count('{}') != 1:
            raise ValueError(
                'templates must hold {} exactly once, where the name goes, '
                f'got {template!r} at position {index}'
            )
        if template in templates[:index]:
            raise ValueError(
                f'templates must be different, got {template!r} again at '
                f'position {index}'
            )
    return tuple(templates)


def read_lines(path: str | Path) -> list[str]:
    """Read names or templates, one a line, in UTF-8; none may be empty."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'there must be a text file at {path}')
    try:
        text = path.read_text(encoding='utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} must be text in UTF-8, got {error}'
        ) from error
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if not lines:
        raise ValueError(f'{path} must hold one text a line, got none')
    if '' in lines:
        raise ValueError(
            f'{path} must have no empty lines, got one at line '
            f'{lines.index("") + 1}; remove it'
        )
    return lines


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
        encoder: Gives the vectors f: a :class:`~mmext.apis.TextEncoder`, or
            any object with its ``encode`` and ``default_templates``.
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
    # K x T texts; those of one phrase follow each other.
    texts = [
        template.replace('{}', phrase)
        for phrase in phrases
        for template in templates
    ]
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
    """The two rows of ``(K, D)`` with the largest cosine, and the cosine."""
    count = len(embeddings)
    if count < 2:
        return None
    cosines = embeddings @ embeddings.T
    cosines.fill_diagonal_(-2.0)
    first, second = divmod(int(cosines.argmax()), count)
    return first, second, float(cosines[first, second])


def check_embeddings_path(path: str | Path, *, force: bool = False) -> Path:
    """Check that class embeddings can be written to a path, beforehand."""
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            f'path must end in {", ".join(_SUFFIXES)}, got {path}'
        )
    if path.is_dir():
        raise IsADirectoryError(f'path must be a file, got directory {path}')
    if path.exists() and not (force or is_stream(path)):
        raise FileExistsError(
            f'path must not exist, got {path}; name another file, or replace '
            'it with --force'
        )
    return path


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
            # Its metadata are strings; all else becomes JSON.
            texts = {
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in names.items()
            }
            save_file({'class_embeddings': rows}, temporary, texts)
    return path
