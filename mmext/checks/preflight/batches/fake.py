"""Make up samples and pack them by the steps of the config's pipeline."""

from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import FUNCTIONS
from numpy.random import Generator

from ..sandbox import CannotBuildError, explain_failure, no_network, seeded
from .pipelines import Fields, step_name
from .recipe import Recipe

# Sides of objects as parts of the picture's shorter one: from what the
# finest level of a pyramid takes to what the coarsest does.
_SIDES = (0.12, 0.2, 0.3, 0.45, 0.65, 0.9)
_CROWD = 200
# Of a polygon that stands for an ellipse.
_CORNERS = 12


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
        angles = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
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
    them crowds.
    """
    height, width = size
    count = {'empty': 0, 'crowded': _CROWD}.get(kind, len(_SIDES))
    if kind == 'crowded':
        sides = rng.uniform(0.05, 0.3, (count, 2)) * min(size)
    else:
        sides = np.array(_SIDES[:count]).reshape(-1, 1) * min(size)
        sides = sides * rng.uniform(0.8, 1.1, (count, 2))
    limits = np.array([width, height])
    # Degenerate boxes are an error of the data, not a kind of batch.
    sides = np.clip(sides, 4, np.maximum(limits - 1, 1))
    corners = rng.uniform(0, 1, (count, 2)) * (limits - sides)
    boxes = np.concatenate([corners, corners + sides], 1).astype(np.float32)
    labels = _labels(kind, count, num_classes, rng)
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


def _labels(
    kind: str, count: int, num_classes: int, rng: Generator
) -> np.ndarray:
    if kind == 'one-class':
        return np.zeros(count, np.int64)
    # Neighbours in a permutation differ, so several classes are present.
    order = rng.permutation(num_classes)
    return order[np.arange(count) % num_classes].astype(np.int64)


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
                raw = raw_sample(recipe, fields, kind, rng)
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


def raw_sample(
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
        return {**results, 'gt_label': _picture_label(recipe, scene)}
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


def _picture_label(recipe: Recipe, scene: Scene) -> Any:
    if recipe.task == 'multi-label':
        return sorted(set(scene.labels.tolist()))
    return int(scene.labels[0])


def _add_objects(results: dict, scene: Scene, fields: Fields) -> None:
    """Boxes, labels and masks of the objects."""
    if fields.boxes:
        results['gt_bboxes'] = _as_boxes(scene.boxes, fields.box_type)
        results['gt_ignore_flags'] = scene.ignored
        results['gt_instances_ids'] = np.arange(len(scene.boxes))
    if fields.labels:
        results['gt_bboxes_labels'] = scene.labels
    if fields.masks:
        from mmdet.structures.mask import BitmapMasks, PolygonMasks

        height, width = scene.size
        results['gt_masks'] = (
            PolygonMasks(scene.polygons(), height, width)
            if fields.polygons
            else BitmapMasks(scene.bitmaps(), height, width)
        )
        results.setdefault('gt_ignore_flags', scene.ignored)


def _as_boxes(boxes: np.ndarray, box_type: str | None) -> Any:
    if box_type is None:
        return boxes
    from mmdet.structures.bbox import HorizontalBoxes, get_box_type

    made = HorizontalBoxes(torch.from_numpy(boxes))
    kind = get_box_type(box_type)[1]
    return made if kind is HorizontalBoxes else made.convert_to(box_type)


def _add_pixels(
    results: dict, scene: Scene, recipe: Recipe, fields: Fields
) -> None:
    """Labels and depths of the pixels."""
    ignore = recipe.ignore_index
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
        valid = scene.blocks >= 0
        _add_surfaces(results, valid)
    if fields.depth:
        rows = np.linspace(1, 9, scene.size[0], dtype=np.float32)
        results['gt_depth_map'] = np.tile(rows[:, None], scene.size[1])
        results.setdefault('seg_fields', []).append('gt_depth_map')


def _add_surfaces(results: dict, valid: np.ndarray) -> None:
    """Depth and normals of a slanted wall; none where it is not valid."""
    height, width = valid.shape
    depth = np.linspace(1, 9, height, dtype=np.float32)[:, None]
    results['img'] = results['img'].astype(np.float32)
    results['gt_depth'] = np.tile(depth, width) * valid
    normal = np.array([0.6, 0, -0.8], np.float32)
    results['gt_normal'] = normal * valid[..., None]


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
