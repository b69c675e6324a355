"""How large a made-up picture has to be: small, and right for the model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...utils.config_nodes import walk_dicts
from .pipelines import step_name, steps_of

__all__ = [
    'LONGEST',
    'declared_size',
    'fit_model',
    'fixed_size',
    'query_area',
    'reduced_size',
]

Size = tuple[int, int]

# Longer side in pixels: every level of a pyramid up to stride 128 exists,
# and a step of a usual model takes seconds on a CPU.
LONGEST = 256
_MULTIPLE = 32
_SCALED = {'Resize', 'RandomResize', 'RandomChoiceResize', 'FixScaleResize'}


def declared_size(pipelines: Sequence[Sequence], model: Mapping) -> Size:
    """Height and width of the pictures that a training sees.

    Args:
        pipelines: Configs of the steps of each data set.
        model: The config of the model, whose padding comes last.

    Returns:
        In pixels. 512 by 512 if nothing tells a size.
    """
    size = (512, 512)
    for step in steps_of(pipelines[0] if pipelines else ()):
        size = _size_after(step, size)
    for part in _paddings(model):
        size = _pair(part['size'])
    return size


def _size_after(step: Any, size: Size) -> Size:
    """Height and width after a step."""
    if not isinstance(step, Mapping):
        return size
    name = step_name(step)
    if name in _SCALED:
        scale = step.get('scale') or step.get('scales')
        several = isinstance(scale, (list, tuple)) and (
            name == 'RandomChoiceResize'
            or any(isinstance(each, (list, tuple)) for each in scale)
        )
        if several and scale:
            scale = scale[-1]
        if scale:
            width, height = _pair(scale)
            return height, width
    elif name in ('RandomCrop', 'RandomCenterCropPad'):
        crop = step.get('crop_size')
        if crop and step.get('crop_type', 'absolute') == 'absolute':
            return _pair(crop)
    elif name == 'Pad' and step.get('size'):
        width, height = _pair(step['size'])
        return height, width
    return size


def _pair(value: Any) -> Size:
    """Two numbers of one, or of the first two."""
    if isinstance(value, (list, tuple)):
        return int(value[0]), int(value[-1])
    return int(value), int(value)


def _parts(model: Any) -> Iterator[Mapping]:
    """All dicts of a config of a model, but those of its tests."""
    for _, part in walk_dicts(model, skip=('test_cfg', 'train_cfg')):
        yield part


def _paddings(model: Mapping) -> list[Mapping]:
    """What pads a batch to one size."""
    found = []
    for part in _parts(model):
        batch = part.get('data_preprocessor')
        if not isinstance(batch, Mapping):
            continue
        for each in _parts(batch):
            if each.get('size') is not None:
                found.append(each)
    return found


def fixed_size(model: Mapping) -> Size | None:
    """Height and width that the tensors of a detector are made for.

    Args:
        model: The config of the model.

    Returns:
        In pixels, or None if any size will do.
    """
    for part in _parts(model):
        for key in ('input_size', 'img_size'):
            value = part.get(key)
            if value and isinstance(value, (int, list, tuple)):
                return _pair(value)
    return None


def query_area(model: Mapping) -> int:
    """Pixels that a picture needs for the queries of a model.

    A model of two stages takes its queries from the places of its maps, and
    fails if there are fewer. The finest map has a stride of 4 where the first
    stage of the backbone is used, and usually of 8.

    Args:
        model: The config of the model.

    Returns:
        Pixels; 0 for a model without queries.
    """
    counts = [
        part['num_queries']
        for part in _parts(model)
        if isinstance(part.get('num_queries'), int)
    ]
    backbone = model.get('backbone') or {}
    finest = 4 if 0 in (backbone.get('out_indices') or ()) else 8
    return finest**2 * max(counts, default=0)


def reduced_size(size: Size, *, longest: int = LONGEST, area: int = 0) -> Size:
    """A smaller size of about that shape.

    Args:
        size: Height and width in pixels.
        longest: Longer side of the result, in pixels.
        area: Pixels that the result needs at least; then its longer side
            grows by steps of 64.

    Returns:
        The same if it is not larger, else multiples of 32.

    Examples:
        >>> reduced_size((800, 1333))
        (160, 256)
        >>> reduced_size((64, 64))
        (64, 64)
    """
    while longest < max(size):
        scale = longest / max(size) / _MULTIPLE
        height, width = (
            max(1, round(side * scale)) * _MULTIPLE for side in size
        )
        if height * width >= area:
            return height, width
        longest += 64
    return size


def fit_model(model: Any, declared: Size, size: Size) -> list[str]:
    """Make a model for smaller pictures than its training sees.

    What pads or resizes its batches does so to the smaller size, and the
    parts whose tensors are as large as a picture are made for it.

    Args:
        model: The config of the model. Edited.
        declared: Height and width of the pictures of a training, in pixels.
        size: Those of the pictures to come.

    Returns:
        What was changed, each in words.
    """
    notes = []
    for part in _paddings(model):
        if _pair(part['size']) != size:
            notes.append(
                f'batches are padded to {size}, not to {part["size"]}'
            )
            part['size'] = size
    for part in _parts(model):
        name = step_name(part)
        if name == 'BatchSyncRandomResize':
            was, now = part['random_size_range'], (min(size), max(size))
            notes.append(f'batches are resized to {now}, not to {was}')
            part['random_size_range'] = now
        elif name == 'BatchResize':
            was, part['scale'] = part['scale'], size
            notes.append(f'batches are resized to {size}, not to {was}')
        was = part.get('img_size')
        if was and size != declared and _pair(was) == declared:
            notes.append(f'{name}.img_size is {size}, not {was}')
            part['img_size'] = size
    return notes
