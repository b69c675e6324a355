"""Settings that another setting puts out of work."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mmengine.config import Config

from ...config import (
    BASE,
    RunnerKind,
    bindings,
    config_files,
    custom_imports,
    join_key,
    key_location,
    used_names,
)
from ...ddp import STEP_REMEDY, bypassed_methods, loose_parameters
from ...findings import Finding, Severity
from .keys import reads_key
from .registry import IGN, new_finding
from .subject import (
    SPLITS,
    Subject,
    as_mapping,
    kind_of,
    plain_name,
)

_DDP = ('', 'MMDistributedDataParallel', 'DistributedDataParallel')
_CONSTRUCTORS = (
    *('', 'DefaultOptimWrapperConstructor', 'MergedOptimWrapperConstructor'),
)
# What these read of paramwise_cfg.
_PARAMWISE = (
    *('bias_decay_mult', 'bias_lr_mult', 'bypass_duplicate', 'custom_keys'),
    *('dcn_offset_lr_mult', 'dwconv_decay_mult', 'flat_decay_mult'),
    'norm_decay_mult',
)


@IGN.rule(
    'IGN001',
    title='a variable is set after it was used',
    severity=Severity.WARNING,
    remedy='set the keys that were made of it, in the same file',
)
def set_too_late(subject: Subject) -> Iterator[Finding]:
    """Variables of a base: bases are read before what inherits them."""
    if len(subject.files) < 2:
        return
    reported = {finding.key for finding in unused_pipeline(subject)}
    for name, value in subject.top.items():
        if reads_key(name) or name in reported:
            continue
        where = key_location(subject.file, name)
        below = config_files(where.file)[1:] if where.file else []
        users = subject.users(name)
        before = [file for file in users if file in below]
        if not before or len(before) < len(users):
            continue
        cfg = Config.fromfile(before[0], import_custom_modules=False)
        if cfg.to_dict().get(name) != value:
            yield new_finding(
                f'{name} is set here, and used only in '
                f'{Path(before[0]).name}, which is inherited and read '
                'before: what was made of it there stays',
                path=(name,),
                names=(before[0],),
            )


@IGN.rule(
    'IGN002',
    title='the data preprocessor of the model is another one',
    severity=Severity.WARNING,
    remedy='set model.data_preprocessor; that one is used',
    fix='set the values in the model',
)
def two_preprocessors(subject: Subject) -> Iterator[Finding]:
    """The top-level one is for models without one of their own."""
    outer = subject.top.get('data_preprocessor')
    inner = as_mapping(subject.top.get('model')).get('data_preprocessor')
    if not isinstance(outer, Mapping) or not isinstance(inner, Mapping):
        return
    same = kind_of(outer) in ('', kind_of(inner))
    differing = [
        key
        for key in outer
        if key not in ('_scope_', 'type')
        and (key not in inner or inner[key] != outer[key])
        and subject.is_above(
            f'data_preprocessor.{key}',
            f'model.data_preprocessor.{key}',
        )
    ]
    if differing:
        yield new_finding(
            'the model has a data_preprocessor of its own, so '
            f'data_preprocessor.{", ".join(map(str, differing))} at the top '
            'level is not used',
            path=('data_preprocessor', differing[0]),
            names=tuple(map(str, differing)),
            options={
                f'model.data_preprocessor.{key}': outer[key]
                for key in differing
            }
            if same
            else {},
        )


@IGN.rule(
    'IGN003',
    title='a model wrapper of its own changes broadcast_buffers',
    severity=Severity.INFO,
    remedy='set model_wrapper_cfg.broadcast_buffers=False to keep what '
    'MMEngine does without a model_wrapper_cfg',
)
def broadcast(subject: Subject) -> Iterator[Finding]:
    """PyTorch's default is the contrary of MMEngine's."""
    wrapper = subject.top.get('model_wrapper_cfg')
    plain = subject.right.kind in (RunnerKind.PLAIN, RunnerKind.UNKNOWN)
    if not isinstance(wrapper, Mapping) or not wrapper or not plain:
        return
    kind = kind_of(wrapper)
    if kind in _DDP and 'broadcast_buffers' not in wrapper:
        yield new_finding(
            'model_wrapper_cfg does not say broadcast_buffers, so it is '
            'True; without a model_wrapper_cfg it is False',
            path=('model_wrapper_cfg',),
        )


@IGN.rule(
    'IGN004',
    title='a pipeline is in no data set',
    severity=Severity.WARNING,
    remedy='set the pipeline of the data set, too',
)
def unused_pipeline(subject: Subject) -> Iterator[Finding]:
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
        if any(owner.cfg['pipeline'] == variable for owner in owners):
            continue
        if any(
            subject.is_above(name, join_key((*owner.path, 'pipeline')))
            for owner in owners
        ):
            yield new_finding(
                f'{name} is not what {split}_dataloader.dataset has: it is '
                'a variable, and nothing else',
                path=(name,),
                remedy=f'set {split}_dataloader.dataset.pipeline, too',
            )


@IGN.rule(
    'IGN005',
    title='settings of an optimizer wrapper that nobody reads',
    severity=Severity.WARNING,
    remedy='correct the name, or set the constructor that reads it',
    fix='correct a name that can only be one of the known ones',
)
def paramwise(subject: Subject) -> Iterator[Finding]:
    """Keys of ``paramwise_cfg`` that MMEngine's constructor passes over."""
    wrapper = as_mapping(subject.top.get('optim_wrapper'))
    settings = as_mapping(wrapper.get('paramwise_cfg'))
    constructor = plain_name(wrapper.get('constructor'))
    if constructor not in _CONSTRUCTORS:
        return
    known = _PARAMWISE
    if constructor == 'MergedOptimWrapperConstructor':
        known += ('layer_decay_rate',)
    at = ('optim_wrapper', 'paramwise_cfg')
    for key, path, sure in subject.unread(settings, at, known):
        yield new_finding(
            f'paramwise_cfg.{key} is none of {list(known)}: nothing reads it',
            path=path,
            **subject.renaming(path, sure),
        )


@IGN.rule(
    'IGN006',
    title='custom_imports takes imports of a base away',
    severity=Severity.WARNING,
    remedy='name the modules of the base, too: lists are replaced as a whole',
    fix='add the imports of the base, where a component needs them',
)
def lost_imports(subject: Subject) -> Iterator[Finding]:
    """Modules that a base imports, and the config does not."""
    own = custom_imports(subject.top)
    for file in subject.files[1:] if own else ():
        bound = {
            binding.steps[0] for binding in bindings(subject.tree_of(file))
        }
        if 'custom_imports' not in bound:
            continue
        base = Config.fromfile(file, import_custom_modules=False).to_dict()
        lost = [module for module in custom_imports(base) if module not in own]
        if lost:
            needed = _is_needed(subject, lost)
            yield new_finding(
                f'{", ".join(lost)} of {Path(file).name} is not imported: '
                f'custom_imports has {own}',
                path=('custom_imports', 'imports'),
                names=tuple(lost),
                # Others may register the same names once more.
                severity=Severity.WARNING if needed else Severity.INFO,
                options={'custom_imports.imports': [*lost, *own]}
                if needed
                else {},
            )
            return


def _is_needed(subject: Subject, modules: Sequence[str]) -> bool:
    """Whether a component is of some modules, or unknown."""
    for section in subject.sections:
        kind = section.cfg.get('type')
        if not isinstance(kind, str) or not plain_name(kind)[:1].isupper():
            continue
        component = subject.component(section)
        where = f'{getattr(component, "__module__", "")}.'
        if component is None or any(
            where.startswith(f'{module}.') for module in modules
        ):
            return True
    return False


@IGN.rule(
    'IGN007',
    title='a key is set twice in a file',
    severity=Severity.WARNING,
    remedy='make one of both: the second takes the place of the first',
)
def set_twice(subject: Subject) -> Iterator[Finding]:
    """Assignments of which the first is lost, and was not used."""
    for file in subject.files:
        tree = subject.tree_of(file)
        uses = used_names(tree)
        lines: dict[str, int] = {}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in (getattr(target, 'id', BASE) for target in targets):
                if name == BASE:
                    continue
                first = lines.get(name)
                used = any(
                    used_name == name and first <= line <= node.end_lineno
                    for used_name, line in uses
                    if first is not None
                )
                if first is not None and not used and reads_key(name):
                    yield new_finding(
                        f'{name} is set in line {first} of '
                        f'{Path(file).name}, and again in line '
                        f'{node.lineno}: what the first says is lost',
                        path=(name,),
                        names=(file,),
                    )
                lines[name] = node.lineno


@IGN.rule(
    'IGN008',
    symptoms=("'MMDistributedDataParallel' object has no attribute",),
    title='the model wrapper passes over a method or a parameter of the model',
    severity=Severity.ERROR,
    remedy=STEP_REMEDY,
)
def passed_over(subject: Subject) -> Iterator[Finding]:
    """What trains in one process trains something else in several."""
    model, wrapper = subject.model, subject.right.wrapper_class
    section = next(subject.below('model'), None)
    if model is None and section is not None:
        # Its class, if that is known.
        model = subject.component(section)
    if subject.is_flexible or model is None or subject.world == 1:
        return
    kind = model if isinstance(model, type) else type(model)
    names = bypassed_methods(model, wrapper)
    if names:
        yield new_finding(
            f'{kind.__name__} has a method of its own, {" and ".join(names)}, '
            f'which {wrapper.__name__} does not call in a training of several '
            'processes',
            path=('model', 'type'),
            names=names,
        )
    loose = () if model is kind else loose_parameters(model, wrapper)
    if loose:
        yield new_finding(
            f'{wrapper.__name__} averages the gradients of submodules only; '
            f'trainable parameters of {kind.__name__} itself would differ '
            f'between processes: {", ".join(loose)}',
            path=('model_wrapper_cfg', 'type'),
            remedy='put them into a submodule whose forward uses them',
            names=tuple(loose),
        )
