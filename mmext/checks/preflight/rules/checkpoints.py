"""Weights that a config names and that cannot be loaded."""

import difflib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import torch
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

from ....utils.archive import DamagedFileError, check_archive
from ....utils.broken_libraries import BrokenLibraryError
from ....utils.safe_load import (
    foreign_names,
    is_pretrained,
    is_trusted,
    load_torch,
)
from ...config import DELETE, ConfigNode, copy_tree, join_key, walk_dicts
from ...findings import ErrorCatcher, Finding, Severity
from ..sandbox import no_network, seeded
from .registry import CKPT, count_of, new_finding
from .subject import (
    Subject,
    arguments_of,
    as_mapping,
    base_names,
    change,
    kind_of,
    package_of,
    path_of,
)

_SCHEME = re.compile(r'([A-Za-z][\w+.-]*)://')
_MAX_NAMES = 5
_WEB = ('http', 'https')
_HEAD_BYTES = 512
_MAX_TEXT = 200
# What begins files of PyTorch: a zip archive, a pickle, an old tar.
_ZIP = b'PK\x03\x04'
_PICKLE = b'\x80'
_LFS = b'version https://git-lfs'
_SUFFIXES_OF_OTHERS = ('.safetensors', '.npz', '.pkl')
# Initializations that are known to load nothing.
_RANDOM = (
    *('Constant', 'Xavier', 'Normal', 'TruncNormal', 'Uniform', 'Kaiming'),
    'Caffe2Xavier',
)
# Keys of a model that loads weights in a way of its own.
_LOADS = re.compile('ckpt|checkpoint|pretrain|load_from')
# Backbones that freeze their stem with frozen_stages=0; others nothing.
_WITH_STEM = {'ResNet', 'SwinTransformer'}
# 'resnet50', 'r101', 'x101' or 'swin_tiny' in names of weights.
_DEPTH_IN_NAME = re.compile(
    r'(?:res[a-z0-9]*?|(?<![a-z])[rx])[-_]?(18|34|50|101|152)(?!\d)'
)
_SWIN_IN_NAME = re.compile(r'swin[-_]?(tiny|small|base|large|[tsbl](?![a-z]))')
# Channels and layers of the third stage.
_SWINS = {'t': (96, 6), 's': (96, 18), 'b': (128, 18), 'l': (192, 18)}


def _named(subject: Subject) -> Iterator[tuple[tuple, Any]]:
    """Locations of weights, and what is said there."""
    top = subject.top
    if 'load_from' in top:
        yield ('load_from',), top['load_from']
    for section in subject.below('model'):
        # Backbones that load weights in their own way need no type.
        own = section.name == 'init_cfg' and 'type' not in section.cfg
        if kind_of(section.cfg) == 'Pretrained' or (
            own and 'checkpoint' in section.cfg
        ):
            path = (*section.path, 'checkpoint')
            yield path, section.cfg.get('checkpoint')
        elif isinstance(section.cfg.get('pretrained'), str):
            path = (*section.path, 'pretrained')
            yield path, section.cfg['pretrained']


def _files(subject: Subject) -> Iterator[tuple[tuple, str, Path]]:
    for path, value in _named(subject):
        # transformers takes names on its hub, and folders.
        of_hub = kind_of(subject.at(path[:-2])) == 'HFBackbone'
        file = isinstance(value, str) and value and not _SCHEME.match(value)
        if file and not of_hub:
            yield path, value, Path(value).expanduser()


def _checkpoints(subject: Subject) -> Iterator[tuple[tuple, str, Path]]:
    """Files that PyTorch can read."""
    for path, value, file in _files(subject):
        other = file.suffix in _SUFFIXES_OF_OTHERS
        if file.is_file() and not other and not file_fault(file):
            yield path, value, file


def _addresses(subject: Subject) -> Iterator[tuple[tuple, str, str]]:
    for path, value in _named(subject):
        match = _SCHEME.match(value) if isinstance(value, str) else None
        if match:
            yield path, value, match.group(1).lower()


@CKPT.rule(
    'CKPT001',
    symptoms=('can not be found.',),
    title='a weights file does not exist',
    severity=Severity.ERROR,
    remedy='correct the path, or download the file',
)
def missing_file(subject: Subject) -> Iterator[Finding]:
    """Paths that are no files."""
    for path, value, file in _files(subject):
        shared = path == ('load_from',) and is_pretrained(file)
        if file.is_file() or shared:
            continue
        what = 'is a folder' if file.is_dir() else 'does not exist'
        yield new_finding(f'the weights file {value} {what}', path=path)


@CKPT.rule(
    'CKPT002',
    symptoms=('invalid load key',),
    title='a weights file is not a checkpoint',
    severity=Severity.ERROR,
    remedy='download it again, and compare its size',
)
def damaged_file(subject: Subject) -> Iterator[Finding]:
    """Empty files, web pages, pointers of Git LFS, damaged archives."""
    for path, value, file in _files(subject):
        if not file.is_file():
            continue
        fault = file_fault(file)
        try:
            if not fault:
                check_archive(file)
        except DamagedFileError as error:
            fault = f'is damaged: {error}'
        if fault:
            yield new_finding(f'the weights file {value} {fault}', path=path)


def file_fault(file: Path) -> str:
    """What is wrong with a file, by its first and last bytes; else empty."""
    size = file.stat().st_size
    if size == 0:
        return 'is empty'
    with open(file, 'rb') as opened:
        head = opened.read(_HEAD_BYTES)
    text = head.lstrip().lower()
    if text.startswith((b'<!doctype', b'<html', b'<?xml')):
        return f'is a web page of {size:,} bytes'
    if head.startswith(_LFS):
        return 'is a pointer of Git LFS, not the file itself'
    if head.startswith(_ZIP) and not zipfile.is_zipfile(file):
        return f'is cut off after {size:,} bytes: the archive has no end'
    known = head.startswith((_ZIP, _PICKLE)) or b'ustar' in head
    plain = file.suffix not in _SUFFIXES_OF_OTHERS
    if plain and not known and head.isascii() and b'\x00' not in head:
        return f'is a text of {size:,} bytes'
    return ''


@CKPT.rule(
    'CKPT003',
    title='a weights URL cannot be loaded',
    severity=Severity.ERROR,
    remedy='correct the address',
)
def bad_address(subject: Subject) -> Iterator[Finding]:
    """Unknown schemes, and web addresses without a host or a file."""
    prefixes = ' '.join(CheckpointLoader._schemes)
    known = set(re.findall(r'([a-z][\w-]*)://', prefixes))
    for path, value, scheme in _addresses(subject):
        if scheme not in known:
            # One that a package registers when the training starts.
            near = difflib.get_close_matches(scheme, sorted(known), 1, 0.7)
            yield new_finding(
                f'{value} begins with {scheme}://, which no loader knows',
                path=path,
                remedy=f'correct it to {near[0]}://' if near else '',
                severity=Severity.ERROR if near else Severity.WARNING,
            )
            continue
        parts = urlparse(value)
        bare = not parts.netloc or not parts.path.strip('/')
        if value != value.strip() or ' ' in value:
            yield new_finding(f'{value!r} has blanks in it', path=path)
        elif scheme in _WEB and bare:
            yield new_finding(f'{value} names no file of a host', path=path)


@CKPT.rule(
    'CKPT004',
    title='pretrained weights are asked for and not named',
    severity=Severity.ERROR,
    remedy='name a checkpoint, or remove the init_cfg',
    fix='remove an init_cfg whose checkpoint is None',
)
def nothing_named(subject: Subject) -> Iterator[Finding]:
    """``init_cfg`` of type Pretrained without a checkpoint."""
    for path, value in _named(subject):
        if path[-1] != 'checkpoint' or (isinstance(value, str) and value):
            continue
        yield new_finding(
            f'Pretrained needs a checkpoint, got {value!r}',
            path=path,
            # None is said on purpose; what else is meant is not known.
            options=change(path[:-1], DELETE) if value is None else {},
        )


@CKPT.rule(
    'CKPT005',
    title='resume is no checkpoint',
    severity=Severity.WARNING,
    remedy='set resume=True, and load_from to the checkpoint',
    fix='set resume=True and load_from, if the file is there',
)
def named_by_resume(subject: Subject) -> Iterator[Finding]:
    """``resume`` is a switch; the file is ``load_from``."""
    value = subject.top.get('resume')
    if isinstance(value, str) and value != 'auto':
        there = Path(value).expanduser().is_file() or _SCHEME.match(value)
        free = subject.top.get('load_from') in (None, '', value)
        yield new_finding(
            f'resume must be True or False, got {value!r}: MMEngine goes on '
            'from the newest checkpoint of the work dir, or from load_from',
            path=('resume',),
            options={'resume': True, 'load_from': value}
            if there and free
            else {},
        )


@CKPT.rule(
    'CKPT006',
    title='weights need a package that cannot be imported',
    severity=Severity.WARNING,
    remedy='install the package, or name the file itself',
)
def missing_package(subject: Subject) -> Iterator[Finding]:
    """``torchvision://`` asks torchvision where its weights are."""
    found = [
        (path, value)
        for path, value, scheme in _addresses(subject)
        if scheme in ('torchvision', 'modelzoo')
    ]
    if not found:
        return
    try:
        import torchvision  # noqa: F401
    except BrokenLibraryError as error:
        problem = f', which is broken: {error}'
    except ModuleNotFoundError:
        problem = ', which is not installed here'
    else:
        return
    for path, value in found:
        yield new_finding(
            f'{value} is looked up by the package torchvision{problem}',
            path=path,
            names=('torchvision',),
        )


@CKPT.rule(
    'CKPT007',
    symptoms=(
        'init_cfg and pretrained cannot be',
        'both backbone and segmentor set pretrained weight',
    ),
    title='weights are loaded twice',
    severity=Severity.INFO,
    remedy='remove one of them: the init_cfg where load_from loads over it, '
    'so that nothing is downloaded for it',
)
def loaded_twice(subject: Subject) -> Iterator[Finding]:
    """Two ways of one part, or the whole model over a part."""
    top = subject.top
    model = as_mapping(top.get('model'))
    for section in subject.below('model'):
        kind = subject.component(section)
        other = section.cfg.get('init_cfg') and (*section.path, 'init_cfg')
        if section.path == ('model', 'backbone') and model.get('pretrained'):
            other = other or ('model', 'pretrained')
        if (
            section.cfg.get('pretrained')
            and other
            and package_of(kind)[:2] == 'mm'
        ):
            yield new_finding(
                f'{join_key((*section.path, "pretrained"))} and '
                f'{join_key(other)} both name weights, which '
                f'{kind.__name__} refuses',
                path=(*section.path, 'pretrained'),
                severity=Severity.ERROR,
                remedy='remove one of them',
            )
    if not isinstance(top.get('load_from'), str) or not top['load_from']:
        return
    for section in subject.below('model'):
        init = as_mapping(section.cfg.get('init_cfg'))
        if kind_of(init) == 'Pretrained':
            yield new_finding(
                f'{init.get("checkpoint")} is loaded first, and load_from '
                'over it',
                path=(*section.path, 'init_cfg'),
            )


@CKPT.rule(
    'CKPT008',
    symptoms=('Weights only load failed',),
    title='a weights file may run code when it is read',
    severity=Severity.ERROR,
    remedy='get the weights from their source; if you trust the file, set '
    'trust_checkpoint = True, or give --trust-checkpoint',
)
def runs_code(subject: Subject) -> Iterator[Finding]:
    """Types in a checkpoint that are not plain data."""
    if subject.top.get('trust_checkpoint') is True:
        return
    for path, value, file in _checkpoints(subject):
        names = foreign_names(file)
        if names:
            yield new_finding(
                f'the weights file {value} holds '
                f'{", ".join(names[:_MAX_NAMES])}, and will be refused',
                path=path,
            )


@CKPT.rule(
    'CKPT009',
    symptoms=(
        'The model and loaded state dict do not match exactly',
        'list index out of range',
        '= 0.000',
    ),
    title='no weight of a file fits',
    severity=Severity.ERROR,
    remedy='name weights of this model: the training would begin from random '
    'ones, with a line in the log',
    fix='name the prefix that fits, or load weights of a backbone there',
)
def nothing_fits(subject: Subject) -> Iterator[Finding]:
    """Names and shapes of a local file against those of the built model."""
    for path, value, shapes, module, prefix in _loaded(subject):
        if not shapes or _num_fitting(shapes, prefix, module):
            continue
        first = ', '.join(list(shapes)[:_MAX_NAMES])
        wanted = f' begins with {prefix} and' if prefix else ''
        yield new_finding(
            f'none of the {len(shapes)} weights of {value} ({first}, ...)'
            f'{wanted} has name and shape of one of the model',
            path=path,
            **_what_fits(subject, path, value, shapes, module),
        )
    yield from _own_loading(subject)


def _own_loading(subject: Subject) -> Iterator[Finding]:
    """Weights that a backbone changes before it loads them, as it does."""
    for path, value, file in (
        () if subject.model is None else _checkpoints(subject)
    ):
        if path == ('load_from',) or (
            foreign_names(file) and not is_trusted()
        ):
            continue
        at = path[: -2 if path[-1] == 'checkpoint' else -1]
        part = as_mapping(subject.at(at))
        if path == ('model', 'pretrained'):
            # MMSegmentation gives it to the backbone.
            at = ('model', 'backbone')
            part = {**as_mapping(part.get('backbone')), 'pretrained': value}
        node = next((n for n in subject.below(*at) if n.path == at), None)
        kind = node and subject.component(node)
        own = getattr(kind, 'init_weights', None)
        if own is None or (
            own is BaseModule.init_weights and path[-1] == 'checkpoint'
        ):
            continue
        loading = _try_loading(part, node.scope)
        if loading is None or (loading.num and not loading.error):
            continue
        what = 'no weight has name and shape of one of the backbone'
        if loading.error:
            what = f'it ends with {loading.error}'
        better: dict[str, Any] = {}
        if loading.is_dropped:
            what = 'it drops pretrained, so that nothing is loaded'
            init = {'type': 'Pretrained', 'checkpoint': value}
            better = {
                'remedy': f'set {join_key(at)}.init_cfg={init} in place of it',
                'options': {
                    **change(path, DELETE),
                    **change((*at, 'init_cfg'), init),
                },
            }
        elif 'convert_weights' in arguments_of(kind):
            # Names of its authors, or those of the host packages.
            other = not part.get('convert_weights', False)
            changed = {**part, 'convert_weights': other}
            loading = _try_loading(changed, node.scope)
            if loading and loading.is_whole and not loading.error:
                key = (*at, 'convert_weights')
                better = {
                    'remedy': f'set {join_key(key)}={other}: all weights of '
                    'the file fit then',
                    'options': change(key, other),
                }
        yield new_finding(
            f'{kind.__name__} loads {value} by its init_weights, and {what}',
            path=path,
            **better,
        )


class _Loading(NamedTuple):
    """What a part does with its weights.

    Attributes:
        num: Weights that have name and shape of one of the part.
        is_whole: Whether no other weight of the part lacks but those of
            norms of its outputs, which a classifier does not have.
        is_dropped: Whether the part has forgotten the name of the file.
        error: Exception that ended the loading, in words.
    """

    num: int
    is_whole: bool = False
    is_dropped: bool = False
    error: str = ''


def _try_loading(part: Mapping, scope: str) -> _Loading | None:
    """Build a part and let it load its weights; None if that tells nothing."""
    seen: list[_Loading] = []
    failed: list[Exception] = []
    with (
        DefaultScope.overwrite_default_scope(scope),
        no_network() as asked,
        seeded(0),
    ):
        module = MODELS.build(Config({'part': copy_tree(part)}).part)
        own = {k: v.shape for k, v in module.state_dict().items()}

        def look(state: Mapping, prefix: str, *args: Any) -> None:
            lacking = [
                key
                for key, shape in own.items()
                if getattr(state.get(key), 'shape', None) != shape
            ]
            is_whole = all(key.startswith('norm') for key in lacking)
            seen.append(_Loading(len(own) - len(lacking), is_whole))

        module._register_load_state_dict_pre_hook(look)
        with ErrorCatcher(failed.append):
            module.init_weights()
    if asked or any(isinstance(error, MemoryError) for error in failed):
        return None
    for error in failed:
        text = ' '.join(str(error).split())[:_MAX_TEXT]
        return _Loading(0, error=f'{type(error).__name__}: {text}')
    if (
        not seen
        and part.get('pretrained')
        and package_of(type(module)) in ('mmdet', 'mmseg')
        and module.init_cfg is None
    ):
        return _Loading(0, is_dropped=True)
    return max(seen, default=None)


def _loaded(
    subject: Subject,
) -> Iterator[tuple[tuple, str, dict, nn.Module, str]]:
    """Local files: shapes in them, who gets these, and the prefix."""
    files = () if subject.model is None else _checkpoints(subject)
    for path, value, file in files:
        module, prefix = _receiver(subject, path)
        if module is not None and (is_trusted() or not foreign_names(file)):
            yield path, value, _shapes_in(file), module, prefix


def _receiver(subject: Subject, path: tuple) -> tuple[Any, str]:
    """Module that gets the weights as they are, and the prefix it takes away.

    None where a class of its own may change them.
    """
    if path == ('load_from',):
        return subject.model, ''
    module = subject.model
    for step in path[1:-2]:
        named = isinstance(step, str)
        module = getattr(module, step, None) if named else module[step]
    plain = getattr(type(module), 'init_weights', None)
    if path[-2] != 'init_cfg' or plain is not BaseModule.init_weights:
        return None, ''
    prefix = subject.at(path[:-1]).get('prefix') or ''
    return module, prefix and f'{prefix.rstrip(".")}.'


def _shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights in a file; empty if there are none."""
    try:
        state = load_torch(file, map_location='meta')
    except (OSError, ValueError):
        # What is wrong with it is said by other rules.
        return {}
    state = as_mapping(state)
    state = as_mapping(state.get('state_dict', state))
    return {
        key.removeprefix('module.'): tuple(value.shape)
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, torch.Tensor)
    }


def _num_fitting(
    shapes: Mapping[str, tuple[int, ...]], prefix: str, module: nn.Module
) -> int:
    own = module.state_dict()
    return sum(
        key.startswith(prefix)
        and key[len(prefix) :] in own
        and tuple(own[key[len(prefix) :]].shape) == shape
        for key, shape in shapes.items()
    )


def _what_fits(
    subject: Subject, path: tuple, value: str, shapes: dict, module: nn.Module
) -> dict[str, Any]:
    """Remedy and options: a prefix, or the backbone alone; if they are."""
    if path != ('load_from',):
        names = sorted({key.partition('.')[0] for key in shapes})
        fitting = [
            f'{name}.'
            for name in names
            if _num_fitting(shapes, f'{name}.', module)
        ]
        if len(fitting) != 1:
            return {}
        return {
            'remedy': f'set prefix={fitting[0]!r} beside checkpoint',
            'options': change((*path[:-1], 'prefix'), fitting[0]),
        }
    backbone = getattr(module, 'backbone', None)
    if (
        subject.top.get('resume')
        or not isinstance(backbone, nn.Module)
        or not _num_fitting(shapes, '', backbone)
    ):
        return {}
    init = {'type': 'Pretrained', 'checkpoint': value}
    return {
        'remedy': 'they are of the backbone alone: set '
        f"model.backbone.init_cfg=dict(type='Pretrained', "
        f'checkpoint={value!r}) in place of load_from',
        'options': {
            'load_from': None,
            'model.backbone.init_cfg': {'_delete_': True, **init},
        },
    }


@CKPT.rule(
    'CKPT010',
    symptoms=('= 0.000',),
    title='layers with random weights are never trained',
    severity=Severity.ERROR,
    remedy="load weights (init_cfg=dict(type='Pretrained', ...) of the "
    'backbone, or load_from), or train all of it: frozen_stages=-1, '
    'norm_eval=False',
    fix='train all layers, where a config says that no weights are loaded',
)
def frozen_at_random(subject: Subject) -> Iterator[Finding]:
    """``frozen_stages`` and ``norm_eval`` are for weights that are loaded."""
    top = subject.top
    if top.get('load_from') or top.get('resume') or not top.get('train_cfg'):
        return
    for section in subject.below('model'):
        kind = subject.component(section)
        if (
            section.name != 'backbone'
            or package_of(kind) not in ('mmdet', 'mmseg', 'mmpretrain')
            or _may_load(subject, section)
        ):
            continue
        frozen, norm_eval, norm = (
            subject.setting(section, key)
            for key in ('frozen_stages', 'norm_eval', 'norm_cfg')
        )
        first = 0 if _WITH_STEM & base_names(kind) else 1
        held = {}
        if isinstance(frozen, int) and frozen >= first:
            held['frozen_stages'] = (
                f'frozen_stages={frozen} keeps the first layers as they are'
            )
        if norm_eval and kind_of(norm) in ('BN', 'SyncBN'):
            held['norm_eval'] = (
                'norm_eval=True keeps the mean 0 and the variance 1 of its '
                'batch norms, which then normalize nothing'
            )
        if not held:
            continue
        # None is said on purpose.
        outer = as_mapping(section.parent and section.parent.cfg)
        said = 'init_cfg' in section.cfg or 'pretrained' in outer
        right = {'frozen_stages': -1, 'norm_eval': False}
        yield new_finding(
            f'{kind.__name__} begins with random weights, as nothing is '
            f'loaded, and {"; ".join(held.values())}',
            path=path_of(section, next(iter(held))),
            severity=Severity.ERROR
            if 'frozen_stages' in held
            else Severity.WARNING,
            names=tuple(held),
            options={
                join_key((*section.path, key)): right[key] for key in held
            }
            if said
            else {},
        )


def _may_load(subject: Subject, section: ConfigNode) -> bool:
    """Whether weights are loaded into a part of a model, or may be."""
    inner = {**section.cfg, 'init_cfg': subject.setting(section, 'init_cfg')}
    for _, part in walk_dicts(inner):
        init = part.get('init_cfg')
        for item in init if isinstance(init, list | tuple) else [init]:
            if item and kind_of(item) not in _RANDOM:
                return True
    node: ConfigNode | None = section
    while node is not None:
        init = node.cfg.get('init_cfg')
        if node is not section and kind_of(init) == 'Pretrained':
            return True
        if any(
            value and _LOADS.search(str(key))
            for key, value in node.cfg.items()
        ):
            return True
        node = node.parent
    return False


@CKPT.rule(
    'CKPT011',
    symptoms=('size mismatch for',),
    title='weights are of a model of another size',
    severity=Severity.ERROR,
    remedy='name weights of this size, or set that of the weights: what does '
    'not fit is left random, with a line in the log',
)
def other_size(subject: Subject) -> Iterator[Finding]:
    """By names, and by the layers of local files."""
    seen = set()
    for path, value, shapes, module, prefix in _loaded(subject):
        seen.add(path)
        yield from _other_layers(path, value, shapes, prefix, module)
    for path, value in _named(subject):
        if path in seen or not isinstance(value, str):
            continue
        section = as_mapping(
            subject.at(path[: -2 if path[-1] == 'checkpoint' else -1])
        )
        if path == ('load_from',):
            section = as_mapping(subject.top.get('model'))
        section = as_mapping(section.get('backbone', section))
        name = value.rpartition('/')[2].lower()
        what, named, own = 'depth', set(_DEPTH_IN_NAME.findall(name)), None
        if 'depth' in section:
            own = str(section['depth'])
        elif kind_of(section) == 'SwinTransformer':
            what = 'size'
            named = {size[0] for size in _SWIN_IN_NAME.findall(name)}
            depths = section.get('depths', (2, 2, 6, 2))
            size = section.get('embed_dims', 96), [*depths, 0, 0, 0][2]
            own = next((k for k, v in _SWINS.items() if v == size), None)
        if own and named and own not in named:
            yield new_finding(
                f'{value} is of a {kind_of(section)} of {what} '
                f'{" or ".join(sorted(named))}, by its name, and the '
                f'backbone has {what} {own}',
                path=path,
                severity=Severity.WARNING,
            )


def _other_layers(
    path: tuple, value: str, shapes: dict, prefix: str, module: nn.Module
) -> Iterator[Finding]:
    """Layers of a backbone that a file has in another number or shape."""
    inner = 'backbone.' if path == ('load_from',) else ''
    theirs = {
        key[len(prefix + inner) :]: shape
        for key, shape in shapes.items()
        if key.startswith(prefix + inner)
    }
    ours = {
        key[len(inner) :]: tuple(weight.shape)
        for key, weight in module.state_dict().items()
        if key.startswith(inner)
    }
    both = theirs.keys() & ours
    other = [key for key in ours if key in both and theirs[key] != ours[key]]
    if not both or len(other) == len(both):
        # That none fits is of CKPT009.
        return
    here, there = _num_numbered(ours), _num_numbered(theirs)
    names = [n for n in here if there.get(n, here[n]) != here[n]]
    lacking = any(there[name] < here[name] for name in names)
    differing = [
        f'{name} has {here[name]} layers, and {there[name]} in the file'
        for name in names
    ]
    if other and not differing:
        differing = [
            f'{count_of(other, "weight")} of {len(ours)} have another shape '
            f'there ({", ".join(other[:_MAX_NAMES])})'
        ]
    if differing:
        yield new_finding(
            f'{value} is of another backbone: '
            f'{"; ".join(differing[:_MAX_NAMES])}',
            path=path,
            severity=Severity.ERROR if other or lacking else Severity.WARNING,
        )


def _num_numbered(keys: Iterable[str]) -> dict[str, int]:
    """How many numbered modules there are in each that has some."""
    numbers: dict[str, set[str]] = {}
    for key in keys:
        parts = key.split('.')
        for index, part in enumerate(parts[1:], 1):
            if part.isdigit():
                name = '.'.join(parts[:index])
                numbers.setdefault(name, set()).add(part)
    return {name: len(own) for name, own in numbers.items()}
