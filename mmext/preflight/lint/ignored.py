"""Settings that another setting puts out of work."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ...utils.config_nodes import place
from .._config_uses import used_names
from .._config_values import BASE, bindings
from .._right_places import RunnerKind
from ..config_places import config_files, key_place
from ..findings import DELETE, Severity
from .keys import reads_key
from .registry import Note, lint_rule
from .subject import SPLITS, Subject, as_mapping, plain_name

__all__ = []

_DDP = (
    '',
    'MMDistributedDataParallel',
    'DistributedDataParallel',
)


@lint_rule(
    'IGN001',
    title='a variable is set after it was used',
    severity=Severity.WARNING,
    remedy='set the keys that were made of it, in the same file',
)
def set_too_late(subject: Subject) -> Iterator[Note]:
    """Variables of a base: bases are read before what inherits them."""
    if len(subject.files) < 2:
        return
    told = {note.path for note in unused_pipeline(subject)}
    for name, value in subject.top.items():
        if reads_key(name) or (name,) in told:
            continue
        where = key_place(subject.file, name)
        below = config_files(where.file)[1:] if where.file else []
        users = subject.users(name)
        before = [each for each in users if each in below]
        if not before or len(before) < len(users):
            continue
        if _value_in(before[0], name) != value:
            yield Note(
                f'{name} is set here, and used only in '
                f'{Path(before[0]).name}, which is inherited and read '
                'before: what was made of it there stays',
                path=(name,),
                names=(before[0],),
            )


def _value_in(file: str, name: str) -> Any:
    """What a file and those that it inherits set a variable to."""
    cfg = Config.fromfile(file, import_custom_modules=False)
    return cfg.to_dict().get(name)


def _is_above(subject: Subject, key: str, other: str) -> bool:
    """Whether a key is set by a file that inherits the one of another key.

    Where a base has a variable and its heir changes what was made of it, the
    variable is only a rest.
    """
    if not subject.file:
        return False
    upper = key_place(subject.file, key).file
    lower = key_place(subject.file, other).file
    return bool(upper) and lower in config_files(upper)[1:]


@lint_rule(
    'IGN002',
    title='the data preprocessor of the model is another one',
    severity=Severity.WARNING,
    remedy='set model.data_preprocessor; that one is used',
)
def two_preprocessors(subject: Subject) -> Iterator[Note]:
    """The top-level one is for models without one of their own."""
    outer = subject.top.get('data_preprocessor')
    inner = as_mapping(subject.top.get('model')).get('data_preprocessor')
    if not isinstance(outer, Mapping) or not isinstance(inner, Mapping):
        return
    differing = [
        key
        for key in outer
        if key not in ('_scope_', 'type')
        and (key not in inner or inner[key] != outer[key])
        and _is_above(
            subject,
            f'data_preprocessor.{key}',
            f'model.data_preprocessor.{key}',
        )
    ]
    if differing:
        yield Note(
            'the model has a data_preprocessor of its own, so '
            f'data_preprocessor.{", ".join(map(str, differing))} at the top '
            'level is not used',
            path=('data_preprocessor', differing[0]),
            names=tuple(map(str, differing)),
            options={
                f'model.data_preprocessor.{key}': outer[key]
                for key in differing
            },
        )


@lint_rule(
    'IGN003',
    title='a model wrapper of its own changes broadcast_buffers',
    severity=Severity.INFO,
    remedy='set model_wrapper_cfg.broadcast_buffers=False to keep what '
    'MMEngine does without a model_wrapper_cfg',
)
def broadcast(subject: Subject) -> Iterator[Note]:
    """PyTorch's default is the contrary of MMEngine's."""
    wrapper = subject.top.get('model_wrapper_cfg')
    plain = subject.right.kind in (RunnerKind.PLAIN, RunnerKind.UNKNOWN)
    if not isinstance(wrapper, Mapping) or not wrapper or not plain:
        return
    kind = plain_name(wrapper.get('type'))
    if kind in _DDP and 'broadcast_buffers' not in wrapper:
        yield Note(
            'model_wrapper_cfg does not say broadcast_buffers, so it is '
            'True; without a model_wrapper_cfg it is False',
            path=('model_wrapper_cfg',),
            options={'model_wrapper_cfg.broadcast_buffers': False},
        )


@lint_rule(
    'IGN004',
    title='a pipeline is in no data set',
    severity=Severity.WARNING,
    remedy='set the pipeline of the data set, too',
)
def unused_pipeline(subject: Subject) -> Iterator[Note]:
    """A ``train_pipeline`` that differs from what is trained with."""
    for split in SPLITS:
        name = f'{split}_pipeline'
        variable = subject.top.get(name)
        loader = as_mapping(subject.top.get(f'{split}_dataloader'))
        if not isinstance(variable, list) or not loader:
            continue
        owners = [
            section
            for section in subject.below(f'{split}_dataloader', 'dataset')
            if isinstance(section.cfg.get('pipeline'), list)
        ]
        if any(each.cfg['pipeline'] == variable for each in owners):
            continue
        if any(
            _is_above(subject, name, place((*each.path, 'pipeline')))
            for each in owners
        ):
            yield Note(
                f'{name} is not what {split}_dataloader.dataset has: it is '
                'a variable, and nothing else',
                path=(name,),
                remedy=f'set {split}_dataloader.dataset.pipeline, too',
            )


@lint_rule(
    'IGN005',
    title='settings of an optimizer wrapper that nobody reads',
    severity=Severity.WARNING,
    remedy='correct the name',
)
def paramwise(subject: Subject) -> Iterator[Note]:
    """Keys of ``paramwise_cfg`` that MMEngine's constructor passes over."""
    wrapper = as_mapping(subject.top.get('optim_wrapper'))
    settings = as_mapping(wrapper.get('paramwise_cfg'))
    constructor = plain_name(wrapper.get('constructor'))
    if constructor not in ('', 'DefaultOptimWrapperConstructor'):
        return
    for key in settings:
        if key not in _PARAMWISE and not str(key).startswith('_'):
            yield Note(
                f'paramwise_cfg.{key} is none of {sorted(_PARAMWISE)}: '
                'nothing reads it',
                path=('optim_wrapper', 'paramwise_cfg', key),
                options={f'optim_wrapper.paramwise_cfg.{key}': DELETE},
            )


@lint_rule(
    'IGN006',
    title='custom_imports takes imports of a base away',
    severity=Severity.WARNING,
    remedy='name the modules of the base, too: lists are replaced as a whole',
)
def lost_imports(subject: Subject) -> Iterator[Note]:
    """Modules that a base imports, and the config does not."""
    own = _imports(subject.top)
    for file in subject.files[1:] if own else ():
        bound = {each.steps[0] for each in bindings(subject.tree_of(file))}
        if 'custom_imports' not in bound:
            continue
        base = Config.fromfile(file, import_custom_modules=False).to_dict()
        lost = [each for each in _imports(base) if each not in own]
        if lost:
            yield Note(
                f'{", ".join(lost)} of {Path(file).name} is not imported: '
                f'custom_imports has {own}',
                path=('custom_imports', 'imports'),
                names=tuple(lost),
                options={'custom_imports.imports': [*lost, *own]},
            )
            return


def _imports(top: Mapping) -> list[str]:
    found = as_mapping(top.get('custom_imports')).get('imports') or []
    return [found] if isinstance(found, str) else list(found)


@lint_rule(
    'IGN007',
    title='a key is set twice in a file',
    severity=Severity.WARNING,
    remedy='make one of both: the second takes the place of the first',
)
def set_twice(subject: Subject) -> Iterator[Note]:
    """Assignments of which the first is lost, and was not used."""
    for file in subject.files:
        tree = subject.tree_of(file)
        uses = used_names(tree)
        lines: dict[str, int] = {}
        for node in tree.body:
            names = _assigned_names(node)
            for name in names:
                first = lines.get(name)
                used = any(
                    each == name and first <= line <= node.end_lineno
                    for each, line in uses
                    if first is not None
                )
                if first is not None and not used and reads_key(name):
                    yield Note(
                        f'{name} is set in line {first} of '
                        f'{Path(file).name}, and again in line '
                        f'{node.lineno}: what the first says is lost',
                        path=(name,),
                        names=(file,),
                    )
                lines[name] = node.lineno


def _assigned_names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [each.id for each in targets if isinstance(each, ast.Name)]
    return [name for name in names if name != BASE]


_PARAMWISE: dict[str, Any] = dict.fromkeys(
    (
        'bias_decay_mult',
        'bias_lr_mult',
        'bypass_duplicate',
        'custom_keys',
        'dcn_offset_lr_mult',
        'dwconv_decay_mult',
        'flat_decay_mult',
        'norm_decay_mult',
    )
)
