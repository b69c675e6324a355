"""Read checkpoints, damaged and hostile ones too, and load their weights."""

import io
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner.checkpoint import CheckpointLoader
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from ...utils.printing import printable_name
from ...utils.safe_load import (
    CONFIG_FILE,
    careful_readers,
    is_pretrained,
    only_dict,
    read_weights,
)
from ..class_rows import ClassRows
from .pretrained import read_pretrained

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


def read_checkpoint(
    path: str | Path,
    *,
    mmap: bool = False,
    trust: bool | None = None,
    verify: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint into memory, on the CPU.

    What may run code is refused; see
    :func:`mmext.utils.safe_load.load_torch` for what checkpoints may hold.

    Args:
        path: A file, any address that MMEngine can load from, or a folder
            of :func:`mmext.save_pretrained`.
        mmap: Leave the weights on the disk until they are used.
        trust: Read any type, which can run code. Only for a file from
            people you trust. None for what is set where this is called,
            outside of a runner False.
        verify: Compare the checksums of a local file, about a second for
            each gigabyte.

    Returns:
        The checkpoint. Bare weights come as they are, without ``state_dict``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, cannot be read, or holds no dict;
            or other types than plain data without ``trust`` (an
            ``UntrustedTypeError``).
    """
    if '://' in str(path):
        with careful_readers(trust):
            content = CheckpointLoader.load_checkpoint(str(path), 'cpu')
        return only_dict(content, path)
    file = Path(path).expanduser()
    if is_pretrained(file):
        return read_pretrained(file)
    if not file.is_file():
        what = 'no such file'
        if file.is_dir():
            what = f'a folder without {CONFIG_FILE}'
        raise FileNotFoundError(
            f'checkpoint must be an existing file, got {str(path)!r} '
            f'({what}, looked from {Path.cwd()})'
        )
    return read_weights(file, trust, mmap=mmap, verify=verify)


@dataclass(frozen=True)
class LoadReport:
    """What of a checkpoint went into a model.

    Counts and names are of entries: parameters and buffers. ``mismatched``
    names entries of both sides that differ, each with both shapes. ``rows``
    knows those of which the rows of some classes were loaded.
    """

    num_model: int
    missing: Sequence[str]
    unexpected: Sequence[str]
    mismatched: Sequence[str]
    rows: ClassRows | None = None

    @property
    def num_loaded(self) -> int:
        """Entries of the model that were loaded."""
        return self.num_model - len(self.missing) - len(self.mismatched)

    @property
    def is_exact(self) -> bool:
        """Whether both sides are the same, entry by entry."""
        return not (
            self.missing
            or self.unexpected
            or self.mismatched
            or (self.rows and self.rows.copied)
        )

    def __str__(self) -> str:
        text = f'{self.num_loaded} of {self.num_model} entries of the model'
        if self.rows and self.rows.copied:
            text += f', {len(self.rows.copied)} of them by class'
        for names, what in (
            (self.mismatched, 'have another shape'),
            (self.missing, 'of the model are not in the checkpoint'),
            (self.unexpected, 'of the checkpoint are not in the model'),
        ):
            if names:
                text += f'; {len(names)} {what} ({_some(names)})'
        return text

    def table(self) -> str:
        """What was loaded, copied, initialised and left, as a table."""
        copied = self.rows.copied if self.rows else {}
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column('weights', no_wrap=True)
        table.add_column('entries', justify='right')
        table.add_column('', overflow='fold', max_width=100)
        lines = [('loaded', self.num_loaded - len(copied), '')]
        if copied:
            kept = set(self.rows.same)
            new = [name for name in self.rows.new if name not in kept]
            gone = [name for name in self.rows.old if name not in kept]
            names = [
                f'{name} {count} of {size}'
                for name, (count, size) in copied.items()
            ]
            for what, classes in (
                ('copied', self.rows.same),
                ('initialised', new),
                ('left', gone),
            ):
                rows = f'rows of {_some(classes)}' if classes else 'no class'
                lines.append((what, len(copied), rows))
            lines[1] = (*lines[1][:2], f'{lines[1][2]}: {_some(names)}')
        lines += [
            ('initialised', len(self.missing), _some(self.missing)),
            ('initialised', len(self.mismatched), _some(self.mismatched)),
            ('left', len(self.unexpected), _some(self.unexpected)),
        ]
        for what, count, names in lines:
            if count:
                table.add_row(what, str(count), printable_name(names))
        return table_text(table)


def table_text(table: Table) -> str:
    """A table as text, for a log: no colours, no line that is cut."""
    console = Console(
        file=io.StringIO(),
        width=1000,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table)
    lines = console.file.getvalue().splitlines()
    return '\n'.join(line.rstrip() for line in lines if line.strip())


def _some(names: Sequence[str]) -> str:
    more = ', ...' if len(names) > _MAX_NAMES else ''
    return ', '.join(names[:_MAX_NAMES]) + more


def _fill(
    model: nn.Module, weights: OrderedDict, rows: ClassRows | None
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
        for name, own in module._parameters.items():
            if rows and own is not None and prefix + name in below:
                value = below[prefix + name]
                below[prefix + name] = rows.adapt(prefix + name, value, own)
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
    rows: Callable[[OrderedDict], ClassRows | None] = lambda weights: None,
) -> LoadReport:
    """Load the weights that fit into a model.

    Args:
        model: The model; its entries are overwritten in place.
        checkpoint: What :func:`~mmext.engine.read_checkpoint` returned. It
            is not changed.
        source: Where it is from, for the message.
        revise_keys: Regular expressions and replacements for names, by
            default those that remove the prefix of a wrapped model.
        rows: Gets the weights by those names, and says what rows of them
            belong to which classes, see
            :func:`~mmext.engine.class_rows.class_rows`.

    Returns:
        What was loaded. Entries that do not fit keep their values.

    Raises:
        ValueError: If nothing or hardly anything fits.
    """
    saved = checkpoint.get('state_dict', checkpoint)
    weights = OrderedDict()
    weights._metadata = getattr(saved, '_metadata', OrderedDict())
    for name, value in saved.items():
        if isinstance(value, torch.Tensor):
            for pattern, replacement in revise_keys:
                name = re.sub(pattern, replacement, name)
            weights[name] = value
    num_checkpoint = len(weights)
    class_rows = rows(weights)
    missing, unexpected, mismatched = _fill(model, weights, class_rows)
    # Pre-hooks may have renamed entries, in this copy only.
    known = [name for name in model.state_dict() if _IGNORED not in name]
    report = LoadReport(
        num_model=len(known),
        missing=[name for name in missing if _IGNORED not in name],
        unexpected=[name for name in unexpected if _IGNORED not in name],
        mismatched=mismatched,
        rows=class_rows,
    )
    fewer = max(min(report.num_model, num_checkpoint), 1)
    if report.num_model and report.num_loaded < _MIN_SHARE * fewer:
        raise ValueError(
            f'checkpoint {source!r} is not of this model: loaded {report}; '
            'name the checkpoint that belongs to the config, or the config '
            'that belongs to the checkpoint'
        )
    return report


def check_fits(report: LoadReport, source: str) -> None:
    """Raise ValueError unless a checkpoint is exactly of a model."""
    if not report.is_exact:
        raise ValueError(
            f'checkpoint {source!r} must be of the same model to resume from '
            f'it, loaded {report}; resume with the config it was trained '
            'with, or set load_from (and not resume) to start a new training '
            'from its weights'
        )


def check_complete(report: LoadReport, source: str) -> None:
    """Raise ValueError if weights of the model would stay random."""
    if report.missing or report.mismatched:
        raise ValueError(
            f'checkpoint {source!r} must hold all weights of the model, '
            f'loaded {report}; name the config it was trained with'
        )
