"""Class embeddings: one vector per class, from a file or from memory.

Shape letters: K classes, D dimensions of the embedding space.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from mmengine.logging import print_log
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import normalize

from ...utils.safe_load import load_torch

_KEY = 'class_embeddings'
_CLASSES = 'classes'


@dataclass(frozen=True)
class ClassEmbeddings:
    """Checked class embeddings.

    Attributes:
        vectors: ``(K, D)`` float32 on the CPU, rows of length 1.
        classes: ``K`` names, or None if they are not known.
        source: Where they are from, for messages.
    """

    vectors: Tensor
    classes: tuple[str, ...] | None
    source: str


def check_class_embeddings(
    vectors: Tensor | np.ndarray,
    classes: Sequence[str] | None = None,
    source: str = 'class_embeddings',
) -> ClassEmbeddings:
    """Check class embeddings, and scale them to length 1.

    ``vectors``: ``(K, D)``, floating point, finite, no row of zeros.
    """
    if isinstance(vectors, np.ndarray):
        if vectors.dtype.kind != 'f':
            raise TypeError(
                f'{source} must be floating point, got {vectors.dtype}; '
                'convert the array'
            )
        # A dtype that torch may not have, such as float128.
        vectors = torch.from_numpy(vectors.astype(np.float64))
    if not isinstance(vectors, Tensor):
        raise TypeError(
            f'{source} must be a tensor or an array, got '
            f'{type(vectors).__name__}'
        )
    if not vectors.is_floating_point():
        raise TypeError(
            f'{source} must be floating point, got {vectors.dtype}; convert '
            'the tensor'
        )
    if vectors.dim() != 2 or vectors.numel() == 0:
        raise ValueError(
            f'{source} must have shape (classes, dimensions), got '
            f'{tuple(vectors.shape)}; give one row per class'
        )
    vectors = vectors.detach().to('cpu', torch.float64)
    names = _check_classes(classes, len(vectors), source)
    for bad, what in (
        (~vectors.isfinite().all(1), 'finite, got NaN or inf'),
        ((vectors == 0).all(1), 'vectors that are not zero, got zeros'),
    ):
        if bad.any():
            rows = bad.nonzero()[:, 0].tolist()
            shown = [f'{i} ({names[i]})' if names else str(i) for i in rows]
            more = ', ...' if len(shown) > 5 else ''
            raise ValueError(
                f'{source} must be {what} in row {", ".join(shown[:5])}{more};'
                ' make the embeddings again'
            )
    # By the largest entry first: the square of a tiny one would be zero.
    vectors = vectors / vectors.abs().amax(1, keepdim=True)
    return ClassEmbeddings(normalize(vectors, dim=1).float(), names, source)


def _check_classes(
    classes: Any, count: int, source: str
) -> tuple[str, ...] | None:
    """Names, one per row, all different."""
    if classes is None:
        return None
    is_list = isinstance(classes, Sequence) and not isinstance(classes, str)
    if not is_list or not all(isinstance(name, str) for name in classes):
        raise TypeError(
            f'{source}: {_CLASSES} must be a list of names, got {classes!r}'
        )
    names = tuple(classes)
    if len(names) != count:
        raise ValueError(
            f'{source}: {_CLASSES} must hold one name per row ({count}), got '
            f'{len(names)}'
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f'{source}: {_CLASSES} must be different from each other, got '
            f'twice: {", ".join(twice)}'
        )
    return names


def read_class_embeddings(path: str | Path) -> ClassEmbeddings:
    """Read class embeddings from a file."""
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(
            f'class_embeddings must be a file that ends in '
            f'{", ".join(sorted(_READERS))}, got {str(path)!r}'
        )
    if not path.is_file():
        raise FileNotFoundError(
            f'class_embeddings must be an existing file, got {str(path)!r}; '
            'make it with tools/make_class_embeddings.py or correct the path. '
            'To only use a checkpoint, which holds the embeddings of its '
            'training, set model.query_head.class_embeddings=None and '
            'class_embed_dims to their dimensions'
        )
    try:
        vectors, classes = reader(path)
    # np.load raises the last two, for files that are cut off.
    except (
        OSError,
        ValueError,
        SafetensorError,
        EOFError,
        BadZipFile,
    ) as error:
        what = ' '.join(str(error).split())
        raise ValueError(
            f'class_embeddings could not be read from {str(path)!r} '
            f'({type(error).__name__}: {what[:300]})'
        ) from error
    return check_class_embeddings(vectors, classes, str(path))


def _read_pt(path: Path) -> tuple[Any, Any]:
    content = load_torch(path, trust=False, map_location='cpu')
    if isinstance(content, dict):
        _check_key(content)
        return content[_KEY], content.get(_CLASSES)
    return content, None


def _read_safetensors(path: Path) -> tuple[Tensor, Any]:
    with safe_open(path, framework='pt') as file:
        _check_key(file.keys())
        classes = (file.metadata() or {}).get(_CLASSES)
        vectors = file.get_tensor(_KEY)
    return vectors, None if classes is None else json.loads(classes)


def _check_key(content: Collection[str]) -> None:
    if _KEY not in content:
        shown = ', '.join(map(repr, list(content)[:5])) or 'nothing'
        raise ValueError(f'it must hold {_KEY!r}, got {shown}')


_READERS: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    '.npy': lambda path: (np.load(path, allow_pickle=False), None),
    '.pt': _read_pt,
    '.pth': _read_pt,
    '.safetensors': _read_safetensors,
}


def training_dims(
    given: ClassEmbeddings | None,
    num_classes: int,
    dims: int | None,
    default: int,
) -> int:
    """Check the embeddings of the training, and return ``D``.

    ``given``: ``(K, D)`` from a file, or None to learn them.
    """
    if dims is not None and dims < 1:
        raise ValueError(f'class_embed_dims must be at least 1, got {dims}')
    if given is None:
        return dims or default
    count, given_dims = given.vectors.shape
    if count != num_classes:
        raise ValueError(
            f'class_embeddings must have num_classes={num_classes} rows, got '
            f'{count} in {given.source}; set model.num_classes, or make the '
            'file from the classes of the training data'
        )
    if dims not in (None, given_dims):
        raise ValueError(
            f'class_embed_dims must be {given_dims}, the dimensions of '
            f'{given.source}, got {dims}; leave it out'
        )
    return given_dims


def given_embeddings(
    embeddings: Tensor | np.ndarray | str | Path,
    classes: Sequence[str] | None,
    dims: int,
) -> ClassEmbeddings:
    """Embeddings of any number of classes, from a file or from memory.

    ``embeddings``: ``(K, D)``, or the file that holds them.
    """
    if isinstance(embeddings, str | Path):
        given = read_class_embeddings(embeddings)
        if classes is not None:
            given = check_class_embeddings(
                given.vectors, classes, given.source
            )
    else:
        given = check_class_embeddings(embeddings, classes)
    given_dims = given.vectors.shape[1]
    if given_dims != dims:
        raise ValueError(
            f'class_embeddings must have {dims} dimensions, as in the '
            f'training, got {given_dims} in {given.source}; make them with'
            ' the same text encoder'
        )
    return given


def keep_given(
    state_dict: dict[str, Tensor], key: str, given: ClassEmbeddings
) -> None:
    """Use the embeddings of a file instead of those of a checkpoint.

    If they differ, a log line says so.
    """
    saved, own = state_dict.get(key), given.vectors
    if saved is not None and (
        saved.shape != own.shape
        or not torch.allclose(saved.cpu().float(), own, atol=1e-6)
    ):
        print_log(
            f'{key}: the config names {given.source}, whose embeddings '
            f'{tuple(own.shape)} are used; those of the checkpoint '
            f'{tuple(saved.shape)} are ignored',
            logger='current',
        )
    state_dict[key] = own
