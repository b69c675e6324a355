"""Strides that priors and RoI layers are set to, and the maps they get."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

Size = tuple[int, int]
_STRIDES = 'featmap_strides'


class StridedMaps(NamedTuple):
    """Maps of a part that converts their positions to pixels.

    ``part`` is the name of a module, ``argument`` its attribute that has the
    strides; strides and sizes are (height, width), one for each map.
    """

    part: str
    argument: str
    strides: tuple[tuple[float, float], ...]
    sizes: tuple[Size, ...]


@contextmanager
def watch_strides(model: nn.Module) -> Iterator[list[StridedMaps]]:
    """Note the maps of prior generators and RoI extractors in the block.

    Generators are known by ``strides`` and ``grid_priors(sizes, ...)``, RoI
    extractors by ``featmap_strides`` and ``forward(maps, ...)``.
    """
    seen: list[StridedMaps] = []

    def note(
        part: str, argument: str, strides: Any, sizes: Sequence[Size]
    ) -> None:
        seen.append(StridedMaps(part, argument, tuple(strides), tuple(sizes)))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            for argument, value in list(vars(module).items()):
                if (
                    hasattr(value, 'grid_priors')
                    and hasattr(value, 'strides')
                    # Two attributes may have the same generator.
                    and 'grid_priors' not in vars(value)
                ):
                    stack.callback(vars(value).pop, 'grid_priors', None)
                    value.grid_priors = _noting(
                        value, partial(note, name, argument)
                    )
            if isinstance(getattr(module, _STRIDES, None), list | tuple):
                stack.callback(
                    module.register_forward_pre_hook(
                        partial(_note_maps, partial(note, name, _STRIDES))
                    ).remove
                )
        yield seen


def _noting(generator: Any, note: Any) -> Any:
    """``grid_priors`` of a generator that notes the sizes it gets."""
    original = generator.grid_priors

    def grid_priors(featmap_sizes: Sequence[Size], *args: Any, **named: Any):
        # MMDetection has (width, height) there.
        strides = [(float(s[1]), float(s[0])) for s in generator.strides]
        note(strides, [tuple(map(int, size)) for size in featmap_sizes])
        return original(featmap_sizes, *args, **named)

    return grid_priors


def _note_maps(note: Any, module: nn.Module, args: tuple) -> None:
    """Hook of a RoI extractor: note its maps, as many as it has strides."""
    maps = args[0] if args else ()
    if all(isinstance(m, Tensor) and m.dim() == 4 for m in maps):
        strides = [(float(s), float(s)) for s in getattr(module, _STRIDES)]
        note(strides, [tuple(m.shape[-2:]) for m in maps[: len(strides)]])
