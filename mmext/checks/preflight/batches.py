"""Make the batches of a model that was built for a preflight.

Samples are made up, and packed by the steps of the config's pipeline; or they
are the first of its data.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, FUNCTIONS, DefaultScope
from numpy.random import Generator

from .recipe import Fields, Recipe, step_name
from .sandbox import CannotBuildError, explain_failure, no_network, seeded

if TYPE_CHECKING:
    from .build import Built

# 'real' is read from the data of the config, the others are made up.
KINDS = ('normal', 'empty', 'one-class', 'crowded', 'full', 'real')
# A picture of a classification always has a class, and a pre-training looks
# at no labels, so that some kinds mean nothing to them. Samples of a data set
# without a known pipeline cannot be made up: the first of its own are taken.
_FEW = {
    'depth': ('normal', 'real'),
    'classification': ('normal', 'one-class', 'real'),
    'multi-label': ('normal', 'empty', 'one-class', 'real'),
    'pretraining': ('normal', 'real'),
    'data set': ('normal', 'real'),
}
# Sides of objects as parts of the picture's shorter one: from what the
# finest level of a pyramid takes to what the coarsest does.
_SIDES = (0.12, 0.2, 0.3, 0.45, 0.65, 0.9)
# Height and width in pixels of what a forward gets by its signature.
_SMALL = (64, 64)
# What the first and the other arguments of a forward usually are.
_PICTURES = re.compile(r'(batch_)?(x|inputs?|img|imgs|images?|pixel_values)')
_LABELS = re.compile(r'y|(gt_)?labels?|targets?')
SIGNATURE = 'by the signature of forward'


@dataclass(frozen=True)
class Scene:
    """A picture and what is in it.

    Attributes:
        image: ``(H, W, C)``, uint8.
        boxes: ``(N, 4)``, float32, x1 y1 x2 y2 in pixels.
        labels: ``(N,)``, int64, in ``[0, num_classes)``.
        ignored: ``(N,)``, bool; True for crowds, which are not learned.
        blocks: ``(H, W)``, int64, in ``[0, 1 << 16)``: numbers of areas, for
            labels of pixels; -1 for pixels to ignore.
    """

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    ignored: np.ndarray
    blocks: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.image.shape[:2]

    def polygons(self) -> list[list[np.ndarray]]:
        """Outlines of the objects: ``[x1 y1 x2 y2 ...]``, one for each."""
        angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
        ring = np.stack([np.cos(angles), np.sin(angles)], 1)
        centres = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        halves = (self.boxes[:, 2:] - self.boxes[:, :2]) / 2
        return [
            [(centre + half * ring).reshape(-1).astype(np.float32)]
            for centre, half in zip(centres, halves)
        ]

    def bitmaps(self) -> np.ndarray:
        """Pixels of the objects; ``(N, H, W)``, uint8, ellipses."""
        height, width = self.size
        masks = np.zeros((len(self.boxes), height, width), np.uint8)
        y, x = np.mgrid[:height, :width] + 0.5
        for mask, (x1, y1, x2, y2) in zip(masks, self.boxes):
            across = (2 * x - x1 - x2) / (x2 - x1)
            down = (2 * y - y1 - y2) / (y2 - y1)
            mask[across**2 + down**2 <= 1] = 1
        return masks

    def pixel_labels(
        self, num_classes: int, *, first: int = 0, ignore_index: int = 255
    ) -> np.ndarray:
        """Labels ``(H, W)``, int64, of pixels by the areas of the picture."""
        labels = first + self.blocks % max(num_classes, 1)
        return np.where(self.blocks < 0, ignore_index, labels)

    def panoptic_labels(
        self, num_things: int, num_stuff: int, *, ignore_index: int = 255
    ) -> np.ndarray:
        """Labels ``(H, W)``, int64, of the pixels: objects lie on stuff."""
        labels = self.pixel_labels(
            num_stuff, first=num_things, ignore_index=ignore_index
        )
        for mask, label in zip(self.bitmaps(), self.labels):
            labels[mask.astype(bool)] = label
        return labels


def make_scene(
    kind: str,
    size: tuple[int, int],
    *,
    num_classes: int,
    channels: int = 3,
    rng: Generator,
) -> Scene:
    """Make up a picture of ``size``, height and width in pixels.

    Kinds: ``'normal'`` has six objects of several classes and sizes;
    ``'empty'`` none, and all pixels are to be ignored; ``'one-class'`` one
    class, of all objects and pixels; ``'crowded'`` 200 objects, a tenth of
    them crowds; ``'full'`` 90, as the fullest pictures of COCO.
    """
    height, width = size
    counts = {'empty': 0, 'crowded': 200, 'full': 90}
    count = counts.get(kind, len(_SIDES))
    if count > len(_SIDES):
        sides = rng.uniform(0.05, 0.3, (count, 2)) * min(size)
    else:
        sides = np.array(_SIDES[:count]).reshape(-1, 1) * min(size)
        sides = sides * rng.uniform(0.8, 1.1, (count, 2))
    limits = np.array([width, height])
    # Degenerate boxes are an error of the data, not a kind of batch.
    sides = np.clip(sides, 4, np.maximum(limits - 1, 1))
    corners = rng.uniform(0, 1, (count, 2)) * (limits - sides)
    boxes = np.concatenate([corners, corners + sides], 1).astype(np.float32)
    labels = np.zeros(count, np.int64)
    if kind != 'one-class':
        # Neighbours in a permutation differ, so several classes are present.
        order = rng.permutation(num_classes)
        labels = order[np.arange(count) % num_classes].astype(np.int64)
    ignored = np.zeros(count, bool)
    if kind == 'crowded':
        ignored[::10] = True
    scene = Scene(
        image=np.empty((height, width, channels), np.uint8),
        boxes=boxes,
        labels=labels,
        ignored=ignored,
        blocks=_blocks(kind, size, rng),
    )
    _paint(scene, rng)
    return scene


def _blocks(kind: str, size: tuple[int, int], rng: Generator) -> np.ndarray:
    """Numbers of areas, -1 where a pixel is to be ignored."""
    if kind == 'empty':
        return np.full(size, -1, np.int64)
    parts, share = (24, 0.2) if kind == 'crowded' else (5, 0.05)
    # Neighbouring numbers, so that all of a few classes are present.
    numbers = rng.permutation(parts**2).reshape(parts, parts)
    numbers += rng.integers(1 << 15)
    if kind == 'one-class':
        numbers[:] = 0
    rows = np.arange(size[0]) * parts // size[0]
    columns = np.arange(size[1]) * parts // size[1]
    blocks = numbers[rows][:, columns]
    # Borders of areas are what annotators leave open.
    ignored = max(1, round(size[1] * share))
    blocks[:, -ignored:] = -1
    return blocks


def _paint(scene: Scene, rng: Generator) -> None:
    """Noise, areas in their colours, and a colour for each class."""
    image = scene.image
    image[:] = rng.integers(0, 60, image.shape)
    image += (scene.blocks % 7 * 12).astype(np.uint8)[..., None]
    colours = rng.integers(60, 255, (97, image.shape[2]), dtype=np.uint8)
    for (x1, y1, x2, y2), label in zip(
        scene.boxes.round().astype(int), scene.labels
    ):
        image[y1:y2, x1:x2] = colours[label % 97]


def fake_batch(
    recipe: Recipe,
    kind: str,
    *,
    step: int = 0,
    batch_size: int = 2,
    seed: int = 0,
) -> Any:
    """A made-up batch of number ``step``, as the data loader would give it.

    Each data set of the config gives ``batch_size`` samples, since those of a
    semi-supervised training do different things.
    """
    samples = []
    for part, (pipeline, fields) in enumerate(
        zip(recipe.pipelines, recipe.fields)
    ):
        for index in range(1 if fields.alone else batch_size):
            words = [seed, crc32(kind.encode()), step, part, index]
            rng = np.random.default_rng(words)
            with seeded(int(rng.integers(1 << 31))):
                raw = _raw_sample(recipe, fields, kind, rng)
                samples.append(_packed(raw, pipeline, kind))
    return collate_function(recipe.collate)(samples)


def _packed(raw: dict, pipeline: list, kind: str) -> Any:
    """The sample that the steps of a pipeline make of what was loaded."""
    steps = ', '.join(step_name(step) for step in pipeline)
    what = f'a sample of kind {kind!r} with the training pipeline ({steps})'
    with no_network() as asked:
        try:
            sample = Compose(pipeline)(raw)
        except Exception as error:
            raise CannotBuildError(
                explain_failure(what, error, asked)
            ) from error
    if sample is None:
        raise CannotBuildError(f'cannot build {what}: a step gives None')
    return sample


def collate_function(config: Any) -> Any:
    """What makes a batch of samples, as the runner builds it."""
    if config is None:
        return pseudo_collate
    if not isinstance(config, dict):
        return config
    options = dict(config)
    kind = options.pop('type')
    function = FUNCTIONS.get(kind) if isinstance(kind, str) else kind
    if not callable(function):
        raise CannotBuildError(
            f'collate_fn.type must be a registered function, got {kind!r}'
        )
    return partial(function, **options)


def _raw_sample(
    recipe: Recipe, fields: Fields, kind: str, rng: np.random.Generator
) -> dict:
    """What the loading steps would give; lists for a sequence."""
    if not fields.frames:
        return _raw_picture(recipe, fields, kind, rng)
    # The same objects in all pictures, so that they can be tracked.
    seed = int(rng.integers(1 << 31))
    frames = [
        _raw_picture(recipe, fields, kind, np.random.default_rng(seed))
        for _ in range(fields.frames)
    ]
    merged = {key: [frame[key] for frame in frames] for key in frames[0]}
    # For re-identification: each two pictures show the same one.
    order = rng.permutation(max(recipe.num_classes, 2))
    merged['gt_label'] = [
        np.array(order[frame // 2 % len(order)] % recipe.num_classes)
        for frame in range(fields.frames)
    ]
    merged['key_frame_flags'] = [i == 0 for i in range(fields.frames)]
    merged['frame_id'] = list(range(fields.frames))
    merged['video_id'] = [0] * fields.frames
    merged['video_length'] = [fields.frames] * fields.frames
    return merged


def _raw_picture(
    recipe: Recipe, fields: Fields, kind: str, rng: np.random.Generator
) -> dict:
    scene = make_scene(
        kind,
        recipe.size,
        num_classes=recipe.num_classes,
        channels=recipe.channels,
        rng=rng,
    )
    results = {
        'img': scene.image,
        'img_id': 0,
        'img_path': 'made-up.png',
        'ori_shape': scene.size,
        'img_shape': scene.size,
        'height': scene.size[0],
        'width': scene.size[1],
        'scale': scene.size[::-1],
        'scale_factor': (1.0, 1.0),
        'flip': False,
        'flip_direction': None,
        'homography_matrix': np.eye(3, dtype=np.float32),
    }
    if recipe.task == 'pretraining':
        return {**results, 'sample_idx': 0}
    if recipe.task in ('classification', 'multi-label'):
        labels = scene.labels.tolist()
        several = recipe.task == 'multi-label'
        return {
            **results,
            'gt_label': sorted(set(labels)) if several else labels[0],
        }
    _add_objects(results, scene, fields)
    _add_pixels(results, scene, recipe, fields)
    if fields.proposals:
        _add_proposals(results, scene, fields.proposals, rng)
    if fields.text:
        results['text'] = recipe.classes or tuple(
            f'class {index}' for index in range(recipe.num_classes)
        )
        results['custom_entities'] = True
    return results


def _add_objects(results: dict, scene: Scene, fields: Fields) -> None:
    """Boxes, labels and masks of the objects."""
    if fields.boxes:
        boxes: Any = scene.boxes
        if fields.box_type is not None:
            from mmdet.structures.bbox import HorizontalBoxes, get_box_type

            boxes = HorizontalBoxes(torch.from_numpy(scene.boxes))
            if get_box_type(fields.box_type)[1] is not HorizontalBoxes:
                boxes = boxes.convert_to(fields.box_type)
        results['gt_bboxes'] = boxes
        results['gt_ignore_flags'] = scene.ignored
        results['gt_instances_ids'] = np.arange(len(scene.boxes))
    if fields.labels:
        results['gt_bboxes_labels'] = scene.labels
        # As metrics read them that have no annotation file.
        results['instances'] = [
            {'bbox': box, 'bbox_label': label, 'ignore_flag': int(ignored)}
            for box, label, ignored in zip(
                scene.boxes.tolist(), scene.labels.tolist(), scene.ignored
            )
        ]
    if fields.masks:
        from mmdet.structures.mask import BitmapMasks, PolygonMasks

        height, width = scene.size
        results['gt_masks'] = (
            PolygonMasks(scene.polygons(), height, width)
            if fields.polygons
            else BitmapMasks(scene.bitmaps(), height, width)
        )
        results.setdefault('gt_ignore_flags', scene.ignored)


def _add_pixels(
    results: dict, scene: Scene, recipe: Recipe, fields: Fields
) -> None:
    """Labels, depths and normals of the pixels."""
    ignore = recipe.ignore_index
    rows = np.linspace(1, 9, scene.size[0], dtype=np.float32)
    depth = np.tile(rows[:, None], scene.size[1])
    if fields.panoptic:
        labels = scene.panoptic_labels(
            recipe.num_classes, recipe.num_stuff, ignore_index=ignore
        )
    else:
        classes = recipe.num_classes
        if recipe.task != 'semantic' and recipe.num_stuff:
            classes = recipe.num_stuff
        labels = scene.pixel_labels(classes, ignore_index=ignore)
    if fields.semantic:
        results['gt_seg_map'] = labels.astype(
            np.uint8 if 0 <= labels.max() < 256 else np.int64
        )
        results['seg_map_path'] = 'made-up.png'
        results['ignore_index'] = ignore
        results['seg_fields'] = ['gt_seg_map']
        results['reduce_zero_label'] = False
    if fields.multi_task:
        # Of a slanted wall; none where a pixel is not valid.
        valid = scene.blocks >= 0
        normal = np.array([0.6, 0, -0.8], np.float32)
        results['img'] = results['img'].astype(np.float32)
        results['gt_depth'] = depth * valid
        results['gt_normal'] = normal * valid[..., None]
    if fields.depth:
        results['gt_depth_map'] = depth
        results.setdefault('seg_fields', []).append('gt_depth_map')


def _add_proposals(
    results: dict, scene: Scene, count: int, rng: np.random.Generator
) -> None:
    """Boxes as another model would propose: near objects, and elsewhere."""
    count = min(count, 50)
    height, width = scene.size
    corners = rng.uniform(0, 0.7, (count, 2)) * (width, height)
    sides = rng.uniform(0.1, 0.3, (count, 2)) * (width, height)
    boxes = np.concatenate([corners, corners + sides], 1)
    near = scene.boxes[: count // 2]
    boxes[: len(near)] = near
    results['proposals'] = boxes.astype(np.float32)
    results['proposals_scores'] = np.ones(count, np.float32)


def real_batches(
    cfg: Mapping, *, steps: int = 2, batch_size: int = 2, seed: int = 0
) -> list[Any]:
    """The first batches of the training data, read in this process.

    Fewer, and the last one smaller, if there are not enough data.
    """
    loader = cfg.get('train_dataloader')
    if not loader or not loader.get('dataset'):
        raise CannotBuildError(
            'config must have train_dataloader for batches of kind '
            f"'real', got keys {sorted(cfg)}; use made-up ones"
        )
    dataset = loader['dataset']
    scope = cfg.get('default_scope') or 'mmengine'
    batches = []
    try:
        with DefaultScope.overwrite_default_scope(scope), seeded(seed):
            collate = collate_function(loader.get('collate_fn'))
            if isinstance(dataset, Mapping):
                dataset = DATASETS.build(dict(dataset))
            if hasattr(dataset, 'full_init'):
                dataset.full_init()
            # The next ones of each part of the data set.
            ends = list(getattr(dataset, 'cumulative_sizes', [len(dataset)]))
            for step in range(steps):
                indices = [
                    index
                    for start, end in zip([0, *ends[:-1]], ends)
                    for index in range(start, end)[step * batch_size :][
                        :batch_size
                    ]
                ]
                if indices:
                    batches.append(collate([dataset[i] for i in indices]))
    except Exception as error:
        raise CannotBuildError(
            'train_dataloader.dataset must give samples, got '
            f'{type(error).__name__}: {error}; check its paths, or use '
            'made-up batches'
        ) from error
    return batches


def make_batches(
    built: 'Built',
    kinds: Sequence[str] = ('normal', 'empty', 'one-class', 'crowded'),
    *,
    steps: int = 2,
    batch_size: int = 2,
    seed: int = 0,
    notes: list[str] | None = None,
) -> dict[str, list[Any]]:
    """Batches of each kind, as the data loader would give them.

    A made-up sample is packed by the steps of the training pipeline, so it has
    the fields that the training would have, and no others. Kinds that mean
    nothing to the task are left out. A batch has ``batch_size`` samples of
    each data set; batch normalisation of a 1x1 map needs 2. CannotBuildError
    where a step of the pipeline or real data fail.

    Of a data set whose samples are its own, ``'normal'`` are the first of the
    data; where these are not here, what the signature of ``forward`` asks
    for. ``notes`` get which.
    """
    suited = _FEW.get(built.task, KINDS)
    batches = {}
    with DefaultScope.overwrite_default_scope(built.scope):
        for kind in kinds:
            if kind == 'normal' and built.task == 'data set':
                given, note = _own_batches(built, steps, batch_size, seed)
                batches[kind] = given
                if notes is not None:
                    notes.append(note)
            elif kind == 'real':
                batches[kind] = real_batches(
                    built.cfg, steps=steps, batch_size=batch_size, seed=seed
                )
            elif kind in suited:
                batches[kind] = [
                    fake_batch(
                        built.recipe,
                        kind,
                        step=step,
                        batch_size=batch_size,
                        seed=seed,
                    )
                    for step in range(steps)
                ]
    return batches


def _own_batches(
    built: 'Built', steps: int, batch_size: int, seed: int
) -> tuple[list[Any], str]:
    """Batches of a model whose samples are not those of a host; their origin.

    What the data set gives, in its own pipeline; else what forward takes.
    """
    kind = type(built.model).__name__
    try:
        given = real_batches(
            built.cfg, steps=steps, batch_size=batch_size, seed=seed
        )
    except CannotBuildError as error:
        absent = isinstance(error.__cause__, FileNotFoundError)
        if error.__cause__ is not None and not absent:
            raise
        with seeded(seed):
            made = [
                _batch_of_signature(built, batch_size) for _ in range(steps)
            ]
        names = ', '.join(made[0])
        return made, (
            f'samples of {kind} are its own, and the training data are not '
            f'here: batches are made up {SIGNATURE}({names})'
        )
    return given, (
        f'samples of {kind} are its own: batches are the first of the '
        'training data, by their own pipeline'
    )


def _batch_of_signature(built: 'Built', batch_size: int) -> dict[str, Any]:
    """Pictures and labels, as far as a forward says that it takes them."""
    parameters = inspect.signature(built.model.forward).parameters
    unknown = (
        f'samples of {type(built.model).__name__} are its own, the training '
        'data are not here, and its forward {}; run it where the data are'
    )
    channels, (height, width) = built.recipe.channels, _SMALL
    batch: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name == 'mode' or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            continue
        if not batch and _PICTURES.fullmatch(name):
            batch[name] = torch.rand(batch_size, channels, height, width)
        elif batch and _LABELS.fullmatch(name):
            batch[name] = torch.zeros(batch_size, dtype=torch.long)
        elif parameter.default is parameter.empty:
            what = f'takes {name!r}, of which only the data tell what it is'
            raise CannotBuildError(unknown.format(what))
    if not batch:
        raise CannotBuildError(unknown.format('names no picture'))
    return batch
