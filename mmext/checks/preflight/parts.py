"""Build all that a runner would build beside the model.

Each part is built by the method of the runner's class that a training calls,
on a runner that was never started: loops, data loaders with their data sets,
samplers, pipelines and collate functions, evaluators, schedulers, hooks,
visualizer, log processor, and what a test-time augmentation needs. One part
that fails does not keep the others from being built.
"""

import inspect
import linecache
import re
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from io import StringIO
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose, DefaultSampler
from mmengine.hooks import EMAHook
from mmengine.logging import MessageHub, MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import DATASETS, FUNCTIONS, MODELS, DefaultScope
from mmengine.runner import (
    EpochBasedTrainLoop,
    FlexibleRunner,
    Runner,
    set_random_seed,
)
from mmengine.utils.dl_utils import set_multi_processing
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..config import (
    RightPlaces,
    Steps,
    check_data_paths,
    copy_tree,
    find_component,
    walk_datasets,
    walk_dicts,
    walk_nodes,
)
from ..findings import ErrorCatcher, frames_of
from .build import Built, hook_configs
from .sandbox import (
    brief_collections,
    no_network,
    no_traces,
    plain_name,
    quiet,
    seeded,
)

_SPLITS = ('train', 'val', 'test')
# Batches of an epoch where the data are not here: more than any setting in
# iterations counts on.
_MANY = 1_000_000
_FEW = 64
# MMEngine's backends import these when they are used first, which the runner
# does at once.
_CLIENTS = {
    'TensorboardVisBackend': ('tensorboard',),
    'WandbVisBackend': ('wandb',),
    'MLflowVisBackend': ('mlflow',),
    'ClearMLVisBackend': ('clearml',),
    'NeptuneVisBackend': ('neptune',),
    'DVCLiveVisBackend': ('dvclive', 'pygit2'),
    'AimVisBackend': ('aim',),
}
# What says nothing of the config's parts.
_NO_FILE = (FileNotFoundError, NotADirectoryError)
# Some data sets assert that their files are there.
_EXISTS = re.compile(r'\b(exists|isfile|isdir|is_file|is_dir)\(')
# Functions in which a data set gives what it has read.
_GIVES_DATA = ('get_data_info', 'get_cat_ids', 'get_cat2imgs', '__getitem__')


class Failure(NamedTuple):
    """A part that could not be built."""

    # The section, or the part of one, that was being built.
    path: Steps
    error: Exception
    action: str = 'be built'
    # Whether entries that were made up, as the data are not here, may be why.
    made_up: bool = False


def build_parts(
    cfg: Config, built: Built | None, *, read_data: bool = False
) -> tuple[list[Failure], list[str], int]:
    """Build what a runner would build beside the model; keep nothing of it.

    Args:
        cfg: The config; it is not changed.
        built: The model that was built of it; None if it was not, so that
            an optimizer of one parameter takes its place. Schedulers change
            the groups of its optimizer.
        read_data: Read data that are here, and take one sample of each
            split through its pipeline. Where data are not read, or not here,
            made-up entries take their place.

    Returns:
        What failed, and what could not be looked at, in words: missing data
        and downloads are no failures. And how many samples an epoch of the
        training has whose last batch is not left out, 0 if that is not known.
    """
    given = cfg.to_dict()
    if not given.get('model'):
        # A part of a config, for others to inherit.
        return [], [], 0
    scope = built.scope if built else given.get('default_scope') or 'mmengine'
    with (
        no_traces(),
        brief_collections(),
        TemporaryDirectory(prefix='mmext_') as folder,
        DefaultScope.overwrite_default_scope(scope),
        no_network() as asked,
        seeded(0),
        quiet(),
        catch_warnings(),
        # COCO's reader prints.
        redirect_stdout(StringIO()),
    ):
        simplefilter('ignore')
        builder = _Builder(
            Config(copy_tree(given)), built, scope, read_data, folder, asked
        )
        builder.build_all()
    return builder.failures, builder.not_done, builder.samples


@dataclass
class _Builder:
    """Builds the parts of one config; ``asked`` are hosts to download from."""

    cfg: Config
    built: Built | None
    scope: str
    read_data: bool
    folder: str
    asked: list[str]
    failures: list[Failure] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)
    loaders: dict[str, DataLoader] = field(default_factory=dict)
    # Splits whose data are here and were read.
    known: set[str] = field(default_factory=set)
    samples: int = 0

    def build_all(self) -> None:
        """One part after the other, in the order of a training."""
        with self.catch_errors(('runner_type',)):
            self.runner  # noqa: B018  (it is made when it is asked for)
        if 'runner' not in vars(self):
            return
        with self.catch_errors(('env_cfg',), 'be used'):
            # Arguments of functions, which are not called.
            processes = (self.cfg.get('env_cfg') or {}).get('mp_cfg') or {}
            inspect.signature(set_multi_processing).bind(
                **processes, distributed=False
            )
        with self.catch_errors(('randomness',), 'be used'):
            inspect.signature(set_random_seed).bind(
                **{'seed': None, **(self.cfg.get('randomness') or {})}
            )
        with self.catch_errors(('log_processor',)):
            self.runner.build_log_processor(self.copy('log_processor') or {})
        self._build_visualizer()
        self._build_hooks()
        for split in _SPLITS:
            self._build_split(split)
        self._build_schedulers()
        # What ``tools/test.py --tta`` of the hosts builds.
        model, pipeline = self.copy('tta_model'), self.copy('tta_pipeline')
        if model and self.built is not None:
            with self.catch_errors(('tta_model',)):
                MODELS.build({**model, 'module': self.built.model})
        if pipeline:
            with self.catch_errors(('tta_pipeline',)):
                Compose(pipeline)

    def copy(self, key: str) -> Any:
        """A section as the runner gets it, to be changed at will."""
        return copy_of(self.cfg.to_dict().get(key))

    def catch_errors(
        self, path: Steps, action: str = 'be built', made_up: bool = False
    ) -> ErrorCatcher:
        """A block whose exception is a failure of the part."""
        before = len(self.asked)
        name = '.'.join(map(str, path))

        def take(error: Exception) -> None:
            if len(self.asked) > before:
                hosts = ', '.join(sorted(set(self.asked[before:])))
                self.not_done.append(
                    f'{name} was not built: it needs files of {hosts}, and a '
                    'preflight downloads nothing; fetch them first'
                )
            elif _is_missing_file(error):
                text = ' '.join(str(error).split())
                self.not_done.append(
                    f'{name} was not built to its end, as a file is not '
                    f'here: {text}'
                )
            elif isinstance(error, AttributeError) and error.obj is vars(
                self
            ).get('runner'):
                self.not_done.append(
                    f'{name} was not built: it asks the runner for '
                    f'{error.name}, which one that was not started does not '
                    'have'
                )
            else:
                unsure = made_up and any(
                    frame.f_code.co_name in _GIVES_DATA
                    for frame, _ in frames_of(error)
                )
                self.failures.append(Failure(path, error, action, unsure))

        return ErrorCatcher(take)

    @cached_property
    def runner(self) -> Runner:
        """A runner of the config's class that was not started."""
        locations = RightPlaces(self.cfg.to_dict())
        kind = locations.runner
        if kind is None:
            raise KeyError(
                f'{self.cfg.get("runner_type")!r} is not in the registry of '
                'runners'
            )
        if not issubclass(kind, Runner) or issubclass(kind, FlexibleRunner):
            kind = Runner
        runner = kind.__new__(kind)
        vars(runner).update(
            cfg=self.cfg,
            device=torch.device('cpu'),
            model=self.built.model if self.built else nn.Linear(1, 1),
            logger=MMLogger.get_current_instance(),
            message_hub=MessageHub.get_current_instance(),
            visualizer=SimpleNamespace(dataset_meta=None),
            auto_scale_lr=None,
            optim_wrapper=None,
            param_schedulers=None,
            _default_scope=self.scope,
            _work_dir=self.folder,
            _log_dir=self.folder,
            _experiment_name='preflight',
            _timestamp='preflight',
            _rank=0,
            _world_size=1,
            _launcher='none',
            _distributed=False,
            _seed=0,
            _deterministic=False,
            _randomness_cfg={},
            _hooks=[],
            _has_loaded=False,
            _load_from=None,
            _resume=False,
            _train_loop=None,
            _val_loop=None,
            _test_loop=None,
        )
        return runner

    def _build_visualizer(self) -> None:
        options = self.copy('visualizer')
        if options is None:
            return
        if isinstance(options, Mapping):
            # One of this name may be there already.
            options['name'] = 'preflight'
        with self.catch_errors(('visualizer',)):
            self.runner.visualizer = self.runner.build_visualizer(options)
        for path, part in walk_dicts(self.copy('visualizer'), ('visualizer',)):
            with self.catch_errors(path, 'be used'):
                kind = plain_name(part.get('type'))
                for package in _CLIENTS.get(kind, ()):
                    if find_spec(package) is None:
                        raise ImportError(
                            f'{kind} needs the package {package}'
                        )

    def _build_hooks(self) -> None:
        for path, hook in hook_configs(copy_of(self.cfg.to_dict())):
            if hook is None and path[0] == 'default_hooks':
                continue
            with self.catch_errors(path):
                before = set(self.runner.hooks)
                self.runner.register_hook(copy_of(hook))
                for new in set(self.runner.hooks) - before:
                    if isinstance(new, EMAHook) and self.built is not None:
                        # It copies the model at the start.
                        new.before_run(self.runner)
            if isinstance(hook, Mapping):
                for name, steps in hook.items():
                    if str(name).endswith('pipeline') and steps:
                        with self.catch_errors((*path, name)):
                            Compose(copy_of(steps))

    def _build_split(self, split: str) -> None:
        key = f'{split}_dataloader'
        self._build_loader(split, key)
        evaluator = self._evaluator(split)
        if self.cfg.get(f'{split}_cfg') is None:
            return
        loader = self.loaders.get(split)
        if split in self.known:
            # It must start no processes.
            loader.num_workers = loader.timeout = 0
        else:
            dataset = getattr(loader, 'dataset', None)
            loader = DataLoader(_LongDataset(dataset))
        vars(self.runner)[f'_{split}_dataloader'] = loader
        vars(self.runner)[f'_{split}_evaluator'] = evaluator
        build = getattr(self.runner, f'build_{split}_loop')
        if split != 'train' and evaluator is None:
            return
        with self.catch_errors((f'{split}_cfg',)):
            loop = build(self.copy(f'{split}_cfg'))
            vars(self.runner)[f'_{split}_loop'] = loop

    def _evaluator(self, split: str) -> Any:
        """The evaluator of a split; None without one."""
        options = self.copy(f'{split}_evaluator')
        if split == 'train' or not options:
            return None
        if split == 'test' and options == self.copy('val_evaluator'):
            return vars(self.runner).get('_val_evaluator')
        with self.catch_errors((f'{split}_evaluator',)):
            return self.runner.build_evaluator(options)
        return None

    def _build_loader(self, split: str, key: str) -> None:
        options = self.copy(key)
        if not isinstance(options, Mapping) or not options.get('dataset'):
            return
        if split == 'test' and options == self.copy('val_dataloader'):
            # It is one variable in most configs.
            return
        dataset, made_up = self._dataset_of(split, options['dataset'])
        options['dataset'] = {'type': lambda: dataset}
        for name in ('collate_fn', 'worker_init_fn'):
            with self.catch_errors((key, name), 'be found'):
                given = options.get(name)
                kind = (
                    given.get('type') if isinstance(given, Mapping) else None
                )
                if isinstance(kind, str) and FUNCTIONS.get(kind) is None:
                    # MMEngine would go on with None.
                    raise KeyError(f'{kind} is not in the function registry')
                continue
            options.pop(name)
        with self.catch_errors((key,), made_up=made_up):
            loader = self.runner.build_dataloader(options, seed=0)
            self.loaders[split] = loader
        if made_up or split not in self.loaders:
            return
        self.known.add(split)
        batches = loader.batch_sampler
        if (
            split == 'train'
            and isinstance(getattr(batches, 'sampler', None), DefaultSampler)
            and not getattr(batches, 'drop_last', True)
        ):
            self.samples = len(loader.dataset)
        if self.read_data and len(loader.dataset):
            with self.catch_errors(
                (key, 'dataset'), 'take its first sample through its pipeline'
            ):
                sample = loader.dataset[0]
                with self.catch_errors(
                    (key, 'collate_fn'), 'make a batch of the first sample'
                ):
                    loader.collate_fn([sample])

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
        with self.catch_errors((key, 'dataset'), made_up=not read):
            made = DATASETS.build(options)
            if hasattr(made, 'full_init'):
                made.full_init()
        made_up = isinstance(made, _LongDataset) or any(
            getattr(part, 'is_made_up', False) for part in walk_datasets(made)
        )
        return made, made_up

    def _build_schedulers(self) -> None:
        options = self.copy('param_scheduler')
        if not options:
            return
        if self.runner._train_loop is None:
            # Why there is none has been said.
            self.runner._train_loop = EpochBasedTrainLoop(
                self.runner, DataLoader(_LongDataset()), max_epochs=_MANY
            )
        # That of the model: after a forward another may not be built, as
        # modules may share parameters then.
        optimizer = self.built and self.built.optim_wrapper
        if optimizer is None:
            group = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, 0.9)
            optimizer = OptimWrapper(group)
        self.runner.optim_wrapper = optimizer
        if isinstance(optimizer, OptimWrapperDict) or not isinstance(
            options, list | tuple
        ):
            with self.catch_errors(('param_scheduler',)):
                self.runner._check_scheduler_cfg(options)
                self.runner.build_param_scheduler(options)
            return
        for index, option in enumerate(options):
            with self.catch_errors(('param_scheduler', index)):
                self.runner.build_param_scheduler([option])


def copy_of(value: Any) -> Any:
    """A copy of a part of a config, with attributes for keys."""
    return Config({'value': copy_tree(value)}).value


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
        return _MANY

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
