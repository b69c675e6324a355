"""Components that are not registered, and arguments they do not take."""

import difflib
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib import util
from pathlib import Path
from typing import Any

from mmengine import registry as roots
from mmengine.hooks import CheckpointHook, EMAHook
from mmengine.registry import MODELS, Registry
from mmengine.runner import Runner
from torch import nn

from ...config import (
    DELETE,
    SECTIONS,
    ConfigNode,
    find_component,
    join_key,
    key_place,
    swallows,
    takes,
)
from ...findings import Finding, Severity
from .registry import ARG, TYPE, found
from .subject import (
    Subject,
    as_mapping,
    change,
    kind_of,
    names_key,
    plain_name,
    sources,
    sure_name,
)

# Keys that are read, and taken away, by whoever builds the component:
# MMEngine's registries, its runner in a section, MMCV's layers.
_OF_BUILDERS = {'type', '_scope_', '_delete_'}
_OF_RUNNERS = {
    'optim_wrapper': {'constructor', 'paramwise_cfg'},
    'param_scheduler': {'convert_to_iter_based'},
    'default_hooks': {'priority'},
    'custom_hooks': {'priority'},
}
# How deep they are, where it is not in an item of the section.
_DEPTHS = {'optim_wrapper': 1}
# Dicts whose `type` is no component, or that others complete or cut down:
# layers of MMCV, functions that are looked up by name.
_OTHERS = {
    'norm_cfg',
    'conv_cfg',
    'act_cfg',
    'upsample_cfg',
    'nms',
    'nms_cfg',
    'dcn',
    'init_cfg',
}
# Arguments of MMCV 1.x -> where their values belong now, in components that
# take that.
_CLASSES = 'metainfo.classes'
_NEW_PLACES = {
    'classes': _CLASSES,
    'flip_ratio': 'prob',
    'img_scale': 'scale',
    'img_dir': 'data_prefix.img_path',
    'ann_dir': 'data_prefix.seg_map_path',
    'file_client_args': 'backend_args',
}
# Of these, whose values or whose defaults beside them have changed, too.
_OTHER_VALUES = ('img_scale', 'file_client_args')
# What EMAHook takes the average by.
_EMA = 'ExponentialMovingAverage'
# Keys that are misplaced in an optimizer.
_OF_WRAPPERS = ('paramwise_cfg', 'constructor', 'clip_grad')
_OTHER_LOOPS = {
    ('IterBasedTrainLoop', 'max_epochs'): 'remove it, or set '
    "train_cfg.type='EpochBasedTrainLoop' to train by epochs",
    ('EpochBasedTrainLoop', 'max_iters'): 'remove it, or set '
    "train_cfg.type='IterBasedTrainLoop' to train by iterations",
}
_LIKE = 0.75
_LIKE_ARGUMENT = 0.7


def _is_other(section: ConfigNode) -> bool:
    return any(step in _OTHERS for step in section.path) or any(
        str(step).endswith(('norm_cfg', 'act_cfg', 'conv_cfg', 'nms_cfg'))
        for step in section.path
    )


@cache
def _registries() -> tuple[Registry, ...]:
    """All registries that MMEngine has at the root."""
    return tuple(
        registry
        for registry in vars(roots).values()
        if isinstance(registry, Registry)
    )


def _names(registry: Registry, scope: str) -> Iterator[str]:
    """Names of a registry and of all below it, as a config writes them."""
    own = registry.scope in (scope, 'mmengine')
    for name in registry.module_dict:
        yield name if own else f'{registry.scope}.{name}'
    for child in registry.children.values():
        yield from _names(child, scope)


def _is_installed(package: str) -> bool:
    try:
        return util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _is_component_name(kind: Any) -> bool:
    """A name of a class; `type='nms'` and the like are others."""
    return isinstance(kind, str) and plain_name(kind)[:1].isupper()


@TYPE.rule(
    'TYPE001',
    title='a component is not registered',
    severity=Severity.ERROR,
    remedy='correct the name, or import what registers it by custom_imports',
    fix='correct upper and lower case; set default_scope, if there is none '
    'and all names are of one package',
)
def unregistered_type(subject: Subject) -> Iterator[Finding]:
    """Names that no registry knows, in packages that are here."""
    unknown = []
    for section in _unknown(subject):
        if not _is_installed(_package(section)):
            continue
        near = _near_types(section, section.cfg['type'])
        # Only a whole section is surely built by a runner.
        if near or len(section.path) == 1:
            unknown.append((section, near))
    if not subject.top.get('default_scope') and unknown:
        without = _without_scope(unknown)
        if without is not None:
            yield without
            return
    for section, near in unknown:
        kind = section.cfg['type']
        path = (*section.path, 'type')
        near = sorted(near, key=partial(_is_elsewhere, section))
        # One that is only similar may be a class of one's own.
        before, dot, plain = kind.rpartition('.')
        sure = (
            near
            and plain_name(near[0]).casefold() == plain.casefold()
            and not _is_elsewhere(section, near[0])
        )
        yield found(
            f'{kind!r} is in no registry of scope {section.scope!r}',
            path=path,
            remedy=f'set it to {" or ".join(map(repr, near))}, or import '
            'what registers it by custom_imports'
            if near
            else '',
            names=tuple(near),
            options=change(path, f'{before}{dot}{plain_name(near[0])}')
            if sure
            else {},
        )


def _is_elsewhere(section: ConfigNode, name: str) -> bool:
    """Whether a name is of another package than that of a section."""
    package = name.rpartition('.')[0] or section.scope
    return package != _package(section)


def _without_scope(
    unknown: Sequence[tuple[ConfigNode, list[str]]],
) -> Finding | None:
    """One finding for all names of a package, if they lack its prefix."""
    names = [section.cfg['type'] for section, _ in unknown]
    packages = set.intersection(
        *(
            {each.partition('.')[0] for each in near if each.endswith(name)}
            for name, (_, near) in zip((f'.{name}' for name in names), unknown)
        )
    )
    if len(packages) != 1:
        return None
    (package,) = packages
    return found(
        f'there is no default_scope, and {names[0]!r} '
        + (f'with {len(names) - 1} others ' if names[1:] else '')
        + f'is known to {package} only',
        path=(*unknown[0][0].path, 'type'),
        remedy=f"set default_scope = '{package}', or write the names as "
        f"'{package}.{names[0]}'",
        names=tuple(names),
        options={'default_scope': package},
    )


@TYPE.rule(
    'TYPE002',
    title='a component is of a package that is not installed',
    severity=Severity.WARNING,
    remedy='install the package',
)
def missing_package(subject: Subject) -> Iterator[Finding]:
    """Prefixes of packages that are not here."""
    seen = set()
    for section in _unknown(subject):
        kind, package = section.cfg['type'], _package(section)
        if package in seen or _is_installed(package):
            continue
        seen.add(package)
        yield found(
            f'{kind!r} is of the package {package}, which is not installed '
            'here; what it takes is not known',
            path=(*section.path, 'type'),
            remedy=f'install {package} where the training runs',
            names=(package,),
        )


def _unknown(subject: Subject) -> Iterator[ConfigNode]:
    for section in subject.sections:
        kind = section.cfg.get('type')
        if not _is_component_name(kind) or _is_other(section):
            continue
        if section.parent and kind_of(section.parent.cfg).startswith('Albu'):
            # A name of albumentations.
            continue
        if section.path[0] == 'model' and subject.model is not None:
            # It was built, with what a class of it makes of that name.
            continue
        if subject.component(section) is None and (
            find_component(kind, _registries(), section.scope) is None
        ):
            yield section


def _package(section: ConfigNode) -> str:
    """Where the component of a section must come from."""
    kind = section.cfg['type']
    return kind.partition('.')[0] if '.' in kind else section.scope


def _near_types(section: ConfigNode, kind: str) -> list[str]:
    known = {
        name
        for registry in SECTIONS[section.path[0]]
        for name in _names(registry, section.scope)
    }
    # Of two with the same name, the one without a prefix comes last.
    ordered = sorted(known, key=lambda name: ('.' not in name, name))
    plain: dict[str, list[str]] = {}
    for name in ordered:
        plain.setdefault(plain_name(name).casefold(), []).append(name)
    wanted = plain_name(kind)
    same = plain.get(wanted.casefold(), [])
    # In the own package first, or in any with the same letters.
    own = [name for name in same if name.casefold() == kind.casefold()]
    exact = [name for name in same if plain_name(name) == wanted]
    if same:
        return own[:1] if len(own) == 1 else exact or same
    last = {plain_name(name): name for name in ordered}
    near = difflib.get_close_matches(wanted, last, 2, _LIKE)
    return [last[name] for name in near]


@ARG.rule(
    'ARG001',
    title='a component does not take an argument',
    severity=Severity.ERROR,
    remedy='remove the argument, or correct its name',
    fix='correct a name that can only be one of the known ones; remove what '
    'is left over of a base',
)
def unknown_argument(subject: Subject) -> Iterator[Finding]:
    """Keys beside a ``type`` whose class has no such argument."""
    misplaced = {item.place for item in subject.misplaced}
    for section in subject.sections:
        kind = subject.component(section)
        if kind is None or _is_other(section) or _is_layer(kind):
            continue
        outermost = len(section.path) <= _DEPTHS.get(section.path[0], 2)
        known = _OF_RUNNERS.get(section.path[0], ()) if outermost else ()
        refused = [
            key
            for key in section.cfg
            if key not in _OF_BUILDERS
            and _takes(kind, str(key), section.cfg.get('ema_type', _EMA))
            is False
            and key not in known
            and join_key((*section.path, key)) not in misplaced
            and not subject.is_own((*section.path, key))
            and not _is_read_around(subject, section, key)
        ]
        if '_delete_' in section.cfg:
            yield _not_merged(kind, section)
        left = [key for key in refused if _is_left_over(subject, section, key)]
        if left:
            yield _left_over(subject, kind, left, section)
        for key in refused:
            if key not in left:
                yield _no_argument(subject, kind, key, section)


def _takes(kind: Any, key: str, ema_type: Any) -> bool | None:
    """As ``takes``, for what others hand on, too."""
    if inspect.isclass(kind) and issubclass(kind, CheckpointHook):
        # The rest is given to `save_checkpoint` with each checkpoint.
        if key in inspect.signature(Runner.save_checkpoint).parameters:
            return True
        return takes(kind, key) is True
    if kind is EMAHook and takes(kind, key) is None:
        # Given to the average, with what a training starts.
        average = find_component(ema_type, (MODELS,), 'mmengine')
        return None if average is None else takes(average, key)
    return takes(kind, key)


def _not_merged(kind: Any, section: ConfigNode) -> Finding:
    """``_delete_`` where there is nothing to merge with."""
    rest = {k: v for k, v in section.cfg.items() if k != '_delete_'}
    return found(
        f'{kind.__name__} takes no argument _delete_: it is read where a '
        'dict is merged with that of a base; no base has this one, or it is '
        'in a list, which is replaced as a whole',
        path=(*section.path, '_delete_'),
        remedy='remove _delete_',
        options=change(section.path, {'_delete_': True, **rest}),
    )


def _is_left_over(subject: Subject, section: ConfigNode, key: str) -> bool:
    """Whether a key is of a base, and the type is set above it."""
    return subject.is_above(
        join_key((*section.path, 'type')), join_key((*section.path, key))
    )


def _left_over(
    subject: Subject, kind: Any, keys: Sequence[str], section: ConfigNode
) -> Finding:
    """Of a class that a base has in that place."""
    place = join_key(section.path)
    where = key_place(subject.file, f'{place}.type')
    more = [
        key
        for key in section.cfg
        if key not in keys
        and key not in _OF_BUILDERS
        and _is_left_over(subject, section, key)
    ]
    names = ', '.join(keys)
    text = 'remove them' if len(keys) > 1 else 'remove it'
    if more:
        text = f'{", ".join(more)} of the base would go, too'
    return found(
        f'{kind.__name__} takes no argument {names}: left over of a base, '
        'whose dict is merged with this one',
        path=(*section.path, 'type'),
        remedy=f'write {place.rpartition(".")[2]}=dict(_delete_=True, '
        f'type={section.cfg["type"]!r}, ...) in '
        f'{Path(where.file).name}:{where.line}; {text}',
        names=tuple(keys),
        # Both ways are the same then.
        options={}
        if more
        else {join_key((*section.path, key)): DELETE for key in keys},
    )


def _is_read_around(subject: Subject, section: ConfigNode, key: str) -> bool:
    """Whether what a component is in may take an argument away from it."""
    outer = section.parent
    if section.path == ('optim_wrapper', 'optimizer'):
        # Its wrapper has settings of the same names, and takes none away.
        return False
    while outer is not None:
        kind = subject.component(outer)
        if kind is not None and names_key(kind, key):
            return True
        outer = outer.parent
    return False


def _is_layer(kind: Any) -> bool:
    """PyTorch's layers: MMCV's builders complete and cut their arguments."""
    return inspect.isclass(kind) and (
        issubclass(kind, nn.Module) and kind.__module__.startswith('torch.')
    )


# Sections of loops, and what is set in test_cfg of a model instead.
_LOOPS_OF_TESTS = (('val_cfg',), ('test_cfg',))
_OF_TEST_CFG = (
    *('mode', 'crop_size', 'stride', 'rescale', 'score_thr', 'max_per_img'),
    *('nms', 'nms_pre', 'min_bbox_size', 'mask_thr_binary', 'rpn', 'rcnn'),
)


def _no_argument(
    subject: Subject, kind: Any, key: str, section: ConfigNode
) -> Finding:
    path = (*section.path, key)
    known = _arguments(kind)
    sure = sure_name(key, known)
    near = [sure] if sure else []
    near += difflib.get_close_matches(key, known, 1, _LIKE_ARGUMENT)
    options = subject.renamed(path, sure) if sure else {}
    remedy = f'rename it to {near[0]}, or remove it' if near else 'remove it'
    wrapper = subject.top.get('optim_wrapper')
    if section.path == ('optim_wrapper', 'optimizer') and key in _OF_WRAPPERS:
        # One step too far inside.
        remedy = f'set it in optim_wrapper, beside optimizer: {key}=...'
        near, new = (), ('optim_wrapper', key)
        if key not in as_mapping(wrapper):
            options = {**change(path, DELETE), **change(new, section.cfg[key])}
    if section.path in _LOOPS_OF_TESTS and key in _OF_TEST_CFG:
        # The model's settings have the name of the loop's section.
        value = section.cfg[key]
        near, options = (), {}
        remedy = f'set it in the model: model.test_cfg.{key} = {value!r}'
    if (kind.__name__, key) in _OTHER_LOOPS:
        near, remedy = (), _OTHER_LOOPS[kind.__name__, key]
    new = _NEW_PLACES.get(key, '')
    if new.partition('.')[0] in known:
        # Where it was before MMEngine.
        near, remedy = [new], f'it is {new} now'
        free = new.partition('.')[0] not in section.cfg
        value = section.cfg[key]
        options = {}
        listed = new != _CLASSES or isinstance(value, list | tuple)
        if free and listed and key not in _OTHER_VALUES:
            options = change(path, DELETE)
            options |= change((*section.path, *new.split('.')), value)
    return found(
        f'{kind.__name__} takes no argument {key}',
        path=path,
        remedy=remedy,
        names=tuple(near[:1]),
        options=options,
    )


def _arguments(kind: Any) -> list[str]:
    """Names of all arguments of a class and its bases."""
    functions = [kind]
    if inspect.isclass(kind):
        functions = [
            base.__init__ for base in kind.__mro__ if base is not object
        ]
    names: dict[str, None] = {}
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            continue
        names |= dict.fromkeys(parameters)
    return [name for name in names if name != 'self']


@ARG.rule(
    'ARG002',
    title='a component takes an argument, and drops it',
    severity=Severity.WARNING,
    remedy='remove it, or correct its name: nothing reads it',
    fix='correct a name that can only be one of the known ones',
)
def dropped_argument(subject: Subject) -> Iterator[Finding]:
    """What ``**kwargs`` take that nothing asks for."""
    yield from _dropped_checkpoints(subject)
    misplaced = {item.place for item in subject.misplaced}
    for section in subject.sections:
        kind = subject.component(section)
        if not inspect.isclass(kind) or _is_other(section) or _is_layer(kind):
            continue
        for key in section.cfg:
            path = (*section.path, key)
            if (
                key in _OF_BUILDERS
                or key in _OF_RUNNERS.get(section.path[0], ())
                or join_key(path) in misplaced
                or not isinstance(key, str)
                or not swallows(kind, key)
                or subject.is_own(path)
                or names_key(kind, key)
                or _is_read_around(subject, section, key)
            ):
                continue
            sure = sure_name(key, _arguments(kind))
            yield found(
                f'{kind.__name__} takes {key} among **kwargs, which it does '
                'not read',
                path=path,
                severity=Severity.WARNING if sure else Severity.INFO,
                remedy=f'rename it to {sure}' if sure else '',
                names=(sure,) if sure else (),
                options=subject.renamed(path, sure) if sure else {},
            )


def _dropped_checkpoints(subject: Subject) -> Iterator[Finding]:
    """``with_cp`` in a dict without a type, which its module may not read."""
    for section in subject.below('model') if subject.model else ():
        if 'type' in section.cfg or not section.cfg.get('with_cp'):
            continue
        path = (*section.path, 'with_cp')
        modules = list(_modules_on(subject.model, section.path[1:]))
        readers = {type(module) for module in modules}
        readers |= {type(module) for module in modules[-1].modules()}
        if subject.is_own(path) or any(map(_names_with_cp, readers)):
            continue
        yield found(
            f'{join_key(path)} is on, and no class of '
            f'{type(modules[-1]).__name__} reads with_cp: nothing is '
            'checkpointed',
            path=path,
            severity=Severity.WARNING,
            remedy='remove it; mmext.ActivationCheckpointHook in '
            'default_hooks checkpoints modules of any kind',
        )


def _modules_on(model: nn.Module, path: Sequence) -> Iterator[nn.Module]:
    """The model and its modules along a path, as far as they are modules."""
    module: Any = model
    for step in path:
        yield module
        named = isinstance(step, str)
        inner = getattr(module, step, None) if named else None
        if not isinstance(inner, nn.Module):
            return
        module = inner
    yield module


def _names_with_cp(kind: type) -> bool:
    """Whether the code of a class, or of its bases, has that name."""
    code = sources(kind)
    return code is None or any(
        re.search(r'\bwith_cp\b', each) for each in code
    )
