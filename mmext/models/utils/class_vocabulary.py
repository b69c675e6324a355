"""What class embeddings must be for a head, and which of two count.

Shape letters: K classes, D dimensions of the embedding space.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from .class_embeddings import (
    ClassEmbeddings,
    check_class_embeddings,
    read_class_embeddings,
)

__all__ = ['given_embeddings', 'keep_given', 'training_dims']


def training_dims(
    given: ClassEmbeddings | None,
    num_classes: int,
    dims: int | None,
    default: int,
) -> int:
    """``D`` of a head, and a look at the embeddings of its training.

    Args:
        given: ``(K, D)`` from a file, or None to learn them.
        num_classes: ``K`` of the head.
        dims: ``D`` as the config has it, or None.
        default: ``D`` if nobody says.

    Returns:
        ``D``.

    Raises:
        ValueError: If the file has another number of classes or dimensions,
            or ``dims`` is less than 1.

    Examples:
        >>> training_dims(None, 3, None, 512)
        512
    """
    if dims is not None and dims < 1:
        raise ValueError(f'class_embed_dims must be at least 1, got {dims}')
    if given is None:
        return dims or default
    count, found = given.vectors.shape
    if count != num_classes:
        raise ValueError(
            f'class_embeddings must have num_classes={num_classes} rows, got '
            f'{count} in {given.source}; set model.num_classes, or make the '
            'file from the classes of the training data'
        )
    if dims not in (None, found):
        raise ValueError(
            f'class_embed_dims must be {found}, the dimensions of '
            f'{given.source}, got {dims}; leave it out'
        )
    return found


def given_embeddings(
    embeddings: Tensor | np.ndarray | str | Path,
    classes: Sequence[str] | None,
    dims: int,
) -> ClassEmbeddings:
    """Embeddings of any number of classes, from a file or from memory.

    Args:
        embeddings: ``(K, D)``, or the file that holds them.
        classes: ``K`` names; by default those in the file.
        dims: ``D`` of the head.

    Returns:
        The checked embeddings.

    Raises:
        FileNotFoundError: If there is no such file.
        TypeError: If the embeddings are not floating point.
        ValueError: If they are not ``(K, D)``, finite and without rows of
            zeros, or the names do not fit.
    """
    if isinstance(embeddings, str | Path):
        given = read_class_embeddings(embeddings)
        if classes is not None:
            given = check_class_embeddings(
                given.vectors, classes, given.source
            )
    else:
        given = check_class_embeddings(embeddings, classes)
    found = given.vectors.shape[1]
    if found != dims:
        raise ValueError(
            f'class_embeddings must have {dims} dimensions, as in the '
            f'training, got {found} in {given.source}; make them with the '
            'same text encoder'
        )
    return given


def keep_given(
    state_dict: dict[str, Tensor], key: str, given: ClassEmbeddings
) -> None:
    """Let the embeddings of a file rule over those of a checkpoint.

    Where they differ, a log line says so.

    Args:
        state_dict: Entries of a checkpoint, edited.
        key: The entry of the embeddings, which may be missing.
        given: What the file of the config holds.
    """
    found, own = state_dict.get(key), given.vectors
    if found is not None and (
        found.shape != own.shape
        or not torch.allclose(found.cpu().float(), own, atol=1e-6)
    ):
        print_log(
            f'{key}: the config names {given.source}, whose embeddings '
            f'{tuple(own.shape)} are used; the other ones in the checkpoint '
            f'{tuple(found.shape)} are left out',
            logger='current',
        )
    state_dict[key] = own
