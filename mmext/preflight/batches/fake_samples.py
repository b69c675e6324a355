"""Make up samples and pack them by the steps of the config's pipeline."""

from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import FUNCTIONS

from .._offline import no_network
from .._seeded import seeded
from ..cannot_build import CannotBuildError, explain_failure
from .pipelines import Fields, step_name
from .recipe import Recipe
from .scenes import Scene, make_scene

__all__ = ['collate_function', 'fake_batch', 'raw_sample']


def fake_batch(
    recipe: Recipe,
    kind: str,
    *,
    step: int = 0,
    batch_size: int = 2,
    seed: int = 0,
) -> Any:
    """Make up a batch, as the data loader would give it.

    Each data set of the config gives ``batch_size`` samples, since those of
    a semi-supervised training do different things.

    Args:
        recipe: How.
        kind: Of :func:`~mmext.preflight.batches.kinds.kinds_of` the task,
            but ``'real'``.
        step: Number of the batch; other steps have other contents.
        batch_size: Samples of each data set.
        seed: Same seed, same batch.

    Returns:
        What the collate function of the config makes of the samples.

    Raises:
        CannotBuildError: If a step of the pipeline cannot be built, fails,
            or gives nothing.
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
    steps = ', '.join(step_name(each) for each in pipeline)
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
    """What makes a batch of samples, as the runner builds it.

    Args:
        config: ``train_dataloader.collate_fn``, or None for the default.

    Returns:
        A function of a list of samples.
    """
    if config is None:
        return pseudo_collate
    if not isinstance(config, dict):
        return config
    options = dict(config)
    kind = options.pop('type')
    function = FUNCTIONS.get(kind) if isinstance(kind, str) else kind
    return partial(function, **options)


def raw_sample(
    recipe: Recipe, fields: Fields, kind: str, rng: np.random.Generator
) -> dict:
    """What the loading steps of a pipeline would give.

    Args:
        recipe: Sizes and numbers of classes.
        fields: What the data set has.
        kind: Of batch.
        rng: Source of all that is random.

    Returns:
        Results for the steps that are left; lists if it is a sequence.
    """
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
    if fields.depth:
        rows = np.linspace(1, 9, scene.size[0], dtype=np.float32)
        results['gt_depth_map'] = np.tile(rows[:, None], scene.size[1])
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
