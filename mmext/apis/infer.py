"""Run a detector or a segmentor on image files and on frames of videos."""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import groupby, islice
from pathlib import Path

import cv2
import numpy as np
import torch
from mmcv.transforms import LoadImageFromFile, Resize
from mmdet.structures import DetDataSample
from mmengine.dataset import pseudo_collate
from mmengine.registry import TRANSFORMS, DefaultScope
from mmengine.structures import BaseDataElement, PixelData
from mmseg.structures import SegDataSample
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import nn

from ..datasets import PICTURE_SUFFIXES
from ..datasets.transforms import PackImages
from ..models import MAE, MultiTaskModel
from ..utils.draw import write_picture
from ..utils.files import open_regular
from .detector import inference_pipeline
from .drawing import (
    TaskSample,
    draw_prediction,
    draw_tasks,
    task_arrays,
    without_labels,
)

# What loaders raise for a file that is not a whole image.
_LOAD_ERRORS = (AssertionError, OSError, ValueError, cv2.error)


class UnreadableImageError(ValueError):
    """A file that is no image or only a part of one."""


class Result:
    """What the results of all models have in common.

    Attributes:
        path: The image file.
        classes: Names of the classes.
        palette: Their colours, or None.
    """

    path: Path
    classes: Sequence[str]
    palette: Sequence[Sequence[int]] | str | None

    def plot(self, path: str | Path | None = None) -> Image.Image:
        """Draw it, as ``tools/infer.py`` does.

        Args:
            path: A ``.png`` or ``.jpg`` to write the picture to.

        Returns:
            The picture, red green blue; ``numpy.asarray`` makes an array
            ``(H, W, 3)`` of it.
        """
        picture = draw_prediction(self)
        if path is not None:
            write_picture(path, picture)
        return Image.fromarray(picture)


class Detections(Result, DetDataSample):
    """What a detector found in one image, best first.

    ``pred_instances`` is on the CPU, in pixels of the image, and float32.

    Attributes:
        image: ``(H, W, 3)``, uint8, red green blue, as the pipeline loaded
            it.
        boxes: ``(N, 4)``, float32, x1 y1 x2 y2 in pixels of ``image``.
        scores: ``(N,)``, float32, in [0, 1].
        labels: ``(N,)``, int64, indices of the class names.
        names: The N class names.
        masks: ``(N, H, W)``, bool, from models that segment instances.
    """

    image: np.ndarray

    @property
    def boxes(self) -> np.ndarray:  # noqa: D102
        return self.pred_instances.bboxes.numpy()

    @property
    def scores(self) -> np.ndarray:  # noqa: D102
        return self.pred_instances.scores.numpy()

    @property
    def labels(self) -> np.ndarray:  # noqa: D102
        return self.pred_instances.labels.numpy()

    @property
    def names(self) -> list[str]:  # noqa: D102
        return [self.classes[label] for label in self.labels]

    @property
    def masks(self) -> np.ndarray | None:  # noqa: D102
        masks = self.pred_instances.get('masks')
        return None if masks is None else np.asarray(masks).astype(bool)


class Segmentation(Result, SegDataSample):
    """The class of each pixel of one image.

    ``pred_sem_seg`` is on the CPU. The scores of each pixel, ``seg_logits``
    of the model, are left out, as they take most of the memory.

    Attributes:
        image: ``(H, W, 3)``, uint8, red green blue, as the pipeline loaded
            it.
        label_map: ``(H, W)``, uint8, or uint16 for more than 256 classes:
            indices of the class names.
    """

    image: np.ndarray

    @property
    def label_map(self) -> np.ndarray:  # noqa: D102
        labels = self.pred_sem_seg.data[0].numpy()
        return labels.astype(np.uint8 if labels.max() < 256 else np.uint16)


class Reconstruction(Result, BaseDataElement):
    """What a masked autoencoder made of one image.

    Attributes:
        picture: ``(H, 3 W + 8, 3)``, uint8, red green blue: the image at the
            size of the model, masked, and reconstructed.
        loss: Mean error of the masked patches, as in the training.
    """

    picture: np.ndarray
    loss: float


class TaskPredictions(Result, BaseDataElement):
    """What a multi-task model predicts for one image.

    Attributes:
        picture: ``(H, W, 3)``, uint8, red green blue: the image beside the
            prediction of each task.
        arrays: Task -> prediction: classes ``(H, W)`` integer, depth
            ``(H, W)`` float32, normals ``(H, W, 3)`` float32, other outputs
            as they are.
    """

    picture: np.ndarray
    arrays: dict[str, np.ndarray]


Prediction = Detections | Segmentation | Reconstruction | TaskPredictions
_Image = str | Path | np.ndarray | Image.Image | TaskSample
Images = _Image | Iterable[_Image]
_Input = tuple[TaskSample, np.ndarray | None]


def _scope_of(model: nn.Module) -> AbstractContextManager:
    """The scope in which names without a prefix in the config are found."""
    scope = model.cfg.get('default_scope', 'mmdet')
    return DefaultScope.overwrite_default_scope(scope)


def _as_rgb(image: np.ndarray) -> np.ndarray:
    """A loader's array, BGR or grey, of any type, as RGB uint8."""
    if image.dtype != np.uint8:
        image = image.clip(0, 255).astype(np.uint8)
    if image.ndim == 2 or image.shape[2] == 1:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    return np.ascontiguousarray(image[..., 2::-1])


def prepare_image(
    path: Path, index: int, transforms: Sequence[Callable]
) -> tuple[dict, np.ndarray]:
    """Input of the model for a file, and the image as it was loaded.

    UnreadableImageError if the file is no whole image.
    """
    results = {'img_path': str(path), 'img_id': index}
    shown = None
    for transform in transforms:
        if shown is not None:
            results = transform(results)
            continue
        try:
            # Of a file that breaks off, cv2 fills the rest with grey. Other
            # kinds and sizes only the pipeline's loader may know.
            others = UnidentifiedImageError, Image.DecompressionBombError
            with (
                open_regular(path) as file,
                suppress(*others),
                Image.open(file) as picture,
            ):
                picture.load()
            results = transform(results)
        except _LOAD_ERRORS as error:
            what = ' '.join(f'{type(error).__name__}: {error}'.split())
            raise UnreadableImageError(
                f'image must be a whole image file, got {path} ({what}); '
                'repair or remove it'
            ) from error
        if results is not None and 'img' in results:
            shown = _as_rgb(results['img'])
    if shown is None:
        raise ValueError(
            'pipeline must load an image first, got one that puts no img '
            f'into the results of {path}'
        )
    return results, shown


def _broken(path: Path) -> ValueError:
    return ValueError(
        f'model must predict finite numbers, got NaN or inf for {path}; the '
        'weights are broken, use an earlier checkpoint'
    )


def _to_detections(path: Path, sample: object, score_thr: float) -> Detections:
    """Objects of one data sample, best first, from the threshold up."""
    instances = getattr(sample, 'pred_instances', None)
    if instances is None or 'scores' not in instances:
        raise ValueError(
            'model must predict instances with scores, or pred_sem_seg, got '
            f'{type(sample).__name__} without pred_instances.scores'
        )
    instances = instances.detach().cpu()
    boxes = instances.bboxes
    instances.bboxes = boxes = getattr(boxes, 'tensor', boxes).float()
    instances.scores = scores = instances.scores.float()
    if not (scores.isfinite().all() and boxes.isfinite().all()):
        raise _broken(path)
    order = scores.argsort(descending=True, stable=True)
    kept = instances[order[scores[order] >= score_thr]]
    return Detections(metainfo=sample.metainfo, pred_instances=kept)


def _to_prediction(
    model: nn.Module, item: _Input, sample: object, score_thr: float
) -> Prediction:
    """What is in one data sample, whatever kind of model it is from."""
    job, image = item
    path = job.path
    if isinstance(model, MultiTaskModel):
        arrays = task_arrays(model, sample, path)
        picture = draw_tasks(model, job, sample, arrays)
        return TaskPredictions(picture=picture, arrays=arrays)
    if hasattr(sample, 'pred_loss'):
        images = [
            sample.get(name).permute(1, 2, 0).cpu().numpy()
            for name in ('original', 'masked', 'reconstructed')
        ]
        if images[0].shape[2] == 1:
            images = [image.repeat(3, 2) for image in images]
        gap = np.full((len(images[0]), 4, 3), 255, np.uint8)
        picture = np.concatenate(
            [images[0], gap, images[1], gap, images[2]], 1
        )
        return Reconstruction(picture=picture, loss=float(sample.pred_loss))
    if hasattr(sample, 'pred_instances') or not hasattr(
        sample, 'pred_sem_seg'
    ):
        result = _to_detections(path, sample, score_thr)
    else:
        logits = sample.get('seg_logits')
        # The sum, which needs no memory: the map of a large picture is large.
        if logits is not None and not logits.data.float().sum().isfinite():
            raise _broken(path)
        labels = PixelData(data=sample.pred_sem_seg.data.cpu())
        result = Segmentation(metainfo=sample.metainfo, pred_sem_seg=labels)
    result.image = image
    return result


def infer_images(
    model: nn.Module,
    images: Images,
    *,
    score_thr: float = 0.3,
    batch_size: int = 1,
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None = None,
) -> Iterator[Prediction]:
    """Detect objects in image files, or segment them, one after the other.

    The images are prepared by the test pipeline of the model's config, less
    what loads annotations; for a :class:`mmext.MAE` they are resized to the
    size of the model, and all get the same mask; for a
    :class:`mmext.MultiTaskModel`, a step that ends in a KeyError or
    FileNotFoundError for want of labels is left out, with a warning, or, if it
    loads the image, replaced. Results come in the order of
    ``images``, while the later ones are still to be computed, so any number of
    images fits into memory.

    Args:
        model: From :func:`~mmext.apis.load_detector`.
        images: Image files, or arrays ``(H, W, 3)``, uint8, blue green red,
            as ``cv2.imread`` returns them, or pictures of Pillow, whose
            results have the path ``array_0``, by their place. A single one
            may be given alone, and a folder or a pattern for its images,
            sorted.
        score_thr: Objects of a lower score are left out, in [0, 1]; of no
            effect on other models.
        batch_size: How many images are taken at once. Those of one size go
            through the model together, so that results are those of each
            alone.
        on_unreadable: Called with the path and the error for a file that is
            no image or only a part of one, which is then left out. Without
            it the error is raised.

    Yields:
        What was found in each image: :class:`Detections`, of a segmentor
        :class:`Segmentation`, of a masked autoencoder
        :class:`Reconstruction`, else :class:`TaskPredictions`.

    Raises:
        FileNotFoundError: If a folder holds no image, or does not exist.
        UnreadableImageError: If a file is no whole image, without
            ``on_unreadable``.
        ValueError: If an array has another shape or type, ``score_thr`` or
            ``batch_size`` is out of range, the model is in training mode, or
            it predicts numbers that are not finite, or neither instances nor
            classes of pixels.
    """
    if not 0 <= score_thr <= 1:
        raise ValueError(
            f'threshold or score_thr must be in [0, 1], got {score_thr}'
        )
    if batch_size < 1:
        raise ValueError(f'batch_size must be at least 1, got {batch_size}')
    if model.training:
        raise ValueError(
            'model must be in eval mode, got one in training mode; call '
            'model.eval() first'
        )
    if isinstance(images, np.ndarray | Image.Image):
        images = [images]
    elif isinstance(images, str | Path):
        files = list_images([images])
        images = [file for file in files if not is_video(file)]
        if not images:
            raise ValueError(
                f'images must be pictures, or name one video, got {files}'
            )
    inputs = _read_files(model, images, on_unreadable)
    return _infer(model, inputs, score_thr, batch_size)


def _build(model: nn.Module, pipeline: Sequence[dict]) -> list[Callable]:
    with _scope_of(model):
        return [TRANSFORMS.build(step) for step in pipeline]


def _read_files(
    model: nn.Module,
    images: Iterable,
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None,
) -> Iterator[_Input]:
    of_files: list[Callable] = []
    of_arrays: list[Callable] = []
    for index, item in enumerate(images):
        if isinstance(item, TaskSample):
            yield item, None
            continue
        if isinstance(item, Image.Image):
            # As OpenCV reads the file: turned, and without transparency.
            item = ImageOps.exif_transpose(item)
            if item.mode[0] not in 'IF':
                item = item.convert('RGB')
            item = np.asarray(item)[..., ::-1]
        if isinstance(item, np.ndarray):
            of_arrays = of_arrays or _array_transforms(model)
            path = Path(f'array_{index}')
            if item.dtype != np.uint8 or item.shape[2:] != (3,):
                raise ValueError(
                    'arrays of images must be (H, W, 3), uint8, blue green '
                    f'red, got {item.shape}, {item.dtype} as {path}; several '
                    'are given as a list, and a red green blue one as '
                    'array[..., ::-1]'
                )
            # In memory as OpenCV has them, which refuses views.
            item = np.ascontiguousarray(item)
            results = {'img': item, 'img_id': index}
            for transform in of_arrays:
                results = transform(results)
            yield TaskSample(path, results, False), _as_rgb(item)
            continue
        if not isinstance(item, str | Path):
            raise TypeError(
                'images must be paths, NumPy arrays or pictures of Pillow, '
                f'got {type(item).__name__}'
            )
        path = Path(item)
        of_files = of_files or _file_transforms(model)
        try:
            results, image = prepare_image(path, index, of_files)
        except UnreadableImageError as error:
            if on_unreadable is None:
                raise
            on_unreadable(path, error)
            continue
        yield TaskSample(path, results, False), image


def _file_transforms(model: nn.Module) -> list[Callable]:
    """The test pipeline; a masked autoencoder takes images of its size."""
    if isinstance(model, MultiTaskModel):
        load = {'type': 'LoadImageFromFile', 'to_float32': True}
        load, *steps = _build(model, [load, *inference_pipeline(model.cfg)])
        return [without_labels(step, load) for step in steps]
    if not isinstance(model, MAE):
        return _build(model, inference_pipeline(model.cfg))
    height, width = (
        count * side for count, side in zip(model.grid, model.head.patch_size)
    )
    size = width, height
    return [
        LoadImageFromFile(),
        Resize(size, backend='pillow', interpolation='bicubic'),
        PackImages(),
    ]


def _array_transforms(model: nn.Module) -> list[Callable]:
    """The test pipeline for images that are loaded."""
    if isinstance(model, MAE):
        load = {'type': 'mmdet.LoadImageFromNDArray'}
        return [*_build(model, [load]), *_file_transforms(model)[1:]]
    load, *rest = inference_pipeline(model.cfg)
    if not str(load['type']).endswith('LoadImageFromFile'):
        raise ValueError(
            'of arrays the test pipeline must begin with LoadImageFromFile, '
            f'got {load["type"]}'
        )
    load.pop('_scope_', None)
    load['type'] = 'mmdet.LoadImageFromNDArray'
    return _build(model, [load, *rest])


def _infer(
    model: nn.Module,
    inputs: Iterator[_Input],
    score_thr: float,
    batch_size: int,
) -> Iterator[Prediction]:
    """What is in each image, batch after batch."""
    facts = {'palette': None, **model.dataset_meta}

    def sizes(number: int) -> list[torch.Size]:
        views = batch[number][0].packed['inputs']
        views = [views] if isinstance(views, torch.Tensor) else views
        return [view.shape for view in views]

    while batch := list(islice(inputs, batch_size)):
        by_number: dict[int, Prediction] = {}
        # Not padded: a detector finds other objects then.
        for _, group in groupby(sorted(range(len(batch)), key=sizes), sizes):
            numbers = list(group)
            items = [batch[number] for number in numbers]
            with torch.no_grad(), _scope_of(model):
                samples = model.test_step(
                    pseudo_collate([dict(job.packed) for job, _ in items])
                )
                # At once: scores of each pixel are large, and go then.
                predictions = [
                    _to_prediction(model, item, sample, score_thr)
                    for item, sample in zip(items, samples)
                ]
                del samples
            by_number.update(zip(numbers, predictions))
        for number, (job, _) in enumerate(batch):
            facts['path'] = job.path
            for name in ('path', 'classes', 'palette'):
                by_number[number].set_field(
                    facts[name], name, None, 'metainfo'
                )
            yield by_number[number]


IMAGE_SUFFIXES = (*PICTURE_SUFFIXES, '.pgm', '.ppm')
VIDEO_SUFFIXES = (
    *('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg'),
    *('.webm', '.wmv'),
)
_KEPT_SUFFIXES = ('.png', '.jpg', '.jpeg', '.mp4')


def is_video(path: str | Path) -> bool:
    """Whether a file is one of frames, by its suffix."""
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def _image_files(paths: Sequence[Path]) -> list[Path]:
    return sorted(
        path
        for path in paths
        if path.suffix.lower() in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
        and not path.is_dir()
        and not path.name.startswith('.')
    )


def list_images(sources: Sequence[str | Path]) -> list[Path]:
    """Turn files, directories and patterns into a list of files.

    A directory stands for the images and videos right in it, a pattern such
    as ``'a/**/*.jpg'`` for those it matches; both go by the suffix and leave
    hidden files out. A file is taken as it is. The same file is listed once.

    Args:
        sources: What the user named. Order is kept, the content of a
            directory or pattern is sorted.

    Returns:
        At least one existing file.

    Raises:
        FileNotFoundError: If any of the sources does not exist or holds no
            image. The message names all of them.
        ValueError: If there is no source.
    """
    if not sources:
        raise ValueError('images must name at least one file, got none')
    files_by_path: dict[Path, Path] = {}
    missing = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            files = _image_files(list(path.iterdir()))
        elif path.exists():
            files = [path]
        else:
            matches = glob.glob(str(source), recursive=True)
            files = _image_files([Path(match) for match in matches])
        if not files:
            missing.append(
                f'{source} '
                + (
                    '(a directory without images)'
                    if path.is_dir()
                    else '(does not exist)'
                )
            )
        for file in files:
            files_by_path.setdefault(file.resolve(), file)
    if missing:
        raise FileNotFoundError(
            'images must be existing files, directories with images or '
            f'patterns that match some, got {", ".join(missing)}; known '
            'suffixes in directories are '
            f'{" ".join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}'
        )
    return list(files_by_path.values())


def output_paths(images: Sequence[Path], out_dir: str | Path) -> list[Path]:
    """Choose a picture file in ``out_dir`` for each image, no two the same.

    It has the image's name, with ``.png`` appended unless the name ends in
    ``.png``, ``.jpg`` or ``.jpeg``; that of a video ends in ``.mp4``. When two
    images have the same name, all keep their folders below the deepest folder
    they share.
    """
    full = [Path(os.path.abspath(image)) for image in images]
    names = [Path(image.name) for image in full]
    if len(set(names)) < len(names):
        shared = os.path.commonpath([image.parent for image in full])
        names = [image.relative_to(shared) for image in full]
    paths = []
    for name in names:
        keep = name.suffix.lower() in _KEPT_SUFFIXES
        suffix = '' if keep else '.mp4' if is_video(name) else '.png'
        paths.append(Path(out_dir, name.with_name(name.name + suffix)))
    return paths
