"""Put weights into a model and say what fitted.

MMEngine loads what matches and prints the names of the rest, however little
matched. Here the outcome is counted: a checkpoint of another model is an
error, a partial match is one readable sentence.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

__all__ = [
    'WRAPPER_PREFIX',
    'LoadReport',
    'check_complete',
    'check_fits',
    'load_weights',
]

WRAPPER_PREFIX = ((r'^module\.', ''),)
_MAX_NAMES = 5
# A backbone alone is a good third of a detector. Below this share of both
# sides, what matched is chance.
_MIN_SHARE = 0.1
# Counters of batch norm that checkpoints of PyTorch 0.4 do not have.
_IGNORED = 'num_batches_tracked'
_SHAPES = re.compile(
    r'size mismatch for (\S+): .*?shape (\S+\(.*?\)|\(.*?\)) from checkpoint'
    r', the shape in current model is (\S+\(.*?\)|\(.*?\))',
    re.DOTALL,
)


@dataclass(frozen=True)
class LoadReport:
    """What of a checkpoint went into a model.

    Args:
        num_model: Entries (parameters and buffers) of the model.
        num_checkpoint: Entries of the checkpoint.
        missing: Entries of the model that the checkpoint lacks.
        unexpected: Entries of the checkpoint that the model lacks.
        mismatched: Entries of both that differ, each with both shapes.
    """

    num_model: int
    num_checkpoint: int
    missing: Sequence[str]
    unexpected: Sequence[str]
    mismatched: Sequence[str]

    @property
    def num_loaded(self) -> int:
        """Entries of the model that were loaded."""
        return self.num_model - len(self.missing) - len(self.mismatched)

    @property
    def is_exact(self) -> bool:
        """Whether both sides are the same, entry by entry."""
        return not (self.missing or self.unexpected or self.mismatched)

    @property
    def is_chance(self) -> bool:
        """Whether nothing or hardly anything matched."""
        share = max(
            self.num_loaded / max(self.num_model, 1),
            self.num_loaded / max(self.num_checkpoint, 1),
        )
        return share < _MIN_SHARE

    def __str__(self) -> str:
        text = f'{self.num_loaded} of {self.num_model} entries of the model'
        for names, what in (
            (self.mismatched, 'have another shape'),
            (self.missing, 'of the model are not in the checkpoint'),
            (self.unexpected, 'of the checkpoint are not in the model'),
        ):
            if names:
                shown = ', '.join(names[:_MAX_NAMES])
                more = ', ...' if len(names) > _MAX_NAMES else ''
                text += f'; {len(names)} {what} ({shown}{more})'
        return text


def _state_dict_of(
    checkpoint: Mapping[str, Any], revise_keys: Sequence[tuple[str, str]]
) -> OrderedDict:
    """Weights of a checkpoint, under the names they are to have."""
    weights = checkpoint.get('state_dict', checkpoint)
    result = OrderedDict()
    for name, value in weights.items():
        if isinstance(value, torch.Tensor):
            for pattern, replacement in revise_keys:
                name = re.sub(pattern, replacement, name)
            result[name] = value
    result._metadata = getattr(weights, '_metadata', OrderedDict())
    return result


def _fill(
    model: nn.Module, weights: OrderedDict
) -> tuple[list[str], list[str], list[str]]:
    """Load entry by entry; returns missing, unexpected and mismatched.

    ``nn.Module.load_state_dict`` keeps the first two to itself when a shape
    differs, and has no way to learn of aliases that a module's pre-hook
    applies, so this walks the modules as it does.
    """
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    metadata = weights._metadata

    def visit(module: nn.Module, below: OrderedDict, prefix: str) -> None:
        if is_model_wrapper(module) or isinstance(module, BaseTTAModel):
            module = module.module
        module._load_from_state_dict(
            below,
            prefix,
            metadata.get(prefix[:-1], {}),
            True,
            missing,
            unexpected,
            errors,
        )
        for name, child in module._modules.items():
            if child is not None:
                start = f'{prefix}{name}.'
                visit(
                    child,
                    OrderedDict(
                        item
                        for item in below.items()
                        if item[0].startswith(start)
                    ),
                    start,
                )
        for hook in module._load_state_dict_post_hooks.values():
            hook(module, _IncompatibleKeys(missing, unexpected))

    visit(model, weights, '')
    mismatched = []
    for error in errors:
        match = _SHAPES.search(error)
        mismatched.append(
            f'{match[1]}: {match[2]} in the checkpoint, {match[3]} in the '
            'model'
            if match
            else error.strip()
        )
    return missing, list(dict.fromkeys(unexpected)), mismatched


def load_weights(
    model: nn.Module,
    checkpoint: Mapping[str, Any],
    source: str,
    *,
    revise_keys: Sequence[tuple[str, str]] = WRAPPER_PREFIX,
) -> LoadReport:
    """Load the weights that fit into a model.

    Args:
        model: The model; its entries are overwritten in place.
        checkpoint: What :func:`~mmext.engine.read_checkpoint` returned. It
            is not changed.
        source: Where it is from, for the message.
        revise_keys: Regular expressions and replacements for names, by
            default those that remove the prefix of a wrapped model.

    Returns:
        What was loaded. Entries that do not fit keep their values.

    Raises:
        ValueError: If nothing or hardly anything fits.
    """
    weights = _state_dict_of(checkpoint, revise_keys)
    num_checkpoint = len(weights)
    missing, unexpected, mismatched = _fill(model, weights)
    # Pre-hooks may have renamed entries, in this copy only.
    known = [name for name in model.state_dict() if _IGNORED not in name]
    report = LoadReport(
        num_model=len(known),
        num_checkpoint=num_checkpoint,
        missing=[name for name in missing if _IGNORED not in name],
        unexpected=[name for name in unexpected if _IGNORED not in name],
        mismatched=mismatched,
    )
    if report.num_model and report.is_chance:
        raise ValueError(
            f'checkpoint {source!r} is not of this model: loaded {report}; '
            'name the checkpoint that belongs to the config, or the config '
            'that belongs to the checkpoint'
        )
    return report


def check_fits(report: LoadReport, source: str) -> None:
    """Raise unless a checkpoint is exactly of a model, to resume from it.

    Args:
        report: What :func:`load_weights` returned.
        source: Where the checkpoint is from, for the message.

    Raises:
        ValueError: If an entry is missing, left over or of another shape.
    """
    if not report.is_exact:
        raise ValueError(
            f'checkpoint {source!r} must be of the same model to resume from '
            f'it, loaded {report}; resume with the config it was trained '
            'with, or set load_from (and not resume) to start a new training '
            'from its weights'
        )


def check_complete(report: LoadReport, source: str) -> None:
    """Raise unless a checkpoint filled a model, to evaluate or predict.

    Args:
        report: What :func:`load_weights` returned. What the checkpoint holds
            beyond the model is not minded.
        source: Where the checkpoint is from, for the message.

    Raises:
        ValueError: If an entry of the model is missing or of another shape;
            it would be random.
    """
    if report.missing or report.mismatched:
        raise ValueError(
            f'checkpoint {source!r} must hold all weights of the model, '
            f'loaded {report}; name the config it was trained with'
        )
