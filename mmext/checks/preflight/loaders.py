"""The data loaders of a config, which are built as its runner builds them.

Where the data are here, a loader can give a few batches of them; where they
are not, its data set has made-up entries, which nothing is read of.
"""

import copy
import inspect
import linecache
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.dataset import BaseDataset, DefaultSampler, InfiniteSampler
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, FUNCTIONS
from mmengine.runner import Runner
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset

from ..config import (
    Steps,
    check_data_paths,
    copy_tree,
    find_component,
    join_key,
    walk_datasets,
    walk_nodes,
)
from ..findings import ErrorCatcher, frames_of
from .causes import Trial

SPLITS = ('train', 'val', 'test')
# Doubt about an error that was raised where the data are not here.
MADE_UP = 'the data are not here, so the made-up samples may be the cause'
# Batches of an epoch where the data are not here: more than any setting in
# iterations counts on.
MANY = 1_000_000
# Made-up entries of a data set without classes; pictures whose size is asked
# for; pictures of a validation, unless its batches are larger; those of a
# batch that are named.
_FEW, _ASKED, _VALIDATED, _NAMED = 64, 200, 4, 4
# Images of a data set whose objects are counted.
_COUNTED = 5000
# What says nothing of the config's parts.
_NO_FILE = (FileNotFoundError, NotADirectoryError)
# PyTorch says so of a CPU.
_NO_MEMORY = "can't allocate memory"
# Some data sets assert that their files are there.
_EXISTS = re.compile(r'\b(exists|isfile|isdir|is_file|is_dir)\(')
# Functions in which a data set gives what it has read.
_GIVES_DATA = ('get_data_info', 'get_cat_ids', 'get_cat2imgs', '__getitem__')


def section_of(cfg: Config, key: str) -> Any:
    """A section as the runner gets it, to be changed at will."""
    return Config({'value': copy_tree(cfg.to_dict().get(key))}).value


class Failure(NamedTuple):
    """A part that could not be built, or failed when it ran."""

    # The section, or the part of one, that was being built or ran.
    path: Steps
    error: Exception
    action: str = 'be built'
    # Why the training may not meet this error, empty if it is certain to; and
    # whether another run has shown that.
    doubt: str = ''
    is_shown: bool = False
    # Of a part that ran: the split, and with which pictures, in words.
    split: str = ''
    pictures: str = ''
    # Another value of a setting, with which the part is built.
    trial: Trial | None = None


@dataclass
class Outcome:
    """What came of building parts, and of running them."""

    # Hosts that a part wanted to download from.
    asked: Sequence[str] = ()
    failures: list[Failure] = field(default_factory=list)
    # What could not be looked at, in words: missing data and downloads are no
    # failures.
    not_done: list[str] = field(default_factory=list)

    def catch_errors(
        self, path: Steps, action: str = 'be built', made_up: bool = False
    ) -> ErrorCatcher:
        """A block whose exception is a failure of the part."""
        before = len(self.asked)
        return ErrorCatcher(
            lambda error: self.take(
                Failure(path, error, action, MADE_UP * made_up), before
            )
        )

    def take(self, failure: Failure, before: int) -> None:
        """Note a failure, unless the machine is to blame.

        ``before`` are the hosts that had been asked before.
        """
        path, error, action, doubt, _, split, *_ = failure
        name = join_key(path) or 'the runner'
        if len(self.asked) > before:
            hosts = ', '.join(sorted(set(self.asked[before:])))
            self.not_done.append(
                f'{name} cannot {action} here: it needs files of {hosts}, and '
                'a preflight downloads nothing; fetch them first'
            )
        elif _is_missing_file(error):
            text = ' '.join(str(error).split())
            self.not_done.append(
                f'{name} cannot {action} here, as a file is missing: {text}'
            )
        elif isinstance(error, MemoryError) or _NO_MEMORY in str(error):
            self.not_done.append(
                f'{name} cannot {action} here: there is not enough memory'
            )
        elif 'no prediction for the image' in str(error):
            self.not_done.append(
                f'{name} was not computed: it needs all pictures of its file'
            )
        elif _has_no_metrics(error):
            self.not_done.append(
                f'{name} was not tried: there are no metrics without data, or '
                'as random weights predict nothing'
            )
        else:
            if not split and not any(
                frame.f_code.co_name in _GIVES_DATA
                for frame, _ in frames_of(error)
            ):
                doubt = ''
            self.failures.append(failure._replace(doubt=doubt))


@dataclass
class Loaders:
    """The loaders of one config, in its default scope."""

    cfg: Config
    scope: str
    # Use data that are here.
    read_data: bool
    outcome: Outcome
    built: dict[str, DataLoader] = field(default_factory=dict)
    # Splits whose data are here and were read.
    known: set[str] = field(default_factory=set)

    def build(self, split: str) -> None:
        """Build the loader of a split, if it has one."""
        key = f'{split}_dataloader'
        options = section_of(self.cfg, key)
        if not isinstance(options, Mapping) or not options.get('dataset'):
            return
        of_val = section_of(self.cfg, 'val_dataloader')
        if split == 'test' and options == of_val:
            # It is one variable in most configs.
            if 'val' in self.built:
                self.built['test'] = self.built['val']
                self.known |= {'test'} if 'val' in self.known else set()
            return
        dataset, made_up = self._dataset_of(split, options['dataset'])
        options['dataset'] = {'type': lambda: dataset}
        for name in ('collate_fn', 'worker_init_fn'):
            with self.outcome.catch_errors((key, name), 'be found'):
                function = options.get(name)
                kind = (
                    function.get('type')
                    if isinstance(function, Mapping)
                    else None
                )
                if isinstance(kind, str) and FUNCTIONS.get(kind) is None:
                    # MMEngine would go on with None.
                    raise KeyError(f'{kind} is not in the function registry')
                continue
            options.pop(name)
        loader = None
        with self.outcome.catch_errors((key,), made_up=made_up):
            loader = Runner.build_dataloader(options, seed=0)
        if loader is None or made_up:
            self.built[split] = DataLoader(_LongDataset(dataset))
            return
        # It must start no processes.
        loader.num_workers = loader.timeout = 0
        self.built[split] = loader
        if self.read_data and len(loader.dataset):
            failed = len(self.outcome.failures)
            with self.outcome.catch_errors(
                (key, 'dataset'), 'take its first sample through its pipeline'
            ):
                sample = loader.dataset[0]
                with self.outcome.catch_errors(
                    (key, 'collate_fn'), 'make a batch of the first sample'
                ):
                    loader.collate_fn([sample])
            if failed == len(self.outcome.failures):
                self.known.add(split)

    def _dataset_of(self, split: str, options: Any) -> tuple[Any, bool]:
        """The data set, and whether its entries are made up."""
        if not isinstance(options, Mapping):
            return options, False
        key, read = f'{split}_dataloader', False
        if self.read_data:
            with suppress(*_NO_FILE):
                check_data_paths(self.cfg, [split])
                read = True
        for section in walk_nodes(options, (key, 'dataset'), self.scope):
            kind = find_component(
                section.cfg.get('type'), (DATASETS,), section.scope
            )
            if inspect.isclass(kind) and issubclass(kind, BaseDataset):
                section.cfg['type'] = _with_made_up_data(kind, read)
        made = _LongDataset()
        with self.outcome.catch_errors((key, 'dataset'), made_up=not read):
            made = DATASETS.build(options)
            if hasattr(made, 'full_init'):
                made.full_init()
        made_up = isinstance(made, _LongDataset) or any(
            getattr(part, 'is_made_up', False) for part in walk_datasets(made)
        )
        return made, made_up

    def object_counts(self, split: str) -> list[int]:
        """Objects of the images of a split, of at most ``_COUNTED`` images.

        Crowds are no objects. Empty if the data are not here, or have no
        list of objects.
        """
        counts = []
        loader = self.built.get(split)
        for part in (
            walk_datasets(loader.dataset) if split in self.known else ()
        ):
            if not isinstance(part, BaseDataset):
                continue
            for index in range(0, len(part), len(part) // _COUNTED + 1):
                objects = part.get_data_info(index).get('instances')
                if isinstance(objects, list):
                    crowds = [
                        item
                        for item in objects
                        if isinstance(item, Mapping)
                        and item.get('ignore_flag')
                    ]
                    counts.append(len(objects) - len(crowds))
        return counts

    def choose(self, split: str) -> list[list[int]]:
        """Samples of the batches that a run gets of the data of a split.

        One of the training, and a few pictures of an evaluation, with the
        smallest, the largest and one without objects among them where the
        sampler leaves the choice.
        """
        loader = self.built[split]
        count, size = len(loader.dataset), loader.batch_size or 1
        is_plain = (
            type(loader.sampler) in (DefaultSampler, InfiniteSampler)
            and type(loader.batch_sampler) is BatchSampler
        )
        if split == 'train' and not (is_plain and count >= size):
            # None where an epoch has no batch.
            first = next(iter(loader.batch_sampler or ()), None)
            return [] if first is None else [first]
        number = size if split == 'train' else max(size, _VALIDATED)
        indices = _extremes(loader.dataset)
        indices += [i for i in range(min(count, number)) if i not in indices]
        del indices[number:]
        return [indices[i : i + size] for i in range(0, len(indices), size)]

    def batch(self, split: str, indices: Sequence[int]) -> tuple[Any, str]:
        """A batch of the data, and the files of its pictures in words."""
        loader = self.built[split]
        batch = loader.collate_fn([loader.dataset[i] for i in indices])
        infos = [
            loader.dataset.get_data_info(index)
            for index in indices[:_NAMED]
            if hasattr(loader.dataset, 'get_data_info')
        ]
        names = [str(i['img_path']) for i in infos if 'img_path' in i]
        more = len(indices) - len(names)
        text = f'with {", ".join(names)}' * bool(names)
        return batch, text + f' and {more} more' * bool(names and more)


def limited(
    loader: DataLoader,
    give: Callable[[], Iterable[Any]],
    batch_size: int | None,
) -> DataLoader:
    """The loader, which keeps its length and gives other batches.

    ``batch_size`` is that of the config: with a batch sampler a loader has
    none, and MMEngine's ``auto_scale_lr`` needs it.
    """
    kind = type(loader)
    loader = copy.copy(loader)
    object.__setattr__(loader, 'batch_size', batch_size)
    methods = {'__iter__': lambda self: iter(give())}
    object.__setattr__(
        loader, '__class__', type(kind.__name__, (kind,), methods)
    )
    return loader


def _extremes(dataset: Any) -> list[int]:
    """The smallest, the largest, one without objects, and the narrowest."""
    count = len(dataset)
    asked = range(0, count, max(count // _ASKED, 1))
    areas, shapes, empty = {}, {}, []
    for index in asked if hasattr(dataset, 'get_data_info') else ():
        info = dataset.get_data_info(index)
        size = (info.get('height'), info.get('width'))
        path = info.get('img_path')
        if None in size and isinstance(path, str) and os.path.isfile(path):
            with suppress(OSError), Image.open(path) as image:
                size = image.size
        if all(size):
            areas[index] = size[0] * size[1]
            shapes[index] = min(size) / max(size)
        if info.get('instances') == []:
            empty.append(index)
    chosen = empty[:1]
    if areas:
        ends = min(areas, key=areas.get), max(areas, key=areas.get)
        chosen = [*ends, *chosen, min(shapes, key=shapes.get)]
    return list(dict.fromkeys(chosen))


def _has_no_metrics(error: Exception) -> bool:
    """Whether a hook looks for a value, and there is none at all."""
    return any(
        frame.f_locals.get('metrics', True) in ({}, None)
        for frame, _ in frames_of(error)
        if isinstance(frame.f_locals.get('self'), Hook)
    )


def _is_missing_file(error: Exception) -> bool:
    """Whether data are elsewhere, which says nothing of the config's parts."""
    frames = frames_of(error)
    if not isinstance(error, AssertionError) or not frames:
        return isinstance(error, _NO_FILE)
    frame, line = frames[-1]
    code = linecache.getline(frame.f_code.co_filename, line)
    return _EXISTS.search(code) is not None


class _LongDataset(Dataset):
    """A data set of unknown length, which nothing is read of."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return MANY

    def __getattr__(self, name: str) -> Any:
        if name.startswith('_'):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def metainfo(self) -> Mapping:
        """As of the data set that it stands for."""
        return getattr(self._inner, 'metainfo', {})


def _with_made_up_data(kind: type[BaseDataset], read: bool) -> type:
    """A data set of the same kind, with entries where there are no data."""

    def full_init(self: Any) -> None:
        if self._fully_initialized:
            return
        if read:
            with suppress(*_NO_FILE):
                super(made, self).full_init()
                return
        # As many entries as it has classes, or a few.
        self.is_made_up = True
        count = len((self.metainfo or {}).get('classes') or ())
        self.data_list = [
            _entry(index, max(count, 1)) for index in range(max(count, _FEW))
        ]
        if self.serialize_data:
            self.data_bytes, self.data_address = self._serialize_data()
        self._fully_initialized = True

    made = type(kind.__name__, (kind,), {'full_init': full_init})
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    return made


def _entry(index: int, num_classes: int) -> dict[str, Any]:
    """One entry of a data set, as those of the hosts have it."""
    label = index % num_classes
    picture = {
        'img_path': 'made-up.png',
        'seg_map_path': 'made-up.png',
        'img_id': index,
        'sample_idx': index,
        'height': 64,
        'width': 64,
        'gt_label': label,
        'instances': [
            {'bbox': [0, 0, 9, 9], 'bbox_label': label, 'ignore_flag': 0}
        ],
    }
    return {
        **picture,
        'video_id': index,
        'video_length': 1,
        'images': [dict(picture)],
    }
