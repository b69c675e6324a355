"""Run a detector on images and leave pictures and a JSON file behind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

from .draw import write_picture
from .images import output_paths
from .infer import Detections, infer_images
from .predictions import (
    detections_to_dict,
    draw_detections,
    write_predictions,
)
from .progress import track
from .samples import GroundTruth, draw_comparison
from .sheets import side_by_side, tile_sheet

__all__ = ['InferReport', 'infer_to_folder']

_TILE_SIDE = 320


@dataclass(frozen=True)
class InferReport:
    """What :func:`infer_to_folder` left behind.

    Args:
        pictures: The drawn pictures.
        num_objects: How many objects were found in all images.
        json_path: The predictions.
        sheet: The contact sheet, if one was asked for.
        failed: Path and reason for each image that could not be read.
    """

    pictures: tuple[Path, ...]
    num_objects: int
    json_path: Path
    sheet: Path | None
    failed: tuple[tuple[Path, str], ...]


class _Places(NamedTuple):
    """Where everything goes."""

    pictures: dict[Path, Path]
    json: Path
    sheet: Path | None


def _choose_places(
    images: Sequence[Path],
    out_dir: str | Path,
    json_path: str | Path | None,
    sheet: bool,
) -> _Places:
    """Decide on all file names, and refuse to write over an image."""
    out_dir = Path(out_dir)
    places = _Places(
        pictures=dict(zip(images, output_paths(images, out_dir))),
        json=Path(json_path or out_dir / 'predictions.json'),
        sheet=out_dir / 'contact_sheet.png' if sheet else None,
    )
    inputs = {image.resolve() for image in images}
    for path in filter(None, (places.json, places.sheet)):
        if path.resolve() in inputs:
            raise ValueError(
                f'out must not be one of the images, got {path}; choose '
                'another folder or file'
            )
    return places


def _draw(
    model: nn.Module,
    found: Detections,
    truth: GroundTruth | None,
    *,
    tile: bool = False,
) -> np.ndarray:
    """The picture of an image, or its cell in the contact sheet."""
    names = model.dataset_meta['classes']
    look = {
        'palette': model.dataset_meta.get('palette'),
        'side': _TILE_SIDE if tile else None,
    }
    if truth is not None:
        return draw_comparison(found, truth, names, **look)
    picture = draw_detections(found, names, **look)
    if not tile:
        return picture
    return side_by_side([picture], [f'{found.path.name}: {len(found.boxes)}'])


def _num_columns(tiles: Sequence[np.ndarray]) -> int:
    """Columns that make the sheet about as wide as high."""
    height, width = tiles[0].shape[:2]
    return max(1, round(math.sqrt(len(tiles) * height / width)))


def infer_to_folder(
    model: nn.Module,
    images: Sequence[Path],
    out_dir: str | Path,
    *,
    json_path: str | Path | None = None,
    score_thr: float = 0.3,
    batch_size: int = 1,
    truths: Sequence[GroundTruth] = (),
    sheet: bool = False,
) -> InferReport:
    """Detect objects, draw them and write them down.

    Every file appears whole or not at all and takes the place of an older
    one. An image that cannot be read is reported at the end, the others are
    finished.

    Args:
        model: From :func:`~mmext.apis.load_detector`.
        images: Existing files, no two the same.
        out_dir: The folder the pictures go to, named as
            :func:`~mmext.apis.images.output_paths` says. Made if missing.
        json_path: Where the predictions go (see
            :func:`~mmext.apis.predictions.write_predictions`); by default
            ``predictions.json`` in ``out_dir``.
        score_thr: Objects of a lower score are left out, in [0, 1].
        batch_size: How many images go through the model at once.
        truths: Annotations of some of the images. Their pictures show the
            ground truth on the left and the predictions on the right.
        sheet: Whether all pictures are also put, small, on one
            ``contact_sheet.png`` in ``out_dir``.

    Returns:
        What was written.

    Raises:
        ValueError: If a file to be written is one of the images, or for the
            reasons of :func:`~mmext.apis.infer_images`.
    """
    places = _choose_places(images, out_dir, json_path, sheet)
    names = model.dataset_meta['classes']
    truth_of = {truth.path: truth for truth in truths}
    failed: list[tuple[Path, str]] = []
    rows: list[dict] = []
    tiles: list[np.ndarray] = []
    results = infer_images(
        model,
        images,
        score_thr=score_thr,
        batch_size=batch_size,
        on_unreadable=lambda path, error: failed.append((path, str(error))),
    )
    for found in track(results, len(images), 'images'):
        truth = truth_of.get(found.path)
        target = places.pictures[found.path]
        write_picture(target, _draw(model, found, truth))
        rows.append(detections_to_dict(found, names, picture=str(target)))
        if sheet:
            tiles.append(_draw(model, found, truth, tile=True))
    if tiles:
        whole = tile_sheet(tiles, columns=_num_columns(tiles))
        write_picture(places.sheet, whole)
    write_predictions(
        places.json,
        rows,
        classes=names,
        score_thr=score_thr,
        failed=[{'image': str(p), 'reason': why} for p, why in failed],
    )
    return InferReport(
        pictures=tuple(Path(row['picture']) for row in rows),
        num_objects=sum(len(row['labels']) for row in rows),
        json_path=places.json,
        sheet=places.sheet if tiles else None,
        failed=tuple(failed),
    )
