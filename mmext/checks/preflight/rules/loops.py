"""Loops with their parts and hooks, and what happens too late or never."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mmengine.config import Config
from mmengine.hooks import EMAHook

from ....utils.training import rate_factor
from ...config import join_key, key_location
from ...findings import Finding, Severity
from ..build import hook_configs
from .registry import HOOK, LOOP, new_finding
from .subject import (
    SPLITS,
    Subject,
    as_mapping,
    kind_of,
    path_of,
    sure_name,
)

_EPOCHS = ('EpochBasedTrainLoop', 'ResumableEpochBasedTrainLoop')
# So many can only be iterations.
_MANY_EPOCHS = 1000
_BASE = 'base_batch_size'
# '8xb2' in the name of a config: of 8 processes, each with 2 images.
_IMAGES_IN_NAME = re.compile(r'(?<![a-z0-9])(\d+)xb(\d+)(?![a-z0-9])')
# Factors by which learning rates are the same, and far from each other.
_SAME_RATE = 1.01
_FAR_RATE = 3.99
_ITERS = ('IterBasedTrainLoop', 'ResumableIterBasedTrainLoop')


class TrainingLength(NamedTuple):
    """The end of a training, in epochs or else in iterations."""

    by_epoch: bool
    total: int

    @property
    def unit(self) -> str:
        """What is counted, in the plural."""
        return 'epochs' if self.by_epoch else 'iterations'


def training_length(subject: Subject) -> TrainingLength | None:
    """How long a training is; None without one of a known loop."""
    loop = as_mapping(subject.top.get('train_cfg'))
    kind = kind_of(loop)
    by_epoch = loop.get('by_epoch')
    if kind in _EPOCHS:
        by_epoch = True
    elif kind in _ITERS:
        by_epoch = False
    elif kind or not isinstance(by_epoch, bool):
        return None
    total = loop.get('max_epochs' if by_epoch else 'max_iters')
    if not isinstance(total, int) or isinstance(total, bool) or total < 1:
        return None
    return TrainingLength(by_epoch, total)


# Hooks that do something once -> the argument that says when, and whether it
# is counted from the end.
_SWITCHES = {
    'YOLOXModeSwitchHook': ('num_last_epochs', True),
    'PipelineSwitchHook': ('switch_epoch', False),
}


@LOOP.rule(
    'LOOP001',
    symptoms=('should be either all None or not None',),
    title='a split is there in part',
    severity=Severity.ERROR,
    remedy='set all three, or all three to None',
)
def incomplete_split(subject: Subject) -> Iterator[Finding]:
    """Data loader, loop and evaluator (or optimizer) go together."""
    if not subject.top.get('model'):
        # A part of a config, for others to inherit.
        return
    loaders = ('train_dataloader', 'test_dataloader')
    scrap = not any(subject.top.get(name) for name in loaders)
    for split in SPLITS:
        third = 'optim_wrapper' if split == 'train' else f'{split}_evaluator'
        parts = (f'{split}_dataloader', f'{split}_cfg', third)
        missing = [name for name in parts if subject.top.get(name) is None]
        there = [name for name in parts if name not in missing]
        if missing and there and not scrap:
            yield new_finding(
                f'{" and ".join(there)} must come with '
                f'{" and ".join(missing)}, which the config lacks; the '
                'runner refuses to start',
                path=(there[0],),
                names=tuple(missing),
            )


@LOOP.rule(
    'LOOP002',
    title='the training is never validated',
    severity=Severity.WARNING,
    remedy='set train_cfg.val_begin below the end of the training, or '
    'remove it',
)
def late_validation(subject: Subject) -> Iterator[Finding]:
    """First validation after the end; the last step is always validated."""
    return _after_the_end(subject, 'val_begin')


def _after_the_end(subject: Subject, key: str) -> Iterator[Finding]:
    length = training_length(subject)
    if length is None or subject.top.get('val_cfg') is None:
        return
    number = subject.top['train_cfg'].get(key, 1)
    if isinstance(number, int) and number > length.total:
        yield new_finding(
            f'{key} is {number}, and the training ends at {length.total} '
            f'{length.unit}',
            path=('train_cfg', key),
        )


@LOOP.rule(
    'LOOP003',
    title='the training is validated at its end only',
    severity=Severity.INFO,
    remedy='set train_cfg.val_interval below the end of the training',
)
def rare_validation(subject: Subject) -> Iterator[Finding]:
    """An interval that is longer than the training."""
    return _after_the_end(subject, 'val_interval')


@LOOP.rule(
    'LOOP004',
    title='checkpoints are written at the end only',
    severity=Severity.WARNING,
    remedy='set interval below the end of the training, and by_epoch to '
    'what it counts',
    fix='set by_epoch=False where interval can only be of iterations',
)
def rare_checkpoints(subject: Subject) -> Iterator[Finding]:
    """Intervals that are too long, or counted in epochs that never end."""
    length = training_length(subject)
    if length is None:
        return
    val = as_mapping(subject.top['train_cfg']).get('val_interval')
    for section in subject.sections:
        path, hook = section.path, section.cfg
        interval = hook.get('interval', -1)
        by_epoch = bool(hook.get('by_epoch', True))
        if (
            path[0] not in ('default_hooks', 'custom_hooks')
            or 'Checkpoint' not in kind_of(hook)
            or not isinstance(interval, int)
            or interval <= 0
        ):
            continue
        if by_epoch and not length.by_epoch:
            yield new_finding(
                f'checkpoints are written each {interval} epochs, and '
                f'{length.total} iterations are one epoch to MMEngine',
                path=path,
                options={join_key((*path, 'by_epoch')): False}
                if interval in (val, max(interval, _MANY_EPOCHS))
                else {},
            )
        elif by_epoch == length.by_epoch and interval > length.total:
            yield new_finding(
                f'checkpoints are written each {interval} {length.unit}, '
                f'and the training ends at {length.total}',
                path=(*path, 'interval'),
                severity=Severity.INFO,
            )


@LOOP.rule(
    'LOOP005',
    title='a hook switches when the training is over, or from its begin',
    severity=Severity.WARNING,
    remedy='set when it switches between the begin and the end',
)
def late_switch(subject: Subject) -> Iterator[Finding]:
    """Hooks that change the pipeline, or the model, at an epoch."""
    length = training_length(subject)
    if length is None or not length.by_epoch:
        return
    for section in subject.below('custom_hooks'):
        name = kind_of(section.cfg)
        key, from_end = _SWITCHES.get(name, ('', False))
        when = section.cfg.get(key)
        if not isinstance(when, int):
            continue
        at = length.total - when if from_end else when
        if at >= length.total or at < 0:
            effect = 'never switches' if at >= 0 else 'is on from the begin'
            yield new_finding(
                f'{name} has {key}={when} of {length.total} epochs: it '
                f'{effect}',
                path=(*section.path, key),
            )


class _Rate(NamedTuple):
    """A learning rate, the images per step that it is for, and where."""

    value: float
    images: int
    file: str


@LOOP.rule(
    'LOOP006',
    symptoms=('= 0.000',),
    title='the learning rate is for another number of images per step',
    severity=Severity.WARNING,
    remedy='scale the learning rate with the number of images per step, or '
    'set auto_scale_lr.enable=True',
)
def other_batch_size(subject: Subject) -> Iterator[Finding]:
    """The rate of what is inherited, scaled to this training, against it."""
    setting = as_mapping(subject.top.get('auto_scale_lr'))
    loader = as_mapping(subject.top.get('train_dataloader'))
    wrapper = as_mapping(subject.top.get('optim_wrapper'))
    batch = loader.get('batch_size')
    steps = wrapper.get('accumulative_counts', 1)
    if (
        setting.get('enable')
        or not isinstance(batch, int)
        or not isinstance(steps, int)
        or not subject.world
    ):
        return
    images = batch * subject.world * steps
    optimizer = as_mapping(wrapper.get('optimizer'))
    rate, lr = _reference_rate(subject), optimizer.get('lr')
    if rate is None or images < 1 or not isinstance(lr, int | float):
        return
    kind, ratio = str(optimizer.get('type')), images / rate.images
    scaled = rate.value * rate_factor(ratio, kind, setting.get('rule'))
    off = max(lr / scaled, scaled / lr) if lr > 0 else 1.0
    # A smaller one is what a fine-tuning may be given.
    meant = lr < scaled and lr != rate.value
    if off > _SAME_RATE and not meant:
        more = 'large' if lr > scaled else 'small'
        far = off > _FAR_RATE
        name = Path(rate.file).name
        yield new_finding(
            f'a step has {images} images ({batch} of {subject.world} '
            f'processes), and the learning rate {rate.value:g}'
            f'{f" of {name}" if name else ""} is for {rate.images}: scaled '
            f'to them it is {scaled:.6g}'
            + (f', and lr={lr:g} is {off:.3g} times as {more}' if far else ''),
            path=('auto_scale_lr', _BASE)
            if _BASE in setting
            else ('optim_wrapper', 'optimizer', 'lr'),
            severity=Severity.WARNING if far else Severity.INFO,
            remedy=f'set optim_wrapper.optimizer.lr={scaled:.6g}, or '
            f'accumulative_counts, so that a step has {rate.images} images'
            if far
            else '',
        )


def _reference_rate(subject: Subject) -> _Rate | None:
    """The learning rate from which that of a config is to be scaled.

    It is that of the config that is inherited, without the files of which
    such are made: of a host, it was tried. Its name, 8xb2, or else
    base_batch_size says for how many images.
    """
    own = _rate_in(subject.top, subject.file)
    below = [
        file
        for file in subject.files[1:]
        if not {'_base_', 'schedules'} & set(Path(file).parts[-3:])
    ]
    said = key_location(subject.file, f'auto_scale_lr.{_BASE}').file
    if not below or said == subject.files[0]:
        # Made of such files, or it says itself for how many images it is.
        return own
    top = Config.fromfile(below[0], import_custom_modules=False).to_dict()
    kinds = {
        as_mapping(as_mapping(cfg.get('optim_wrapper')).get('optimizer')).get(
            'type'
        )
        for cfg in (top, subject.top)
    }
    return _rate_in(top, below[0]) if len(kinds) == 1 else None


def _rate_in(top: Mapping, file: str) -> _Rate | None:
    """What a config and its name say; None if it is not known."""
    wrapper = as_mapping(top.get('optim_wrapper'))
    lr = as_mapping(wrapper.get('optimizer')).get('lr')
    named = _IMAGES_IN_NAME.search(Path(file).stem)
    images = as_mapping(top.get('auto_scale_lr')).get(_BASE)
    batch = as_mapping(top.get('train_dataloader')).get('batch_size')
    if named and int(named[2]) == batch:
        steps = wrapper.get('accumulative_counts', 1)
        images = int(named[1]) * int(named[2]) * steps
    known = isinstance(images, int) and isinstance(lr, int | float)
    return _Rate(lr, images, file) if known and images and lr > 0 else None


@LOOP.rule(
    'LOOP007',
    symptoms=('Lack of `base_batch_size` in `auto_scale_lr`',),
    title='the learning rate cannot be scaled',
    severity=Severity.ERROR,
    remedy='set auto_scale_lr.base_batch_size to the number of images per '
    'step that the learning rate is for',
    fix='correct a misspelt base_batch_size',
)
def no_base_batch_size(subject: Subject) -> Iterator[Finding]:
    """``auto_scale_lr`` without the number that it scales from."""
    setting = as_mapping(subject.top.get('auto_scale_lr'))
    base = setting.get(_BASE)
    good = isinstance(base, int | float) and base > 0
    if not setting or good or not setting.get('enable', False):
        return
    path: tuple[str, ...] = ('auto_scale_lr',)
    options = {}
    for key in setting:
        if _BASE not in setting and sure_name(str(key), [_BASE]):
            path = (*path, key)
            options = subject.renamed(path, _BASE)
    yield new_finding(
        'auto_scale_lr is enabled, and its base_batch_size is '
        + (f'{base!r}' if _BASE in setting else 'missing')
        + ': the training ends when it starts',
        path=(*path, _BASE) if _BASE in setting else path,
        options=options,
    )


_ONCE = ('CheckpointHook', 'EMAHook', 'ParamSchedulerHook', 'LoggerHook')


@HOOK.rule(
    'HOOK001',
    title='hooks have the wrong form',
    severity=Severity.ERROR,
    remedy='default_hooks is a dict of hooks by name, custom_hooks a list of '
    'hooks; each is a dict with a type',
    fix='put a single hook into a list',
)
def wrong_form(subject: Subject) -> Iterator[Finding]:
    """Lists for dicts, dicts for lists, and hooks without a type."""
    default = subject.top.get('default_hooks')
    if default is not None and not isinstance(default, Mapping):
        yield new_finding(
            'default_hooks must be a dict of hooks by name, got '
            f'{type(default).__name__}',
            path=('default_hooks',),
        )
    custom = subject.top.get('custom_hooks')
    for path, hook in hook_configs(subject.top):
        # Objects are taken; None takes a hook of default_hooks away.
        plain = isinstance(hook, Mapping | list | str)
        none = hook is None and path[0] == 'custom_hooks'
        if none or (plain and 'type' not in as_mapping(hook)):
            yield new_finding(
                f'{join_key(path)} must be a dict with a type, got {hook!r}',
                path=path,
            )
    if custom is not None and not isinstance(custom, list):
        yield new_finding(
            f'custom_hooks must be a list, got {type(custom).__name__}',
            path=('custom_hooks',),
            options={'custom_hooks': [custom]}
            if isinstance(custom, Mapping) and 'type' in custom
            else {},
        )


@HOOK.rule(
    'HOOK002',
    title='a hook is there twice',
    severity=Severity.WARNING,
    remedy='change the one of default_hooks instead of adding another',
)
def twice(subject: Subject) -> Iterator[Finding]:
    """Hooks of which a runner has one, in both sections."""
    kinds: Counter[str] = Counter()
    for path, hook in hook_configs(subject.top):
        kind = kind_of(hook)
        kinds[kind] += 1
        again = path[0] == 'custom_hooks' and kinds[kind] > 1
        if kind in _ONCE and again:
            yield new_finding(
                f'{kind} is there {kinds[kind]} times', path=path
            )


@HOOK.rule(
    'HOOK003',
    symptoms=('should be smaller than or equal to runner.max_epochs',),
    title='the moving average never begins',
    severity=Severity.ERROR,
    remedy='set one of begin_epoch and begin_iter, below the end of the '
    'training',
)
def late_average(subject: Subject) -> Iterator[Finding]:
    """MMEngine refuses such an EMAHook when the training starts."""
    length = training_length(subject)
    for section in subject.sections:
        kind = subject.component(section)
        if getattr(kind, 'before_train', None) is not EMAHook.before_train:
            continue
        name = kind.__name__
        epoch, step = (
            subject.setting(section, key) or 0
            for key in ('begin_epoch', 'begin_iter')
        )
        if epoch and step:
            yield new_finding(
                f'{name} has begin_epoch={epoch} and begin_iter={step}, of '
                'which one may be set',
                path=section.path,
            )
            continue
        key, begin = ('begin_epoch', epoch) if epoch else ('begin_iter', step)
        if length is None or not isinstance(begin, int):
            continue
        if epoch and not length.by_epoch and begin > 1:
            yield new_finding(
                f'{name} has {key}={begin}, and {length.total} iterations '
                'are one epoch to MMEngine',
                path=path_of(section, key),
                remedy='set begin_iter, below the end of the training, in '
                'place of begin_epoch',
            )
        elif length.by_epoch == bool(epoch) and begin > length.total:
            yield new_finding(
                f'{name} has {key}={begin}, and the training ends at '
                f'{length.total} {length.unit}',
                path=path_of(section, key),
            )
