"""Components that are not registered, and arguments they do not take."""

import difflib
import inspect
import re
from collections.abc import Iterator, Sequence
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
    key_location,
    swallows,
    takes,
)
from ...findings import Finding, Severity
from .registry import ARG, TYPE, new_finding
from .subject import (
    Subject,
    arguments_of,
    as_mapping,
    change,
    is_kind,
    kind_of,
    names_key,
    package_of,
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
# layers of MMCV, functions that are looked up by name. And the ends of such.
_OTHERS = {'upsample_cfg', 'nms', 'dcn', 'init_cfg'}
_ENDS_OF_OTHERS = ('norm_cfg', 'act_cfg', 'conv_cfg', 'nms_cfg')
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
_PACKED = (
    'PackDetInputs or PackSegInputs alone as the last step of the pipeline'
)
# Names of MMCV 1.x, and of what was built on it -> what does the same now.
_FORMER = {
    '(Dist)?EvalHook': 'val_evaluator, and train_cfg.val_interval for '
    'interval',
    'TextLoggerHook': "default_hooks.logger=dict(type='LoggerHook')",
    r'\w+LoggerHook|MM(Det|Seg)WandbHook': 'a back end in '
    'visualizer.vis_backends: TensorboardVisBackend, WandbVisBackend, ...',
    '(Dist)?OptimizerHook': 'optim_wrapper, with clip_grad for grad_clip',
    'GradientCumulativeOptimizerHook': 'optim_wrapper.accumulative_counts',
    r'\w*Fp16OptimizerHook': "optim_wrapper.type='AmpOptimWrapper'",
    r'\w*LrUpdaterHook': 'param_scheduler: LinearLR for the warm-up, then '
    'MultiStepLR, CosineAnnealingLR, PolyLR, ...',
    r'\w*MomentumUpdaterHook': 'param_scheduler: MultiStepMomentum, ...',
    r'(Exp|Linear)MomentumEMAHook': "EMAHook, with ema_type='ExpMomentumEMA' "
    'for what rises with the steps',
    'SyncRandomSizeHook': 'BatchSyncRandomResize in '
    'model.data_preprocessor.batch_augments',
    'DefaultFormatBundle': _PACKED,
    'Collect': _PACKED,
    'CustomDataset': 'BaseDetDataset or BaseSegDataset',
    'DefaultOptimizerConstructor': 'DefaultOptimWrapperConstructor',
    r'(Distributed)?GroupSampler': 'DefaultSampler, and '
    "batch_sampler=dict(type='AspectRatioBatchSampler')",
    r'(Epoch|Iter)BasedRunner': 'EpochBasedTrainLoop or IterBasedTrainLoop '
    'as train_cfg.type',
}


def _is_other(section: ConfigNode) -> bool:
    return any(
        step in _OTHERS or str(step).endswith(_ENDS_OF_OTHERS)
        for step in section.path
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


@TYPE.rule(
    'TYPE001',
    symptoms=(
        'is not in the',
        'registry. Please check whether the value of',
    ),
    title='a component is not registered',
    severity=Severity.ERROR,
    remedy='correct the name, or import what registers it by custom_imports',
    fix='correct upper and lower case; set default_scope, if there is none '
    'and all names are of one package',
)
def unregistered_type(subject: Subject) -> Iterator[Finding]:
    """Names that no registry knows, in packages that are here."""
    unknown = []
    for section, package in _unknown(subject):
        if not _is_installed(package):
            continue
        if former := _former(section):
            yield former
            continue
        near = _near_types(section, section.cfg['type'])
        # Only a whole section is surely built by a runner.
        if near or len(section.path) == 1:
            unknown.append((section, package, near))
    if not subject.top.get('default_scope') and unknown:
        without = _without_scope(unknown)
        if without is not None:
            yield without
            return
    for section, package, near in unknown:
        kind = section.cfg['type']
        path = (*section.path, 'type')
        packages = {
            name: name.rpartition('.')[0] or section.scope for name in near
        }
        near = sorted(near, key=lambda name: packages[name] != package)
        # One that is only similar may be a class of one's own.
        before, dot, plain = kind.rpartition('.')
        sure = (
            near
            and plain_name(near[0]).casefold() == plain.casefold()
            and packages[near[0]] == package
        )
        yield new_finding(
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


def _former(section: ConfigNode) -> Finding | None:
    """One for a name of MMCV 1.x, wherever a runner may build it."""
    kind = section.cfg['type']
    for name, now in _FORMER.items():
        if re.fullmatch(name, plain_name(kind)):
            return new_finding(
                f'{kind!r} is of MMCV 1.x, and in no registry now',
                path=(*section.path, 'type'),
                remedy=f'set {now}, and remove {plain_name(kind)}',
            )
    return None


def _without_scope(
    unknown: Sequence[tuple[ConfigNode, str, list[str]]],
) -> Finding | None:
    """One finding for all names of a package, if they lack its prefix."""
    names = [section.cfg['type'] for section, _, _ in unknown]
    packages = set.intersection(
        *(
            {n.partition('.')[0] for n in near if n.endswith(name)}
            for name, (*_, near) in zip(
                (f'.{name}' for name in names), unknown
            )
        )
    )
    if len(packages) != 1:
        return None
    (package,) = packages
    return new_finding(
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
    for section, package in _unknown(subject):
        if package in seen or _is_installed(package):
            continue
        seen.add(package)
        yield new_finding(
            f'{section.cfg["type"]!r} is of the package {package}, which is '
            'not installed here; what it takes is not known',
            path=(*section.path, 'type'),
            remedy=f'install {package} where the training runs',
            names=(package,),
        )


def _unknown(subject: Subject) -> Iterator[tuple[ConfigNode, str]]:
    """Sections whose component is not found, and where it must come from."""
    everywhere = tuple(
        registry
        for registry in vars(roots).values()
        if isinstance(registry, Registry)
    )
    for section in subject.sections:
        kind = section.cfg.get('type')
        # `type='nms'` and the like are no classes.
        named = isinstance(kind, str) and plain_name(kind)[:1].isupper()
        if not named or _is_other(section):
            continue
        if section.parent and kind_of(section.parent.cfg).startswith('Albu'):
            # A name of albumentations.
            continue
        if section.path[0] == 'model' and subject.model is not None:
            # It was built, with what a class of it makes of that name.
            continue
        if subject.component(section) is None and (
            find_component(kind, everywhere, section.scope) is None
        ):
            own = kind.partition('.')[0] if '.' in kind else section.scope
            yield section, own


def _near_types(section: ConfigNode, kind: str) -> list[str]:
    known = {
        name
        for registry in SECTIONS[section.path[0]]
        for name in _names(registry, section.scope)
    }
    # Of two with the same name, the one without a prefix comes last.
    ordered = sorted(known, key=lambda name: ('.' not in name, name))
    wanted = plain_name(kind)
    same = [
        name
        for name in ordered
        if plain_name(name).casefold() == wanted.casefold()
    ]
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
    symptoms=('got an unexpected keyword argument',),
    title='a component does not take an argument',
    severity=Severity.ERROR,
    remedy='remove the argument, or correct its name',
    fix='correct a name that can only be one of the known ones; remove what '
    'is left over of a base',
)
def unknown_argument(subject: Subject) -> Iterator[Finding]:
    """Keys beside a ``type`` whose class has no such argument."""
    for section, kind in _components(subject):
        average = section.cfg.get('ema_type', 'ExponentialMovingAverage')
        refused = [
            key
            for key in section.cfg
            if _takes(kind, str(key), average) is False
            and _is_for_component(subject, section, key)
        ]
        if '_delete_' in section.cfg:
            yield _not_merged(kind, section)
        # Of a base, whose type is set anew above it.
        left = [key for key in refused if _is_left_over(subject, section, key)]
        if left:
            yield _left_over(subject, kind, left, section)
        for key in refused:
            if key not in left:
                yield _no_argument(subject, kind, key, section)


def _components(subject: Subject) -> Iterator[tuple[ConfigNode, Any]]:
    """Sections whose component gets its arguments as the config has them."""
    for section in subject.sections:
        kind = subject.component(section)
        # MMCV's builders complete and cut the arguments of PyTorch's layers.
        layer = is_kind(kind, nn.Module) and package_of(kind) == 'torch'
        if kind is not None and not layer and not _is_other(section):
            yield section, kind


def _is_for_component(subject: Subject, section: ConfigNode, key: Any) -> bool:
    """Whether nobody but the component of a section can read a key of it."""
    path = (*section.path, key)
    outermost = len(section.path) <= _DEPTHS.get(section.path[0], 2)
    if key in _OF_BUILDERS or subject.is_own(path):
        return False
    if outermost and key in _OF_RUNNERS.get(section.path[0], ()):
        return False
    if join_key(path) in {item.location for item in subject.misplaced}:
        return False
    outer = section.parent
    if section.path == ('optim_wrapper', 'optimizer'):
        # Its wrapper has settings of the same names, and takes none away.
        return True
    while outer is not None:
        # What a component is in may take an argument away from it.
        kind = subject.component(outer)
        if kind is not None and names_key(kind, key):
            return False
        outer = outer.parent
    return True


def _takes(kind: Any, key: str, ema_type: Any) -> bool | None:
    """As ``takes``, for what others hand on, too."""
    if is_kind(kind, CheckpointHook):
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
    return new_finding(
        f'{kind.__name__} takes no argument _delete_: it is read where a '
        'dict is merged with that of a base; no base has this one, or it is '
        'in a list, which is replaced as a whole',
        path=(*section.path, '_delete_'),
        remedy='remove _delete_',
        options=change(section.path, {'_delete_': True, **rest}),
    )


def _is_left_over(subject: Subject, section: ConfigNode, key: str) -> bool:
    return subject.is_above(
        join_key((*section.path, 'type')), join_key((*section.path, key))
    )


def _left_over(
    subject: Subject, kind: Any, keys: Sequence[str], section: ConfigNode
) -> Finding:
    """Of a class that a base has in that location."""
    location = join_key(section.path)
    where = key_location(subject.file, f'{location}.type')
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
    return new_finding(
        f'{kind.__name__} takes no argument {names}: left over of a base, '
        'whose dict is merged with this one',
        path=(*section.path, 'type'),
        remedy=f'write {location.rpartition(".")[2]}=dict(_delete_=True, '
        f'type={section.cfg["type"]!r}, ...) in '
        f'{Path(where.file).name}:{where.line}; {text}',
        names=tuple(keys),
        # Both ways are the same then.
        options={}
        if more
        else {join_key((*section.path, key)): DELETE for key in keys},
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
    known = arguments_of(kind)
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
    return new_finding(
        f'{kind.__name__} takes no argument {key}',
        path=path,
        remedy=remedy,
        names=tuple(near[:1]),
        options=options,
    )


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
    for section, kind in _components(subject):
        for key in section.cfg if inspect.isclass(kind) else ():
            path = (*section.path, key)
            if (
                not isinstance(key, str)
                or not swallows(kind, key)
                or names_key(kind, key)
                or not _is_for_component(subject, section, key)
            ):
                continue
            sure = sure_name(key, arguments_of(kind))
            yield new_finding(
                f'{kind.__name__} takes {key} among **kwargs, which it does '
                'not read',
                path=path,
                severity=Severity.WARNING if sure else Severity.INFO,
                **subject.renaming(path, sure),
            )


def _dropped_checkpoints(subject: Subject) -> Iterator[Finding]:
    """``with_cp`` in a dict without a type, which its module may not read."""
    for section in subject.below('model') if subject.model else ():
        if 'type' in section.cfg or not section.cfg.get('with_cp'):
            continue
        path = (*section.path, 'with_cp')
        # As far as the path leads to modules.
        module, readers = subject.model, set()
        for step in section.path[1:]:
            readers.add(type(module))
            inner = getattr(module, str(step), None)
            if not isinstance(inner, nn.Module):
                break
            module = inner
        readers |= {type(inner) for inner in module.modules()}
        codes = map(sources, readers)
        if subject.is_own(path) or any(
            code is None or re.search(r'\bwith_cp\b', ''.join(code))
            for code in codes
        ):
            continue
        yield new_finding(
            f'{join_key(path)} is on, and no class of '
            f'{type(module).__name__} reads with_cp: nothing is checkpointed',
            path=path,
            severity=Severity.WARNING,
            remedy='remove it; mmext.ActivationCheckpointHook in '
            'default_hooks checkpoints modules of any kind',
        )
