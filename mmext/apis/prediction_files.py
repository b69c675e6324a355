"""Write what a model found: pictures, videos, label maps and a JSON file."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from mmengine.logging import print_log
from pycocotools import mask as coco_mask
from torch import nn

from ..models import MAE, MultiTaskModel
from ..utils.cli import progress_bar
from ..utils.draw import side_by_side, tile_sheet, write_picture
from ..utils.files import atomic_path, open_regular
from ..utils.printing import printable_json, printable_name
from .drawing import GroundTruth, draw_frame, draw_prediction
from .infer import (
    Detections,
    Prediction,
    Reconstruction,
    Segmentation,
    TaskPredictions,
    UnreadableImageError,
    infer_images,
    is_video,
    output_paths,
)


class Video:
    """A video file; iterating over it gives its frames, once.

    OpenCV decodes it. Sound is not read.

    Attributes:
        path: The file.
        fps: Frames per second.
        num_frames: What the file says about its number of frames, which some
            formats only estimate.

    Raises:
        UnreadableImageError: If it is no video, or has no frame rate.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            # OpenCV would wait for the writer of a named pipe.
            open_regular(path).close()
        except OSError as error:
            text = f'video must be a file that can be read: {error}'
            raise UnreadableImageError(text) from error
        self._capture = cv2.VideoCapture(str(path))
        if not self._capture.isOpened():
            raise UnreadableImageError(
                f'video must be a whole file that OpenCV can read, got {path}'
                '; repair it or convert it to .mp4'
            )
        self.fps = self._capture.get(cv2.CAP_PROP_FPS)
        count = self._capture.get(cv2.CAP_PROP_FRAME_COUNT)
        self.num_frames = max(int(count), 0)
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise UnreadableImageError(
                f'video must have a frame rate, got {self.fps} from {path}; '
                'convert it to .mp4'
            )

    def __iter__(self) -> Iterator[np.ndarray]:
        """Frames, ``(H, W, 3)``, uint8, blue green red.

        UnreadableImageError if there is none. A log line says if there are
        fewer than the file says.
        """
        number = 0
        try:
            while (frame := self._capture.read()[1]) is not None:
                number += 1
                yield frame
        finally:
            self._capture.release()
        if not number:
            raise UnreadableImageError(
                f'video must have frames that OpenCV can decode, got '
                f'{self.path}; repair it or convert it to .mp4'
            )
        if number < self.num_frames:
            print_log(
                f'{self.path} ends after {number} frames; by its header there '
                f'are {self.num_frames}: it may be cut off',
                logger='current',
                level=logging.WARNING,
            )


@contextmanager
def write_video(
    path: str | Path, fps: float
) -> Iterator[Callable[[np.ndarray], None]]:
    """Give a function that appends a frame to a video, VP9 in MP4.

    Browsers play it. The file appears when the block succeeds, and takes the
    place of an older one; when it raises, there is none. Frames are ``(H, W,
    3)``, uint8, red green blue, of one size. As OpenCV writes even sizes
    only, the last row or column of an odd one is there twice.
    """
    count = 0
    with atomic_path(path) as temporary:
        writer = cv2.VideoWriter()

        def write(frame: np.ndarray) -> None:
            nonlocal count
            height, width = frame.shape[:2]
            frame = np.pad(
                frame[..., ::-1],
                ((0, height % 2), (0, width % 2), (0, 0)),
                mode='edge',
            )
            size = frame.shape[1::-1]
            code = cv2.VideoWriter_fourcc(*'vp09')
            if not count and not writer.open(str(temporary), code, fps, size):
                raise OSError(
                    f'{path} cannot be written: OpenCV cannot make a VP9 '
                    f'video of {size[0]} x {size[1]} pixels and {fps:g} '
                    'frames per second there; the wheels of opencv-python '
                    'have that encoder'
                )
            writer.write(frame)
            count += 1

        try:
            yield write
        finally:
            writer.release()
        # The writer says nothing of a full disk.
        check = cv2.VideoCapture(str(temporary))
        written = int(check.get(cv2.CAP_PROP_FRAME_COUNT))
        check.release()
        if written != count:
            raise OSError(
                f'{path} cannot be written: {written} of {count} frames are '
                'in the file; is the disk full?'
            )


_TILE_SIDE = 320
# Keys that all frames of a video share.
_OF_IMAGE = ('image', 'picture', 'width', 'height')
T = TypeVar('T')


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


def track(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """Pass items on, and show how many are done and how long it will take."""
    with progress_bar() as bar:
        task = bar.add_task(printable_name(text), total=total)
        yield from bar.track(items, total, task_id=task)
        # Items that were left out on the way are done, too.
        bar.update(task, completed=total)


def prediction_to_dict(
    prediction: Prediction, picture: Path | None = None
) -> dict[str, Any]:
    """Put what was predicted for an image into plain lists.

    * ``image``, ``picture``: the image file and the drawn one, or None;
    * ``width``, ``height``: of the image in pixels;
    * ``boxes``: x1 y1 x2 y2 in pixels of the image, to 1/1000;
    * ``scores``: in [0, 1], to six digits, highest first;
    * ``labels``, ``names``: indices of the class names, and these;
    * ``masks``: COCO run lengths, only from models that give masks;
    * ``shares``: of a segmentor, in place of objects: those of the classes in
      the pixels, to six digits, in the order of the classes;
    * ``loss``: of a masked autoencoder, in place of all but ``image`` and
      ``picture``: the mean error of the masked patches. Of a multi-task
      model there are these two only.

    Raises:
        ValueError: If a label of a pixel is not below the number of classes.
    """
    row: dict[str, Any] = {
        'image': str(prediction.path),
        'picture': picture and str(picture),
    }
    if isinstance(prediction, TaskPredictions):
        return row
    if isinstance(prediction, Reconstruction):
        return {**row, 'loss': prediction.loss}
    classes = prediction.classes
    height, width = prediction.image.shape[:2]
    row |= {'width': width, 'height': height}
    if isinstance(prediction, Segmentation):
        labels = prediction.label_map
        counts = np.bincount(labels.ravel(), minlength=len(classes))
        if len(counts) > len(classes):
            raise ValueError(
                f'labels must be in [0, {len(classes)}), the number of class '
                f'names, got {len(counts) - 1}; the checkpoint or the config '
                'has the names of other classes'
            )
        shares = counts / max(labels.size, 1)
        return {**row, 'shares': [round(float(s), 6) for s in shares]}
    row |= {
        'boxes': [
            [round(float(value), 3) for value in box]
            for box in prediction.boxes
        ],
        'scores': [round(float(score), 6) for score in prediction.scores],
        'labels': [int(label) for label in prediction.labels],
        'names': prediction.names,
    }
    if prediction.masks is not None:
        codes = [
            coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
            for mask in prediction.masks
        ]
        row['masks'] = [
            {'size': code['size'], 'counts': code['counts'].decode('ascii')}
            for code in codes
        ]
    return row


def _check_outputs(images: Sequence[Path], outputs: Iterable[Path]) -> None:
    """Raise ValueError if an output is an image, or is written twice."""
    taken = {image.resolve() for image in images}
    for path in outputs:
        if path.resolve() in taken:
            raise ValueError(
                f'{path} would be written over, which is one of the images or '
                'the result of another one; choose another folder or file, or '
                'name the images in two calls'
            )
        taken.add(path.resolve())


def _map_paths(pictures: Mapping[Path, Path], out_dir: Path) -> dict:
    """Files for the label maps."""
    paths = {}
    for image, picture in pictures.items():
        name = picture.relative_to(out_dir)
        if name.suffix.lower() != '.png':
            name = name.with_name(f'{name.name}.png')
        paths[image] = out_dir / 'label_maps' / name
    _check_outputs([*pictures], paths.values())
    return paths


def _infer_video(
    model: nn.Module,
    path: Path,
    target: Path,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Predict and draw all frames of a video; its row."""
    video = Video(path)
    frames = []
    predictions = infer_images(model, video, **options)
    with write_video(target, video.fps) as write:
        for prediction in track(predictions, video.num_frames, path.name):
            write(draw_frame(prediction))
            row = prediction_to_dict(prediction)
            frames.append({k: row[k] for k in row if k not in _OF_IMAGE})
    return {
        'video': str(path),
        'picture': str(target),
        'width': row['width'],
        'height': row['height'],
        'fps': video.fps,
        'frames': frames,
    }


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
    reconstructed, and the file has the ``loss`` of each. Of a
    :class:`mmext.MultiTaskModel` they show all tasks; beside each is a
    ``.npz`` with the arrays of the tasks, and the file has its name
    (``arrays``) and, in place of classes and threshold, ``tasks``.

    Args:
        model: From :func:`~mmext.apis.load_detector`.
        images: Existing files, images and videos, no two the same; or those
            of :func:`~mmext.apis.read_task_samples`.
        out_dir: The folder the pictures go to, named as
            :func:`~mmext.apis.infer.output_paths` says. Made if missing.
        json_path: Where the predictions go; by default ``predictions.json``
            in ``out_dir``. It holds one object: ``classes``, ``score_thr``,
            ``images`` (see
            :func:`~mmext.apis.prediction_files.prediction_to_dict`; of a
            segmentor each has ``label_map``, the file, too) and ``failed``,
            a list of ``image`` and ``reason``. If there are ``videos``, each
            has ``video``, ``picture`` (the drawn one), ``width``, ``height``,
            ``fps`` and ``frames``: what was found in each.
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
    paths = [getattr(image, 'path', image) for image in images]
    out_dir = Path(out_dir)
    pictures = dict(zip(paths, output_paths(paths, out_dir)))
    json_path = Path(json_path or out_dir / 'predictions.json')
    outputs = [*pictures.values(), json_path]
    if sheet:
        outputs.append(out_dir / 'contact_sheet.png')
    _check_outputs(paths, outputs)
    reconstructs = isinstance(model, MAE)
    if reconstructs and (sheet or truths):
        raise ValueError(
            'sheet and truths must not be given for a masked autoencoder, '
            'which has no annotations; name the images'
        )
    videos = [*filter(is_video, paths)]
    if videos and isinstance(model, MAE | MultiTaskModel):
        raise ValueError(
            f'a {type(model).__name__} predicts images only, got the video '
            f'{videos[0]}; videos are for detectors and segmentors'
        )
    truth_of = {truth.path: truth for truth in truths}
    failed: list[tuple[Path, str]] = []
    rows: list[dict] = []
    tiles: list[np.ndarray] = []
    maps: dict[Path, Path] = {}
    options = {'score_thr': score_thr, 'batch_size': batch_size}
    stills = [i for i, path in zip(images, paths) if not is_video(path)]
    predictions = infer_images(
        model,
        stills,
        on_unreadable=lambda path, error: failed.append((path, str(error))),
        **options,
    )
    for prediction in track(predictions, len(stills), 'images'):
        path = prediction.path
        truth, target = truth_of.get(path), pictures[path]
        row = prediction_to_dict(prediction, target)
        if isinstance(prediction, Segmentation):
            maps = maps or _map_paths(pictures, out_dir)
            row['label_map'] = str(maps[path])
            write_picture(maps[path], prediction.label_map)
        if isinstance(prediction, TaskPredictions):
            arrays = target.with_suffix('.npz')
            row['arrays'] = str(arrays)
            with atomic_path(arrays) as temporary, temporary.open('wb') as out:
                np.savez_compressed(out, **prediction.arrays)
        write_picture(target, draw_prediction(prediction, truth=truth))
        rows.append(row)
        if sheet:
            tile = draw_prediction(prediction, truth=truth, side=_TILE_SIDE)
            if truth is None and isinstance(prediction, Detections):
                title = f'{path.name}: {len(prediction.boxes)}'
                tile = side_by_side([tile], [title])
            tiles.append(tile)
    if tiles:
        # About as wide as high.
        height, width = tiles[0].shape[:2]
        columns = max(1, round(math.sqrt(len(tiles) * height / width)))
        write_picture(outputs[-1], tile_sheet(tiles, columns=columns))
    films: list[dict] = []
    for path in videos:
        try:
            films.append(_infer_video(model, path, pictures[path], options))
        except UnreadableImageError as error:
            failed.append((path, str(error)))
    if isinstance(model, MultiTaskModel):
        head = {'tasks': list(model.tasks)}
    else:
        classes = list(model.dataset_meta['classes'])
        thr = 0 if reconstructs else score_thr
        head = {'classes': classes, 'score_thr': thr}
    content = {
        **head,
        'images': rows,
        'failed': [{'image': str(p), 'reason': why} for p, why in failed],
    }
    if films:
        content['videos'] = films
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    text = printable_json(text)
    with atomic_path(json_path) as temporary:
        temporary.write_text(text + '\n', encoding='utf-8')
    all_rows = [*rows, *(row for film in films for row in film['frames'])]
    has_objects = not isinstance(model, MAE | MultiTaskModel) and all(
        'labels' in row for row in all_rows
    )
    return InferReport(
        pictures=tuple(Path(row['picture']) for row in rows),
        num_objects=sum(len(row['labels']) for row in all_rows)
        if has_objects
        else None,
        json_path=json_path,
        sheet=outputs[-1] if tiles else None,
        failed=tuple(failed),
        videos=tuple(Path(row['picture']) for row in films),
    )
