"""Write what a model found: pictures, videos, label maps and a JSON file."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from pycocotools import mask as coco_mask
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import nn

from ..models import MAE
from ..utils.draw import (
    class_palette,
    draw_instances,
    side_by_side,
    tile_sheet,
    write_picture,
)
from ..utils.files import atomic_path
from .ground_truth import GroundTruth
from .infer import (
    Detections,
    Prediction,
    Segmentation,
    UnreadableImageError,
    infer_images,
    is_video,
    output_paths,
)
from .label_maps import (
    draw_segmentation,
    draw_segmented_frame,
    segmentation_to_dict,
)
from .reconstruct import reconstruct_images
from .videos import Video, write_video


def draw_detections(
    detections: Detections,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
    side: int | None = None,
) -> np.ndarray:
    """Draw detections; ``side`` bounds the longer side, in pixels."""
    size = {} if side is None else {'side': side, 'shrink': True}
    return draw_instances(
        detections.image,
        detections.boxes,
        detections.labels,
        classes=classes,
        scores=detections.scores,
        masks=detections.masks,
        palette=class_palette(len(classes), palette),
        **size,
    )


def _encode_mask(mask: np.ndarray) -> dict:
    code = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {'size': code['size'], 'counts': code['counts'].decode('ascii')}


def detections_to_dict(
    detections: Detections,
    classes: Sequence[str],
    *,
    picture: str | None = None,
) -> dict:
    """Put the detections of an image into plain lists.

    * ``image``, ``picture``: the image file and the drawn one, or None;
    * ``width``, ``height``: of the image in pixels;
    * ``boxes``: x1 y1 x2 y2 in pixels of the image, to 1/1000;
    * ``scores``: in [0, 1], to six digits, highest first;
    * ``labels``, ``names``: indices of the class names, and these;
    * ``masks``: COCO run lengths, only from models that give masks.
    """
    height, width = detections.image.shape[:2]
    result = {
        'image': str(detections.path),
        'picture': picture,
        'width': width,
        'height': height,
        'boxes': [
            [round(float(value), 3) for value in box]
            for box in detections.boxes
        ],
        'scores': [round(float(score), 6) for score in detections.scores],
        'labels': [int(label) for label in detections.labels],
        'names': [classes[label] for label in detections.labels],
    }
    if detections.masks is not None:
        result['masks'] = [_encode_mask(mask) for mask in detections.masks]
    return result


def write_predictions(
    path: str | Path,
    images: Iterable[dict],
    *,
    classes: Sequence[str],
    score_thr: float,
    failed: Iterable[dict] = (),
    videos: Sequence[dict] = (),
) -> None:
    """Write predictions as JSON, whole or not at all.

    The file holds one object: ``classes``, ``score_thr``, ``images`` (see
    :func:`detections_to_dict`) and ``failed``, a list of ``image`` and
    ``reason``. Of a segmentor each of ``images`` has ``shares`` of the pixels,
    in the order of the classes, and ``label_map``, the file. If there are
    ``videos``, each has ``video``, ``picture`` (the drawn one), ``width``,
    ``height``, ``fps`` and ``frames``: what was found in each.
    """
    content = {
        'classes': list(classes),
        'score_thr': score_thr,
        'images': list(images),
        'failed': list(failed),
    }
    if videos:
        content['videos'] = list(videos)
    with atomic_path(path) as temporary:
        temporary.write_text(
            json.dumps(content, ensure_ascii=False, allow_nan=False) + '\n',
            encoding='utf-8',
        )


def draw_comparison(
    detections: Detections,
    truth: GroundTruth,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
    side: int | None = None,
) -> np.ndarray:
    """Draw ground truth on the left and predictions on the right."""
    if truth.path != detections.path:
        raise ValueError(
            'truth must be of the same image as detections, got '
            f'{truth.path} and {detections.path}'
        )
    size = {} if side is None else {'side': side, 'shrink': True}
    masks = None
    if detections.masks is not None:
        masks = truth.masks(*detections.image.shape[:2])
    left = draw_instances(
        detections.image,
        truth.boxes,
        truth.labels,
        masks=masks,
        classes=truth.classes,
        palette=class_palette(len(truth.classes), palette),
        **size,
    )
    right = draw_detections(detections, classes, palette=palette, side=side)
    titles = [
        f'{detections.path.name}, ground truth: {len(truth.boxes)}',
        f'prediction: {len(detections.boxes)}',
    ]
    return side_by_side([left, right], titles)


T = TypeVar('T')


def track(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """Pass items on, and show how many are done and how long it will take."""
    bar = Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn('left'),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(text, total=total)
        for item in items:
            yield item
            bar.advance(task)
        # Items that were left out on the way are done, too.
        bar.update(task, completed=total)


_TILE_SIDE = 320
# Keys that all frames of a video share.
_OF_IMAGE = ('image', 'picture', 'width', 'height')


@dataclass(frozen=True)
class InferReport:
    """What :func:`infer_to_folder` left behind.

    Args:
        pictures: The drawn pictures.
        num_objects: How many objects were found in all images; None from a
            model that finds none.
        json_path: The predictions.
        sheet: The contact sheet, if one was asked for.
        failed: Path and reason for each image that could not be read.
        videos: The drawn videos.
    """

    pictures: tuple[Path, ...]
    num_objects: int | None
    json_path: Path
    sheet: Path | None
    failed: tuple[tuple[Path, str], ...]
    videos: tuple[Path, ...] = ()


class Outputs(NamedTuple):
    """Where everything goes."""

    pictures: dict[Path, Path]
    json: Path
    sheet: Path | None


def choose_outputs(
    images: Sequence[Path],
    out_dir: str | Path,
    json_path: str | Path | None,
    sheet: bool,
) -> Outputs:
    """Decide on all file names, and refuse to write over an image."""
    out_dir = Path(out_dir)
    outputs = Outputs(
        pictures=dict(zip(images, output_paths(images, out_dir))),
        json=Path(json_path or out_dir / 'predictions.json'),
        sheet=out_dir / 'contact_sheet.png' if sheet else None,
    )
    inputs = {image.resolve() for image in images}
    for path in filter(None, (outputs.json, outputs.sheet)):
        if path.resolve() in inputs:
            raise ValueError(
                f'out must not be one of the images, got {path}; choose '
                'another folder or file'
            )
    return outputs


def refuse_videos(model: nn.Module, images: Sequence[Path]) -> None:
    """Raise ValueError if one of the files is a video."""
    for path in filter(is_video, images):
        raise ValueError(
            f'a {type(model).__name__} predicts images only, got the video '
            f'{path}; videos are for detectors and segmentors'
        )


def _map_paths(outputs: Outputs, out_dir: str | Path) -> dict[Path, Path]:
    """Files for the label maps, all different and none of the images."""
    paths = {}
    for image, picture in outputs.pictures.items():
        name = picture.relative_to(out_dir)
        if name.suffix.lower() != '.png':
            name = name.with_name(f'{name.name}.png')
        paths[image] = Path(out_dir, 'label_maps', name)
    taken = {image.resolve() for image in paths}
    for image, path in paths.items():
        if path.resolve() in taken:
            raise ValueError(
                f'the label map of {image} would be written over {path}, '
                'which is an image or the label map of one; name the images '
                'in two calls, or choose another folder'
            )
        taken.add(path.resolve())
    return paths


def _draw(
    model: nn.Module,
    found: Prediction,
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
    if isinstance(found, Segmentation):
        label_map = None if truth is None else truth.label_map
        return draw_segmentation(found, names, truth=label_map, **look)
    if truth is not None:
        return draw_comparison(found, truth, names, **look)
    picture = draw_detections(found, names, **look)
    if not tile:
        return picture
    return side_by_side([picture], [f'{found.path.name}: {len(found.boxes)}'])


def _draw_frame(model: nn.Module, found: Prediction) -> np.ndarray:
    """A frame of a video, in its size."""
    names = model.dataset_meta['classes']
    palette = model.dataset_meta.get('palette')
    if isinstance(found, Segmentation):
        return draw_segmented_frame(found, names, palette=palette)
    side = max(found.image.shape[:2])
    return draw_detections(found, names, palette=palette, side=side)


def _row(
    found: Prediction, names: Sequence[str], picture: Path | None
) -> dict:
    """What was found in an image, as plain lists."""
    picture = picture and str(picture)
    if isinstance(found, Detections):
        return detections_to_dict(found, names, picture=picture)
    height, width = found.image.shape[:2]
    return {
        'image': str(found.path),
        'picture': picture,
        'width': width,
        'height': height,
        **segmentation_to_dict(found, names),
    }


def _infer_video(
    model: nn.Module, path: Path, target: Path, options: dict
) -> dict:
    """Predict and draw all frames of a video; its row."""
    video = Video(path)
    frames = []
    results = infer_images(model, video, **options)
    with write_video(target, video.fps) as write:
        for found in track(results, video.num_frames, path.name):
            write(_draw_frame(model, found))
            row = _row(found, model.dataset_meta['classes'], None)
            frames.append({k: row[k] for k in row if k not in _OF_IMAGE})
    size = {key: row[key] for key in ('width', 'height')}
    places = {'video': str(path), 'picture': str(target)}
    return {**places, **size, 'fps': video.fps, 'frames': frames}


def _num_columns(tiles: Sequence[np.ndarray]) -> int:
    """Columns that make the sheet about as wide as high."""
    height, width = tiles[0].shape[:2]
    return max(1, round(math.sqrt(len(tiles) * height / width)))


def _reconstruct(
    model: MAE, images: Sequence[Path], outputs: Outputs, batch_size: int
) -> InferReport:
    """Pictures and losses of a masked autoencoder, as infer_to_folder."""
    failed: list[tuple[Path, str]] = []
    rows: list[dict] = []
    results = reconstruct_images(
        model,
        images,
        batch_size=batch_size,
        on_unreadable=lambda path, error: failed.append((path, str(error))),
    )
    for result in track(results, len(images), 'images'):
        target = outputs.pictures[result.path]
        write_picture(target, result.picture)
        rows.append(
            {
                'image': str(result.path),
                'picture': str(target),
                'loss': result.loss,
            }
        )
    write_predictions(
        outputs.json,
        rows,
        classes=(),
        score_thr=0,
        failed=[{'image': str(p), 'reason': why} for p, why in failed],
    )
    return InferReport(
        pictures=tuple(Path(row['picture']) for row in rows),
        num_objects=None,
        json_path=outputs.json,
        sheet=None,
        failed=tuple(failed),
    )


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
    """Detect objects or segment images, draw that and write it down.

    Every file appears whole or not at all and takes the place of an older
    one. An image that cannot be read is reported at the end, the others are
    finished.

    A video becomes one of the same size and frame rate, without sound. Of a
    segmentor, the label map of each image, a ``.png`` of indices of the
    classes, goes into the folder ``label_maps`` in ``out_dir``; frames of
    videos have none.

    Of an :class:`mmext.MAE` the pictures show the image, masked, and
    reconstructed, and the file has the ``loss`` of each.

    Args:
        model: From :func:`~mmext.apis.load_detector`.
        images: Existing files, images and videos, no two the same.
        out_dir: The folder the pictures go to, named as
            :func:`~mmext.apis.infer.output_paths` says. Made if missing.
        json_path: Where the predictions go (see
            :func:`~mmext.apis.prediction_files.write_predictions`); by default
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
    outputs = choose_outputs(images, out_dir, json_path, sheet)
    if isinstance(model, MAE):
        if sheet or truths:
            raise ValueError(
                'sheet and truths must not be given for a masked '
                'autoencoder, which has no annotations; name the images'
            )
        refuse_videos(model, images)
        return _reconstruct(model, images, outputs, batch_size)
    names = model.dataset_meta['classes']
    truth_of = {truth.path: truth for truth in truths}
    failed: list[tuple[Path, str]] = []
    rows: list[dict] = []
    tiles: list[np.ndarray] = []
    maps: dict[Path, Path] = {}
    options = {'score_thr': score_thr, 'batch_size': batch_size}
    stills = [path for path in images if not is_video(path)]
    results = infer_images(
        model,
        stills,
        on_unreadable=lambda path, error: failed.append((path, str(error))),
        **options,
    )
    for found in track(results, len(stills), 'images'):
        truth = truth_of.get(found.path)
        target = outputs.pictures[found.path]
        row = _row(found, names, target)
        if isinstance(found, Segmentation):
            maps = maps or _map_paths(outputs, out_dir)
            row['label_map'] = str(maps[found.path])
            write_picture(maps[found.path], found.label_map)
        write_picture(target, _draw(model, found, truth))
        rows.append(row)
        if sheet:
            tiles.append(_draw(model, found, truth, tile=True))
    if tiles:
        whole = tile_sheet(tiles, columns=_num_columns(tiles))
        write_picture(outputs.sheet, whole)
    videos: list[dict] = []
    for path in filter(is_video, images):
        try:
            target = outputs.pictures[path]
            videos.append(_infer_video(model, path, target, options))
        except UnreadableImageError as error:
            failed.append((path, str(error)))
    write_predictions(
        outputs.json,
        rows,
        classes=names,
        score_thr=score_thr,
        failed=[{'image': str(p), 'reason': why} for p, why in failed],
        videos=videos,
    )
    all_rows = [*rows, *(row for video in videos for row in video['frames'])]
    segmented = any('shares' in row for row in all_rows)
    return InferReport(
        pictures=tuple(Path(row['picture']) for row in rows),
        num_objects=None
        if segmented
        else sum(len(row['labels']) for row in all_rows),
        json_path=outputs.json,
        sheet=outputs.sheet if tiles else None,
        failed=tuple(failed),
        videos=tuple(Path(row['picture']) for row in videos),
    )
