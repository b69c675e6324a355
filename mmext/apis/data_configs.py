"""A config for one's own data: a child of a base that is known to train.

:func:`new_config` finds out what a folder holds, and writes what is different
to the base: classes, data, schedule and learning rate.
"""

import copy
import json
import math
import os
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS
from PIL import Image
from rich.console import Console

from ..checks.config import (
    ConfigDraft,
    Steps,
    Variable,
    config_file,
    dataset_configs,
    find_component,
    inner_dataset_configs,
    join_key,
    near_files,
    read_config,
    read_heads,
    read_ignore_locations,
    split_key,
    walk_dicts,
)
from ..utils.draw import class_palette
from ..utils.files import atomic_path, open_regular
from ..utils.printing import printable, printable_name, readable
from ..utils.training import rate_factor
from .data_folders import DataFolder, DataSplit, find_data, make_val_split

# Steps of a training on few pictures, as far as it takes to learn them.
_LEAST_STEPS, _MOST_EPOCHS = 3000, 100
_LEAST_ITERS, _PASSES = 1000, 200
# Keys of a data set of a base that one of another type takes, too.
_COMMON = (
    *('type', '_scope_', 'data_root', 'filter_cfg', 'pipeline', 'test_mode'),
    *('indices', 'serialize_data', 'max_refetch', 'lazy_init'),
)
_SAMPLED = 100
_GRID = 32
_VOID = 255


@dataclass
class NewConfig:
    """A config that was written.

    Attributes:
        path: Of the config.
        data: What it trains on.
        lists: Files that were written beside it.
    """

    path: Path
    data: DataFolder
    lists: list[Path]

    def summary(self) -> str:
        """What was found, a line each."""
        data = self.data
        counts = ', '.join(
            f'{len(part.names):,} {split}'
            for split, part in data.splits.items()
        )
        lines = [
            f'{data.root}: {data.form}, {counts}',
            f'{len(data.classes)} classes: '
            + textwrap.shorten(printable(', '.join(data.classes)), 200),
            *data.notes,
            *(f'written: {path}' for path in (*self.lists, self.path)),
        ]
        return '\n'.join(map(printable_name, lines))


def new_config(
    data: str | Path,
    base: str,
    out: str | Path,
    *,
    classes: Sequence[str] = (),
    val_fraction: float = 0.2,
    batch_size: int = 0,
    num_gpus: int = 1,
    epochs: int = 0,
    load_from: str = '',
    ignore_index: int = _VOID,
    overwrite: bool = False,
    fix: bool = False,
) -> NewConfig:
    """Write a config that trains a model of a base on a folder of data.

    Args:
        data: See :func:`~.data_folders.find_data`.
        base: Config to inherit: a file, or a name such as
            ``'mmext::co_dino/co_dino_5scale_r50_8xb2_1x_coco.py'``.
        out: File to write, ``*.py``. Lists of a split that had to be made
            go into a folder beside it, of its name and ``_data``.
        classes: Names in the order of labels; empty for those of the data.
        val_fraction: Part of the training samples that validate, if the
            data have no such split.
        batch_size: Pictures a step and GPU; 0 for that of the base.
        num_gpus: Processes of the training.
        epochs: Of the training; 0 for those of the base, or more where that
            would be less than 3,000 steps, up to 100. Where the base counts
            iterations, those of the base, or 200 times the pictures, and at
            least 1,000.
        load_from: Checkpoint to start from; empty for none.
        ignore_index: Value of masks that is of no class.
        overwrite: Replace files that are there.
        fix: Where the label check finds errors, write the label files anew,
            fixed as ``tools/validate_labels.py --fix`` does, into a folder
            beside ``out``, of its name and ``_fixed``, and the config for
            them.

    The learning rate is scaled from ``auto_scale_lr.base_batch_size`` to the
    pictures a step, see :func:`~mmext.utils.training.rate_factor`.

    Returns:
        What was written.

    Raises:
        FileExistsError: If a file to write is there.
        FileNotFoundError: If the data or the base are not there.
        ValueError: If the data or the base cannot be used, or a setting is
            out of its range.
    """
    out = Path(out)
    if out.suffix != '.py':
        raise ValueError(f'--out must be a .py file, got {out}')
    if out.exists() and not overwrite:
        raise FileExistsError(
            f'--out must be a new file, got {out}; --overwrite replaces it'
        )
    for name, value in (('batch-size', batch_size), ('epochs', epochs)):
        if value < 0:
            raise ValueError(f'--{name} must be at least 0, got {value}')
    if num_gpus < 1:
        raise ValueError(f'--gpus must be at least 1, got {num_gpus}')
    if '::' not in base and not Path(base).is_file():
        raise FileNotFoundError(
            "--base must be a config, or a name such as 'mmext::co_dino/"
            f"co_dino_5scale_r50_8xb2_1x_coco.py', got {base!r}"
            f'{near_files(Path(base))}'
        )
    config_file(base)
    tree = _load_base(base)
    if 'model' not in tree or 'train_dataloader' not in tree:
        raise ValueError(
            f'--base must have a model and a train_dataloader, got {base}'
        )
    semantic = any(
        'decode_head' in path for path, _ in walk_dicts(tree['model'])
    )
    find = partial(find_data, data, semantic=semantic)
    folder_data = find(classes=classes, ignore_index=ignore_index)
    if folder_data.form == 'masks' and not classes and ignore_index == _VOID:
        names, void = _of_base(tree)
        if void != _VOID and len(find(ignore_index=void).classes) == len(
            names
        ):
            # The base is made for these data.
            ignore_index = void
            folder_data = find(classes=names, ignore_index=void)
    make_val_split(folder_data, val_fraction)
    batch = batch_size or tree['train_dataloader'].get('batch_size', 1)
    number = len(folder_data.splits['train'].names)

    def write(overwrite: bool) -> NewConfig:
        draft = ConfigDraft(tree)
        lists = _make_lists(folder_data, out, overwrite)
        _set_data(draft, folder_data, batch)
        _set_model(draft, len(folder_data.classes))
        if folder_data.form == 'masks':
            _set_masks(draft, folder_data, batch, ignore_index)
        steps = math.ceil(number / (batch * num_gpus))
        _set_schedule(draft, steps, epochs)
        _set_rate(draft, base, batch * num_gpus)
        if load_from:
            draft.settings['load_from'] = load_from
        head = (
            f'{number:,} pictures of {folder_data.root.resolve().name} for '
            'training, written by tools/new_config.py.'
        )
        name = base
        if '::' not in base:
            folder = out.parent.resolve()
            name = os.path.relpath(Path(base).resolve(), folder)
        # The lists appear only if the config can be read.
        with atomic_path(out) as temporary:
            text = draft.text(Path(name).as_posix(), head)
            temporary.write_text(text, encoding='utf-8')
            Config.fromfile(temporary, import_custom_modules=False)
            for path, content in lists.items():
                with atomic_path(path) as own:
                    own.write_bytes(content)
        return NewConfig(out, folder_data, list(lists))

    fixed = out.with_name(f'{out.stem}_fixed')
    ours = overwrite and (fixed / 'fixes.json').is_file()
    if fix and fixed.exists() and not ours:
        raise FileExistsError(
            f'{fixed}, for fixed label files, must be a new folder'
            + ('' if overwrite else '; --overwrite replaces it')
        )
    made = write(overwrite=overwrite)
    if fix and _fix_labels(made, fixed):
        made = write(overwrite=True)
    return made


def _of_base(base: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Names of the classes of a base, and the value of no class."""
    names = (_leaf(base, 'train')[1].get('metainfo') or {}).get('classes')
    found = [
        location.value
        for location in read_ignore_locations(base)
        if location.location.startswith('model.')
    ]
    return tuple(names or ()), found[0] if len(set(found)) == 1 else _VOID


def _fix_labels(made: NewConfig, folder: Path) -> bool:
    """Write fixed copies of label files that have errors; whether some were.

    ``made.data`` names the copies then.
    """
    # Not at the top: few configs need it.
    from ..checks.labels import check_labels
    from ..checks.labels.rules import RULES

    data = made.data
    check = partial(
        check_labels,
        made.path,
        split=[*data.splits],
        console=Console(quiet=True),
    )
    if not check().exit_code:
        return False
    if data.form == 'yolo':
        data.notes.append('the label files have errors; YOLO has no --fix')
        return False
    if folder.exists():
        shutil.rmtree(folder)
    check(fix=folder)
    summary = json.loads((folder / 'fixes.json').read_bytes())
    if not summary['num_fixed']:
        shutil.rmtree(folder)
        data.notes.append('no error of the label files has a safe fix')
        return False
    for location in summary['locations']:
        part = data.splits[location['split']]
        *outer, key = location['key'].split('.')
        part.dataset = copy.deepcopy(part.dataset)
        settings = part.dataset
        for name in outer:
            settings = settings[name]
        settings[key] = _from_root(data, Path(location['now']))
        # Of COCO, the copy is the list.
        part.whole |= key == 'ann_file'
    data.notes.append(
        f'{summary["num_fixed"]:,} of {summary["num_files"]:,} label files '
        f'were fixed, in copies of all in {folder} (fixes.jsonl has each '
        'change): '
        + ', '.join(
            f'{count:,} x {RULES[rule].title}'
            for rule, count in summary['changes'].items()
        )
    )
    return True


def _load_base(base: str) -> dict[str, Any]:
    """What a base says, as dicts."""
    name = base if '::' in base else str(Path(base).resolve())
    with TemporaryDirectory() as folder:
        file = Path(folder, 'config.py')
        file.write_text(f'_base_ = {name!r}\n', encoding='utf-8')
        try:
            return read_config(file, own_imports=False).to_dict()
        except (OSError, ImportError, ValueError) as error:
            raise ValueError(
                '--base must be a config that can be read, got '
                f'{base}: {error}'
            ) from error


def _make_lists(
    data: DataFolder, out: Path, overwrite: bool
) -> dict[Path, bytes]:
    """Lists of splits that had to be made, by path; nothing is written."""
    folder = out.with_name(f'{out.stem}_data')
    suffix = '.json' if data.form == 'coco' else '.txt'
    lists = {}
    for split, part in data.splits.items():
        if part.whole:
            continue
        path = folder / f'{split}{suffix}'
        if path.exists() and not overwrite:
            raise FileExistsError(
                f'{path} must be a new file; --overwrite replaces it'
            )
        if data.form == 'coco':
            content = _coco_part(data, part)
        else:
            content = _list_of(part.names)
        lists[path] = content
        part.dataset['ann_file'] = _from_root(data, path)
    return lists


def _list_of(names: Sequence[str]) -> bytes:
    """A text file of names; ValueError if one would be read as another."""
    for name in names:
        if [name.strip()] != name.splitlines() or readable(name) != name:
            raise ValueError(
                'a split is written as a list with a file name a line, which '
                f'{name!r} cannot be: it is not UTF-8, holds a line break, or '
                'begins or ends with a space; rename the file'
            )
    return ''.join(f'{name}\n' for name in names).encode()


def _from_root(data: DataFolder, path: Path) -> str:
    """A path that a data set joins to its root.

    The root may lead away from the folders of its text by a link.
    """
    near = os.path.relpath(path, data.root)
    is_near = (data.root / near).resolve() == path.resolve()
    if data.root.is_absolute() or not is_near:
        return path.resolve().as_posix()
    return Path(near).as_posix()


def _coco_part(data: DataFolder, part: DataSplit) -> bytes:
    """An annotation file with some images, categories in order of classes."""
    content = json.loads((data.root / part.dataset['ann_file']).read_bytes())
    known, names = part.coco, set(part.names)
    rows = zip(known.images.index.tolist(), known.images.file_name)
    images = [
        {**content['images'][row], 'file_name': name}
        for row, name in rows
        if name in names
    ]
    ids = {image['id'] for image in images}
    notes = [
        {'iscrowd': 0, **note}
        for note in content['annotations']
        if note.get('image_id') in ids
    ]
    kinds = [content['categories'][i] for i in known.categories.index.tolist()]
    first = max(known.categories.id.tolist(), default=0) + 1
    order = {name: number for number, name in enumerate(data.classes)}
    kinds += [
        {'id': first + number, 'name': name}
        for name, number in order.items()
        if name not in known.categories.name
    ]
    kinds.sort(key=lambda kind: order.get(kind['name'], len(order)))
    content |= {'images': images, 'annotations': notes, 'categories': kinds}
    return json.dumps(content).encode()


def _leaf(base: Mapping[str, Any], split: str) -> tuple[Steps, Mapping]:
    """The data set of a split of a base, without what wraps it."""
    key = f'{split}_dataloader'
    dataset = (base.get(key) or {}).get('dataset')
    leaves = [
        (steps, node)
        for steps, node in dataset_configs(dataset, (key, 'dataset'))
        if not inner_dataset_configs(node)
    ]
    if len(leaves) != 1 or any(isinstance(s, int) for s in leaves[0][0]):
        raise ValueError(
            f'--base must have one data set in {key}, got {len(leaves)}; '
            'choose another base'
        )
    return leaves[0]


def _set_data(draft: ConfigDraft, data: DataFolder, batch: int) -> None:
    """Data sets, evaluators, and what pipelines hand to them."""
    common = {
        **data.dataset,
        'data_root': Variable('data_root'),
        'metainfo': {'classes': Variable('classes')},
    }
    own = {}
    for split, part in data.splits.items():
        own[split] = dict(part.dataset)
        if data.form == 'voc':
            # Boxes of no pixel are ignored, as loaders of COCO drop them.
            old = _leaf(draft.base, split)[1].get('filter_cfg') or {}
            own[split] |= {
                'test_mode': False,
                'filter_cfg': {**old, 'bbox_min_size': 1},
            }
        elif split != 'train':
            own[split]['test_mode'] = True
    common |= {
        key: value
        for key, value in own['train'].items()
        if all(other.get(key) == value for other in own.values())
    }
    draft.variables = {
        'data_root': data.root.as_posix().rstrip('/') + '/',
        'classes': tuple(data.classes),
        'dataset': common,
    }
    for split, settings in own.items():
        steps, old = _leaf(draft.base, split)
        for key, value in old.items():
            new = {**common, **settings}.get(key)
            # Dicts are merged, and any other value is replaced.
            merged = isinstance(value, Mapping) and isinstance(new, Mapping)
            left = set(value) - set(new) if merged else new is None
            if left and key not in _COMMON:
                draft.drop((*steps, key))
            of_voc = key == 'filter_cfg' and 'bbox_min_size' in (value or ())
            if of_voc and data.form != 'voc':
                draft.drop((*steps, key, 'bbox_min_size'))
        more = {
            key: value
            for key, value in settings.items()
            if key not in common
            and (key != 'test_mode' or value != old.get(key))
        }
        draft.update(steps, 'dataset', **more)
    draft.set(('train_dataloader',), batch_size=batch)
    if data.form != 'masks':
        _set_boxes(draft, data)
    if 'test' not in data.splits:
        # After all that was changed of it.
        for part in ('dataloader', 'evaluator'):
            draft.do(f'_base_.test_{part} = _base_.val_{part}')


def _set_boxes(draft: ConfigDraft, data: DataFolder) -> None:
    """Evaluate the boxes that are loaded, in the same way of any form.

    Only COCO's files of masks are evaluated themselves: areas are of masks.
    """
    loads = [
        node
        for _, node in walk_dicts(draft.base['train_dataloader'])
        if str(node.get('type')).endswith('LoadAnnotations')
    ]
    if any(node.get('with_mask') for node in loads) and not data.masks:
        raise ValueError(
            '--base must not need masks (LoadAnnotations with with_mask), as '
            f'{data.root} has boxes only; choose another base, such as '
            'mmext::co_dino/co_dino_5scale_r50_8xb2_1x_coco.py'
        )
    for split in data.splits:
        if split == 'train':
            continue
        key = f'{split}_evaluator'
        old = draft.base.get(key)
        old = old[0] if isinstance(old, list) and old else old
        metric = {
            'type': 'mmext.CocoMetric',
            '_scope_': 'mmdet',
            'metric': (old or {}).get('metric', 'bbox'),
        }
        if data.masks:
            path = data.splits[split].dataset['ann_file']
            metric['ann_file'] = os.path.join(
                draft.variables['data_root'], path
            )
        draft.assign(key, metric)
        if data.masks:
            continue
        steps, leaf = _leaf(draft.base, split)
        pipeline = leaf['pipeline']
        last = pipeline[-1] if pipeline else {}
        if not str(last.get('type')).endswith('PackDetInputs'):
            raise ValueError(
                f'--base must end {join_key(steps)}.pipeline with '
                f'PackDetInputs, got {last.get("type")!r}; choose another base'
            )
        location = (
            f'_base_.{join_key((*steps, "pipeline", len(pipeline) - 1))}'
        )
        if last.get('meta_keys'):
            if 'instances' not in last['meta_keys']:
                draft.do(f"{location}.meta_keys += ('instances',)")
        else:
            keys = ('img_id', 'img_path', 'ori_shape', 'img_shape')
            keys = (*keys, 'scale_factor', 'instances')
            draft.do(f'{location}.meta_keys = {keys!r}')


def _set_model(draft: ConfigDraft, number: int) -> None:
    """The number of classes, in the one place or in each head."""
    model = draft.base['model']
    if isinstance(model.get('num_classes'), int):
        draft.set(('model',), num_classes=number)
        return
    heads = read_heads(model, draft.base.get('default_scope', ''))
    if not heads:
        raise ValueError(
            '--base must have a model with num_classes, at its top or in '
            'heads with losses, got none; choose another base'
        )
    for head in heads:
        draft.set(split_key(head.location), num_classes=number)


def _set_masks(
    draft: ConfigDraft, data: DataFolder, batch: int, ignore_index: int
) -> None:
    """Sizes, losses and ignored values that go with classes and pictures."""
    base, number = draft.base, len(data.classes)
    leaf, scope = _leaf(base, 'train')[1], base.get('default_scope', '')
    kind = find_component(leaf['type'], (DATASETS,), scope)
    known = {**getattr(kind, 'METAINFO', {}), **(leaf.get('metainfo') or {})}
    same = tuple(known.get('classes') or ()) == tuple(data.classes)
    palette = class_palette(number, known.get('palette') if same else None)
    dataset = draft.variables.pop('dataset')
    dataset['metainfo']['palette'] = Variable('palette')
    draft.variables |= {'palette': tuple(palette), 'dataset': dataset}
    heads = read_heads(base['model'])
    old_area = area = 0
    built = {
        key: value
        for key, value in base.items()
        if key == 'model' or key.endswith(('_dataloader', '_evaluator'))
    }
    for path, node in walk_dicts(built):
        kind = str(node.get('type'))
        weights = node.get('class_weight')
        if isinstance(weights, list | tuple) and not same:
            # Those of heads of masks have one more, for no object.
            kinds = heads and max(head.num_classes for head in heads)
            last = weights[-1] if len(weights) == kinds + 1 else None
            new = None if last is None else [1.0] * number + [last]
            draft.set(path, class_weight=new)
        if kind.endswith('ValidateLabels') and 'num_classes' in node:
            draft.set(path, num_classes=number)
    if base.get('test_pipeline'):
        # What MMSegmentation's functions read.
        location = join_key((*_leaf(base, 'test')[0], 'pipeline'))
        draft.do(f'_base_.test_pipeline = _base_.{location}')
    # The medians of some pictures.
    train, sizes = data.splits['train'], []
    folder = data.root / train.dataset['data_prefix']['img_path']
    for name in train.names[:_SAMPLED]:
        path = folder / f'{name}{train.dataset["img_suffix"]}'
        with open_regular(path) as file, Image.open(file) as image:
            sizes.append(image.size)
    width, height = (int(median(sides)) for sides in zip(*sizes))
    for split in data.splits:
        steps, leaf = _leaf(base, split)
        for index, step in enumerate(leaf['pipeline']):
            kind = str(step['type']).rpartition('.')[2]
            location = (*steps, 'pipeline', index)
            scales = kind in ('RandomResize', 'Resize') and step.get('scale')
            if scales and tuple(scales) != (width, height):
                draft.set(location, scale=(width, height))
            if kind == 'RandomCrop':
                old = tuple(step['crop_size'])
                crop = tuple(
                    min(side, max(limit // _GRID * _GRID, _GRID))
                    for side, limit in zip(old, (height, width))
                )
                old_area, area = math.prod(old), math.prod(crop)
                if crop != old:
                    draft.set(location, crop_size=crop)
                    draft.set(('model', 'data_preprocessor'), size=crop)
    if area:
        old_batch = base['train_dataloader'].get('batch_size', 1)
        for path, node in walk_dicts(base['model'], ('model',)):
            if node.get('min_kept'):
                part = batch * area / (old_batch * old_area)
                draft.set(path, min_kept=round(node['min_kept'] * part))
    if ignore_index != _VOID:
        _set_ignored(draft, data, ignore_index)


def _set_ignored(draft: ConfigDraft, data: DataFolder, value: int) -> None:
    """Each place that has the value of no class."""
    draft.variables['dataset']['ignore_index'] = value
    for head in read_heads(draft.base['model']):
        draft.set(split_key(head.location), ignore_index=value)
    for location in read_ignore_locations(draft.base):
        *path, name = split_key(location.location)
        section = str(path[0])
        if location.value != _VOID:
            continue
        if section == 'model':
            # Losses have that of their head.
            if location.role != 'loss':
                draft.set(tuple(path), **{name: value})
        elif section.partition('_')[0] in data.splits:
            # In place, as the test may be that of the validation.
            draft.update(tuple(path), **{name: value})


def _set_schedule(draft: ConfigDraft, steps: int, epochs: int) -> None:
    """Length of the training, and of all that goes with it.

    ``steps`` are those of an epoch.
    """
    loop = draft.base.get('train_cfg') or {}
    unit = 'max_iters' if 'max_iters' in loop else 'max_epochs'
    old = loop.get(unit)
    if not old:
        raise ValueError(
            '--base must say max_epochs or max_iters in train_cfg, got '
            f'{dict(loop)}; choose another base'
        )
    if unit == 'max_epochs':
        more = min(math.ceil(_LEAST_STEPS / steps), _MOST_EPOCHS)
        length = epochs or max(old, more)
        total = length * steps
        comment = f'{length} epochs of {steps:,} steps.'
    else:
        passes = max(_PASSES * steps, _LEAST_ITERS)
        length = epochs * steps or min(old, passes)
        total = length
        comment = f'{length / steps:.0f} times all pictures.'
    interval = max(length // 10, 1)
    draft.comments['train_cfg'] = comment
    draft.set(('train_cfg',), **{unit: length, 'val_interval': interval})
    if unit == 'max_iters':
        draft.set(('default_hooks', 'checkpoint'), interval=interval)
    given = draft.base.get('param_scheduler') or []
    for index, step in enumerate(given if isinstance(given, list) else []):
        new = _scaled(step, old, length, total, unit)
        if new:
            draft.set(('param_scheduler', index), **new)


def _scaled(
    scheduler: Mapping, before: int, length: int, total: int, unit: str
) -> dict:
    """What becomes of a scheduler in a training of another length."""
    factor, by_epoch = length / before, scheduler.get('by_epoch', True)
    names = ('begin', 'end', 'T_max', 'step_size', 'total_iters')
    old = {key: scheduler[key] for key in names if scheduler.get(key)}
    if by_epoch != (unit == 'max_epochs'):
        # A warm-up in iterations takes a tenth of the training at most, and
        # two: one of a single step never ends.
        short = {key: min(v, max(total // 10, 2)) for key, v in old.items()}
        return {k: v for k, v in short.items() if v != old[k] and not by_epoch}
    new = {key: max(round(v * factor), 1) for key, v in old.items()}
    if scheduler.get('milestones'):
        # Those that come before the end; a short training has none.
        scaled = {max(round(m * factor), 1) for m in scheduler['milestones']}
        end = new.get('end', length)
        new['milestones'] = sorted(m for m in scaled if m < end)
        old['milestones'] = scheduler['milestones']
    factors = ('LinearLR', 'ConstantLR')
    if new.get('end') == 1 and scheduler['type'].endswith(factors):
        if by_epoch:
            # Its iterations are steps, too.
            key = 'convert_to_iter_based'
            old[key], new[key] = scheduler.get(key, False), True
        else:
            new['end'] = 2
    return {key: value for key, value in new.items() if value != old[key]}


def _set_rate(draft: ConfigDraft, base: str, batch: int) -> None:
    """The learning rate for the pictures of a step."""
    optimizer = (draft.base.get('optim_wrapper') or {}).get('optimizer') or {}
    if 'lr' not in optimizer:
        raise ValueError(
            '--base must say optim_wrapper.optimizer.lr, got '
            f'{dict(optimizer)}; choose another base'
        )
    scale = draft.base.get('auto_scale_lr') or {}
    named = re.search(r'(\d+)xb(\d+)', Path(base).name)
    own = draft.base['train_dataloader'].get('batch_size', 1)
    meant = scale.get('base_batch_size') or (
        int(named[1]) * int(named[2]) if named else own
    )
    if meant == batch:
        return
    factor = batch / meant
    scaled = rate_factor(factor, str(optimizer['type']), scale.get('rule'))
    draft.comments['optim_wrapper'] = (
        f'{batch} pictures a step in place of {meant}: '
        + ('linear.' if scaled == factor else 'the square root of that.')
    )
    rate = float(f'{optimizer["lr"] * scaled:.3g}')
    draft.set(('optim_wrapper', 'optimizer'), lr=rate)
    draft.settings['auto_scale_lr'] = {'base_batch_size': batch}
