"""Let the runner of a config do, in small, what a training is going to do.

The runner's own class builds all parts of the config (hooks, data loaders,
loops, optimizer, schedulers, evaluators, visualizer), trains two iterations,
saves, validates with all metrics, loads what it has saved, and tests, in a
folder that is thrown away. Where the data are here, their pipelines give the
batches, with the smallest and the largest picture and one without objects
among them; where they are not, batches are made up. A part that fails is left
out, and the runner starts anew, so that it does not hide the next.
"""

import copy
import inspect
import linecache
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    ExitStack,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4
from warnings import catch_warnings, simplefilter

from mmengine.config import Config
from mmengine.dataset import (
    BaseDataset,
    Compose,
    DefaultSampler,
    InfiniteSampler,
)
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, FUNCTIONS, MODELS, DefaultScope
from mmengine.runner import (
    EpochBasedTrainLoop,
    FlexibleRunner,
    IterBasedTrainLoop,
    Runner,
)
from PIL import Image
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from ..config import (
    RightPlaces,
    Steps,
    check_data_paths,
    copy_tree,
    find_component,
    join_key,
    walk_datasets,
    walk_dicts,
    walk_nodes,
)
from ..ddp import all_tensors
from ..findings import ErrorCatcher, frames_of
from .batches import fake_batch, make_batches
from .build import Built, hook_configs, without_amp
from .recipe import make_recipe
from .sandbox import (
    CannotBuildError,
    brief_collections,
    no_network,
    no_traces,
    plain_name,
    process_settings,
    quiet,
    seeded,
)

_SPLITS = ('train', 'val', 'test')
# Sections of each.
_OF_SPLIT = ('dataloader', 'cfg', 'evaluator')
# Batches of an epoch where the data are not here: more than any setting in
# iterations counts on.
_MANY = 1_000_000
# Made-up entries of a data set without classes; pictures whose size is asked
# for; pictures of a validation, unless its batches are larger.
_FEW, _ASKED, _VALIDATED = 64, 200, 3
# Pictures of a batch that are named, and sections that look at them.
_NAMED = 4
_SEES_DATA = ('model', 'evaluator', 'dataloader')
# A prediction takes about this part of a training step.
_OF_STEP = 0.4
_MAX_ATTEMPTS = 32
# Bytes of a checkpoint that is written to try it.
_MAX_CHECKPOINT = 1 << 30
# MMEngine's backends import these when they are used first, which the runner
# does at once. All but the first talk to a server.
_CLIENTS = {
    'TensorboardVisBackend': ('tensorboard',),
    'WandbVisBackend': ('wandb',),
    'MLflowVisBackend': ('mlflow',),
    'ClearMLVisBackend': ('clearml',),
    'NeptuneVisBackend': ('neptune',),
    'DVCLiveVisBackend': ('dvclive', 'pygit2'),
    'AimVisBackend': ('aim',),
}
# Settings by which hooks, evaluators and visualizers write elsewhere.
_OUTPUTS = ('out_dir', 'outfile_prefix', 'output_dir', 'out_file_path')
_OUTPUTS += ('save_dir',)
# Methods of a runner, and the section of the config that they use.
_SECTIONS = {
    'build_train_loop': ('train_cfg',),
    'build_val_loop': ('val_cfg',),
    'build_test_loop': ('test_cfg',),
    'build_optim_wrapper': ('optim_wrapper',),
    'scale_lr': ('auto_scale_lr',),
    'build_param_scheduler': ('param_scheduler',),
    '_check_scheduler_cfg': ('param_scheduler',),
    'build_visualizer': ('visualizer',),
    'build_log_processor': ('log_processor',),
    'setup_env': ('env_cfg',),
    'set_randomness': ('randomness',),
    'load_or_resume': ('load_from',),
}
# What a part was doing, and the split whose batches it got.
_TRAIN = 'take part in the training'
_SPLIT_OF = {
    _TRAIN: 'train',
    'take part in the validation': 'val',
    'be loaded again': 'train',
    'take part in the test': 'test',
}
# Hooks of MMEngine that None takes away, and sections that may be missing.
_BUILTIN = ('runtime_info', 'timer', 'sampler_seed', 'logger')
_BUILTIN += ('param_scheduler', 'checkpoint')
_OPTIONAL = ('auto_scale_lr', 'custom_hooks', 'default_hooks', 'env_cfg')
_OPTIONAL += ('load_from', 'log_processor', 'param_scheduler', 'randomness')
_OPTIONAL += ('runner_type', 'visualizer')
_RAN = {
    'train': 'two iterations',
    'val': 'a validation',
    'resume': 'a checkpoint saved and loaded',
    'test': 'a test',
}
# What says nothing of the config's parts.
_NO_FILE = (FileNotFoundError, NotADirectoryError)
# Some data sets assert that their files are there.
_EXISTS = re.compile(r'\b(exists|isfile|isdir|is_file|is_dir)\(')
# Functions in which a data set gives what it has read.
_GIVES_DATA = ('get_data_info', 'get_cat_ids', 'get_cat2imgs', '__getitem__')


class Failure(NamedTuple):
    """A part that could not be built, or failed when it ran."""

    # The section, or the part of one, that was being built or ran.
    path: Steps
    error: Exception
    action: str = 'be built'
    # Whether what was made up, as the data are not here, may be why.
    made_up: bool = False
    # More of when it failed, for the message.
    detail: str = ''

    @property
    def runs(self) -> bool:
        """Whether it was built, and failed in the training in small."""
        return self.action in _SPLIT_OF


@dataclass
class Miniature:
    """What came of it."""

    failures: list[Failure] = field(default_factory=list)
    # What could not be looked at, in words: missing data and downloads are no
    # failures.
    not_done: list[str] = field(default_factory=list)
    # What went through, of the keys of _RAN.
    ran: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What the runner did, in words; nothing if it only built parts."""
        done = ', '.join(text for key, text in _RAN.items() if key in self.ran)
        return [f'the runner of the config, in small: {done}'] * bool(done)


def run_miniature(
    cfg: Config,
    built: Built | None,
    *,
    read_data: bool = False,
    limit: float = 0.0,
) -> Miniature:
    """Build what a runner builds, and run it in small; keep nothing of it.

    Args:
        cfg: The config; it is not changed.
        built: The model that was built of it, which is trained and is of no
            use afterwards; None if it was not, so that nothing is run.
        read_data: Use data that are here.
        limit: Seconds that running may take; 0 to build parts only. What
            would take longer, as the first iteration shows, is not begun.
    """
    given = cfg.to_dict()
    if not given.get('model'):
        # A part of a config, for others to inherit.
        return Miniature()
    scope = built.scope if built else given.get('default_scope') or 'mmengine'
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(no_traces())
        enter(brief_collections())
        folder = enter(TemporaryDirectory(prefix='mmext_'))
        enter(DefaultScope.overwrite_default_scope(scope))
        asked = enter(no_network())
        enter(seeded(0))
        enter(process_settings())
        enter(quiet())
        enter(catch_warnings())
        simplefilter('ignore')
        # COCO's reader prints, and loggers do.
        enter(redirect_stdout(StringIO()))
        enter(redirect_stderr(StringIO()))
        run = _Run(
            Config(copy_tree(given)),
            built,
            scope,
            read_data,
            limit,
            Path(folder),
            asked,
        )
        run.do()
    return run.result


class _Done(BaseException):
    """Ends a loop. No error, so that nobody handles it."""


@dataclass
class _Run:
    """The runs of one config; ``asked`` are hosts to download from."""

    cfg: Config
    built: Built | None
    scope: str
    read_data: bool
    limit: float
    folder: Path
    asked: list[str]
    result: Miniature = field(default_factory=Miniature)
    loaders: dict[str, DataLoader] = field(default_factory=dict)
    # Splits whose data are here and were read.
    known: set[str] = field(default_factory=set)
    # Sections that have failed.
    left_out: set[Steps] = field(default_factory=set)
    # Of one attempt: the runner, its hooks by identity, what it is doing.
    runner: Runner | None = None
    hooks: dict[int, Steps] = field(default_factory=dict)
    stage: str = 'be built'
    section: Steps = ()
    # Seconds for a pixel of a batch, as the first iteration took; its end.
    pace: float = 0.0
    end: float = 0.0
    pictures: str = ''

    def do(self) -> None:
        """Build the loaders, run until nothing fails, build the rest."""
        self.end = time.monotonic() + self.limit
        for split in _SPLITS:
            self._build_loader(split)
        self._look_into_parts()
        for split in ('val', 'test'):
            evaluator = self.copy(f'{split}_evaluator')
            if split not in self.known and any(
                part.get('ann_file') for _, part in walk_dicts(evaluator)
            ):
                # It knows the pictures of that file only.
                path = (f'{split}_evaluator',)
                self.left_out.add(path)
                if split == 'val' or evaluator != self.copy('val_evaluator'):
                    with self.catch_errors(path):
                        Runner.build_evaluator(None, evaluator)
        for _ in range(_MAX_ATTEMPTS):
            if not self._attempt():
                break
        # What ``tools/test.py --tta`` of the hosts builds.
        model, pipeline = self.copy('tta_model'), self.copy('tta_pipeline')
        if model and self.built is not None:
            with self.catch_errors(('tta_model',)):
                MODELS.build({**model, 'module': self.built.model})
        if pipeline:
            with self.catch_errors(('tta_pipeline',)):
                Compose(pipeline)

    def _look_into_parts(self) -> None:
        """Try what a runner does not use before much later."""
        for path, part in walk_dicts(self.copy('visualizer'), ('visualizer',)):
            with self.catch_errors(path, 'be used'):
                kind = plain_name(part.get('type'))
                for package in _CLIENTS.get(kind, ()):
                    if find_spec(package) is None:
                        raise ImportError(
                            f'{kind} needs the package {package}'
                        )
        for path, hook in hook_configs(self.cfg):
            for name, steps in (
                hook.items() if isinstance(hook, Mapping) else ()
            ):
                if str(name).endswith('pipeline') and steps:
                    with self.catch_errors((*path, name)):
                        Compose(copy_tree(steps))

    def copy(self, key: str) -> Any:
        """A section as the runner gets it, to be changed at will."""
        return Config({'value': copy_tree(self.cfg.to_dict().get(key))}).value

    def catch_errors(
        self,
        path: Steps,
        action: str = 'be built',
        made_up: bool = False,
    ) -> ErrorCatcher:
        """A block whose exception is a failure of the part."""
        before = len(self.asked)
        return ErrorCatcher(
            lambda error: self.take(error, path, action, made_up, before)
        )

    def take(
        self,
        error: Exception,
        path: Steps,
        action: str,
        made_up: bool,
        before: int,
    ) -> None:
        """A failure of a part, unless the machine is to blame."""
        name = join_key(path) or 'the runner'
        if len(self.asked) > before:
            hosts = ', '.join(sorted(set(self.asked[before:])))
            self.result.not_done.append(
                f'{name} cannot {action} here: it needs files of {hosts}, and '
                'a preflight downloads nothing; fetch them first'
            )
        elif _is_missing_file(error):
            text = ' '.join(str(error).split())
            self.result.not_done.append(
                f'{name} cannot {action} here, as a file is missing: {text}'
            )
        elif _has_no_metrics(error):
            self.result.not_done.append(
                f'{name} was not tried: there are no metrics without data, or '
                'as random weights predict nothing'
            )
        else:
            unsure = made_up and (
                action != 'be built'
                or any(
                    frame.f_code.co_name in _GIVES_DATA
                    for frame, _ in frames_of(error)
                )
            )
            detail = ''
            if path and path[0].endswith(_SEES_DATA):
                detail = self.pictures
            self.result.failures.append(
                Failure(path, error, action, unsure, detail)
            )

    # Data -------------------------------------------------------------------

    def _build_loader(self, split: str) -> None:
        """Build the loader of a split, and let it give a few batches."""
        key, options = f'{split}_dataloader', self.copy(f'{split}_dataloader')
        if not isinstance(options, Mapping) or not options.get('dataset'):
            return
        if split == 'test' and options == self.copy('val_dataloader'):
            # It is one variable in most configs.
            if 'val' in self.loaders:
                self.loaders['test'] = self.loaders['val']
                self.known |= {'test'} if 'val' in self.known else set()
            return
        dataset, made_up = self._dataset_of(split, options['dataset'])
        options['dataset'] = {'type': lambda: dataset}
        for name in ('collate_fn', 'worker_init_fn'):
            with self.catch_errors((key, name), 'be found'):
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
        with self.catch_errors((key,), made_up=made_up):
            loader = Runner.build_dataloader(options, seed=0)
        if loader is None or made_up:
            self.loaders[split] = DataLoader(_LongDataset(dataset))
            return
        # It must start no processes.
        loader.num_workers = loader.timeout = 0
        self.loaders[split] = loader
        if self.read_data and len(loader.dataset):
            failed = len(self.result.failures)
            with self.catch_errors(
                (key, 'dataset'), 'take its first sample through its pipeline'
            ):
                sample = loader.dataset[0]
                with self.catch_errors(
                    (key, 'collate_fn'), 'make a batch of the first sample'
                ):
                    loader.collate_fn([sample])
            if failed == len(self.result.failures):
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
        with self.catch_errors((key, 'dataset'), made_up=not read):
            made = DATASETS.build(options)
            if hasattr(made, 'full_init'):
                made.full_init()
        made_up = isinstance(made, _LongDataset) or any(
            getattr(part, 'is_made_up', False) for part in walk_datasets(made)
        )
        return made, made_up

    def _batches(self, split: str) -> list[Callable[[], Any]]:
        """What makes each batch that a loop gets of a split."""
        loader = self.loaders[split]
        made: list[Any] = []
        if self.built is not None and (split == 'train' or not self._own):
            with suppress(CannotBuildError):
                made = self._made_up(split)
        if split not in self.known:
            return [lambda b=b: copy.deepcopy(b) for b in made]
        indices = _extremes(loader.dataset)
        size = loader.batch_size or 1
        if split == 'train':
            plain = (
                type(loader.sampler) in (DefaultSampler, InfiniteSampler)
                and type(loader.batch_sampler) is BatchSampler
            )
            if plain and len(loader.dataset) >= size:
                rest = set(range(min(len(loader.dataset), 2 * size)))
                chosen = [*indices, *sorted(rest - set(indices))][:size]
            else:
                chosen = next(iter(loader.batch_sampler))
            real = [chosen]
        else:
            taken = indices[: max(size, _VALIDATED)]
            real = [
                taken[start : start + size]
                for start in range(0, len(taken), size)
            ]
        batches = [
            lambda chosen=chosen: self._real_batch(split, chosen, made)
            for chosen in real
        ]
        if split == 'train' and made:
            # Small, which shows how long the next one takes.
            batches.insert(0, lambda: copy.deepcopy(made[0]))
        return batches

    @property
    def _own(self) -> bool:
        """Whether samples are those of no host, which only its data have."""
        return self.built.task == 'data set'

    def _made_up(self, split: str) -> list[Any]:
        """Two batches of the config's size, as the pipeline packs them."""
        built = self.built
        loader = self.cfg.get(f'{split}_dataloader') or {}
        size = loader.get('batch_size')
        size = size if isinstance(size, int) and size > 0 else 1
        if split == 'train':
            batches = make_batches(built, ['normal'], batch_size=size)
            return batches.get('normal', [])
        recipe = make_recipe(
            {**built.cfg.to_dict(), 'train_dataloader': loader},
            built.model,
            built.recipe.size,
            built.recipe.declared_size,
        )
        if recipe.task == 'data set':
            return []
        return [fake_batch(recipe, 'normal', batch_size=size)]

    def _real_batch(
        self, split: str, indices: Sequence[int], made: Sequence[Any]
    ) -> Any:
        """A batch of the data; a made-up one where a step takes too long."""
        loader = self.loaders[split]
        batch = loader.collate_fn([loader.dataset[i] for i in indices])
        names = list(filter(None, _paths_of(loader.dataset, indices[:_NAMED])))
        more = len(indices) - len(names)
        self.pictures = f'with {", ".join(names)}' if names else ''
        self.pictures += f' and {more} more' if names and more else ''
        needed = self.pace * _pixels(batch)
        if split != 'train':
            needed *= _OF_STEP
        left = self.end - time.monotonic()
        if needed <= left:
            return batch
        what = 'no step was trained'
        if split != 'train':
            what = 'nothing was predicted'
        self.result.not_done.append(
            f'{what} with pictures of {split}_dataloader: it takes about '
            f'{needed:.0f} s, and {max(left, 0):.0f} s are left of '
            '--miniature'
        )
        self.pictures = ''
        if split != 'train' or not made:
            raise _Done
        return copy.deepcopy(made[-1])

    # The run ----------------------------------------------------------------

    def _attempt(self) -> bool:
        """Run; whether a part has failed that can be left out."""
        before, failed = len(self.asked), []
        self.runner, self.hooks, self.section = None, {}, ()
        self.stage, self.result.ran, self.pictures = 'be built', [], ''
        with ErrorCatcher(failed.append):
            self._run()
        if not failed:
            return False
        path = self._blame(failed[0])
        if not path and frames_of(failed[0])[-1][0].f_code.co_filename == (
            __file__
        ):
            raise failed[0]
        made_up = (
            _SPLIT_OF.get(self.stage, 'train') not in self.known
            and bool(path)
            and path[0].endswith(_SEES_DATA)
        )
        self.take(failed[0], path, self.stage, made_up, before)
        return self._leave_out(path)

    def _leave_out(self, path: Steps) -> bool:
        """Take a part out of the next attempt; whether that can be done."""
        part = path[:1]
        if part == ('model',) or not part:
            # The rest can still be built.
            part = ('steps',)
        elif part[0].endswith('_hooks') or isinstance(path[-1], int):
            part = path[:2]
        if part in self.left_out:
            return False
        self.left_out.add(part)
        return True

    def _config(self) -> Config:
        """That of an attempt, without what has failed.

        It writes nothing outside of a folder, and needs no GPU.
        """
        cfg = Config(copy_tree(self.cfg.to_dict()))
        out = {part[0] for part in self.left_out if len(part) == 1}
        for split in ('val', 'test'):
            names = [f'{split}_{end}' for end in _OF_SPLIT]
            if split not in self.loaders or f'{split}_cfg' in out:
                for name in names:
                    cfg.pop(name, None)
            elif f'{split}_evaluator' in out:
                cfg[f'{split}_evaluator'] = {'type': _NoMetric}
        if 'train_cfg' in out:
            cfg.train_cfg = {'by_epoch': True, 'max_epochs': _MANY}
        if 'optim_wrapper' in out:
            cfg.optim_wrapper = {'optimizer': {'type': 'SGD', 'lr': 0.0}}
        for name in out.intersection(_OPTIONAL):
            cfg.pop(name, None)
        for name in ('custom_hooks', 'param_scheduler'):
            if isinstance(cfg.get(name), list):
                cfg[name] = [
                    part
                    for index, part in enumerate(cfg[name])
                    if (name, index) not in self.left_out
                ]
        for part in self.left_out:
            if part[0] == 'default_hooks' and len(part) > 1:
                cfg.default_hooks[part[1]] = None
                if part[1] not in _BUILTIN:
                    del cfg.default_hooks[part[1]]
        cfg.work_dir = str(self.folder / 'work_dir')
        cfg.experiment_name = f'preflight_{uuid4().hex}'
        cfg.launcher, cfg.resume, cfg.compile = 'none', False, False
        cfg.log_level, cfg.default_scope = 'ERROR', self.scope
        if not os.path.isfile(str(cfg.get('load_from'))):
            cfg.load_from = None
        if isinstance(cfg.get('optim_wrapper'), Mapping):
            cfg.optim_wrapper = without_amp(cfg.optim_wrapper)
        for name in ('default_hooks', 'custom_hooks', 'visualizer'):
            self._redirect(name, cfg.get(name))
        for name in ('val_evaluator', 'test_evaluator'):
            self._redirect(name, cfg.get(name))
        if isinstance(cfg.get('visualizer'), Mapping):
            # One of this name may be there already.
            cfg.visualizer.name = 'preflight'
            backends = cfg.visualizer.get('vis_backends')
            if isinstance(backends, list):
                cfg.visualizer.vis_backends = [
                    part
                    for part in backends
                    if plain_name(part.get('type')) not in _CLIENTS
                ]
        return cfg

    def _redirect(self, name: str, section: Any) -> None:
        """Let parts write into the folder, and show nothing."""
        for path, part in walk_dicts(section, (name,)):
            for key in _OUTPUTS:
                if isinstance(part.get(key), str):
                    part[key] = str(self.folder / join_key(path) / key)
                    part.pop('backend_args', None)
            if part.get('show') is True:
                part['show'] = False

    def _run(self) -> None:
        """Build a runner; let it train, validate, load and test."""
        self.section = ('runner_type',)
        kind = RightPlaces(self.cfg.to_dict()).runner
        if ('runner_type',) in self.left_out:
            kind = Runner
        if kind is None:
            raise KeyError(
                f'{self.cfg.get("runner_type")!r} is not in the registry of '
                'runners'
            )
        if not issubclass(kind, Runner) or issubclass(kind, FlexibleRunner):
            # The strategy of a flexible one wants its devices.
            kind = Runner
        self.section = ()
        cfg = self._config()
        runner = self._class_of(kind, cfg).from_cfg(cfg)
        runs = self.limit > 0 and self.built is not None
        runs &= ('steps',) not in self.left_out
        counts = {}
        is_same = all(
            self.copy(f'val_{end}') == self.copy(f'test_{end}')
            for end in _OF_SPLIT
        )
        for split in _SPLITS[: 2 if is_same else 3]:
            if split in self.loaders and cfg.get(f'{split}_cfg') is not None:
                batches = self._batches(split) if runs else []
                counts[split] = len(batches)
                loader = _limited(self.loaders[split], batches)
                vars(runner)[f'_{split}_dataloader'] = loader
        runner.register_hook(_Conductor(self, counts))
        if runs:
            _accept_all_predictions(self.built.model)
        if 'train' in counts:
            with suppress(_Done):
                runner.train()
        saved = sorted(
            self.folder.glob('work_dir/**/*.pth'), key=os.path.getmtime
        )
        if saved and 'train' in self.result.ran:
            self.stage = 'be loaded again'
            runner.resume(str(saved[-1]))
            self.result.ran.append('resume')
        self.stage = 'be built'
        if 'test' in counts:
            with suppress(_Done):
                runner.test()

    def _class_of(self, kind: type[Runner], cfg: Config) -> type[Runner]:
        """The runner's class; it stays on the CPU, and notes its hooks."""
        run = self
        paths = dict(hook_configs(cfg))
        # Of the config before parts were left out.
        kept = [
            path
            for path, _ in hook_configs(self.cfg)
            if path not in self.left_out and path[0] == 'custom_hooks'
        ]

        def start(self: Runner, **options: Any) -> None:
            run.runner = self
            model = run.built.model if run.built else _StandIn()
            kind.__init__(self, **{**options, 'model': model})

        def register_hook(self: Runner, hook: Any, *args: Any) -> None:
            path = next((p for p in paths if paths[p] == hook), ())
            paths.pop(path, None)
            if path[:1] == ('custom_hooks',):
                path = kept[path[1]]
            run.section, before = path, {id(part) for part in self._hooks}
            kind.register_hook(self, hook, *args)
            for part in self._hooks:
                if id(part) not in before:
                    run.hooks[id(part)] = path
            run.section = ()

        methods = {
            '__init__': start,
            'register_hook': register_hook,
            'wrap_model': lambda self, cfg, model: model,
            # They are initialised, and those of a file are left out.
            '_init_model_weights': lambda self: None,
        }
        return type(kind.__name__, (kind,), methods)

    def _blame(self, error: Exception) -> Steps:
        """The section of the config whose part has failed."""
        runner, owners = self.runner, dict(self.hooks)
        state = vars(runner) if runner is not None else {}
        for split in _SPLITS:
            loader, loop = self.loaders.get(split), state.get(f'_{split}_loop')
            evaluator = getattr(loop, 'evaluator', None)
            for part in [evaluator, *getattr(evaluator, 'metrics', ())]:
                owners[id(part)] = (f'{split}_evaluator',)
            for part in (
                [] if loader is None else walk_datasets(loader.dataset)
            ):
                owners.setdefault(id(part), (f'{split}_dataloader', 'dataset'))
            owners[id(loop)] = (f'{split}_cfg',)
        schedulers = state.get('param_schedulers')
        for part in schedulers if isinstance(schedulers, list) else ():
            owners[id(part)] = ('param_scheduler',)
        owners[id(state.get('optim_wrapper'))] = ('optim_wrapper',)
        if isinstance(state.get('model'), nn.Module):
            owners |= dict.fromkeys(
                map(id, state['model'].modules()), ('model',)
            )
        evaluator = False
        for frame, _ in reversed(frames_of(error)):
            owner, name = frame.f_locals.get('self'), frame.f_code.co_name
            if owner is not None and id(owner) in owners:
                return owners[id(owner)]
            if owner is None or owner is not runner:
                continue
            evaluator |= name == 'build_evaluator'
            if name == 'register_hook' and self.section:
                return self.section
            if name in _SECTIONS:
                path = _SECTIONS[name]
                if evaluator and path[0] != 'train_cfg':
                    path = (path[0].replace('cfg', 'evaluator'),)
                return path
        return self.section


class _StandIn(BaseModel):
    """Takes the place of a model that was not built."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Never called: nothing is run."""


class _NoMetric(BaseMetric):
    """Takes the place of metrics that cannot be built here."""

    def process(self, data_batch: Any, data_samples: Sequence[Any]) -> None:
        """Keep something, as nothing would be warned of."""
        self.results.append(None)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """None."""
        return {}


class _Conductor(Hook):
    """Cuts a run short; ``counts`` are the batches of each split."""

    # After all others, which see the length that the config says.
    priority = 'LOWEST'

    def __init__(self, run: _Run, counts: Mapping[str, int]) -> None:
        self._run, self._counts = run, counts
        self._begun, self._steps = 0.0, 0

    def before_train(self, runner: Runner) -> None:
        """Let the training end after its batches, and validate then."""
        count = self._counts['train']
        if not count:
            raise _Done
        self._run.stage, loop = _TRAIN, runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            loop._max_epochs, loop._max_iters = 1, count
        elif isinstance(loop, IterBasedTrainLoop):
            loop._max_iters = count
        if hasattr(loop, 'val_begin'):
            loop.val_begin = min(loop.val_begin, loop.max_epochs or 1)
        runner.optim_wrapper.initialize_count_status(runner.model, 0, count)
        # Weights, and what an optimizer and an average keep of them.
        size = 4 * sum(
            tensor.numel() * tensor.element_size()
            for tensor in runner.model.state_dict().values()
        )
        if size > _MAX_CHECKPOINT:
            runner._hooks = [
                hook
                for hook in runner.hooks
                if not isinstance(hook, CheckpointHook)
            ]
            self._run.result.not_done.append(
                f'no checkpoint was saved: it has about {size / 1e9:.1f} GB'
            )

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Look at the clock."""
        self._begun = time.monotonic()
        if self._begun > self._run.end:
            self._stop('training')

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        """Note how long it took; end loops of other kinds."""
        seconds, self._steps = time.monotonic() - self._begun, self._steps + 1
        pixels = _pixels(data_batch)
        if pixels:
            self._run.pace = seconds / pixels
        if self._steps == self._counts['train']:
            self._run.result.ran.append('train')
            loop = runner.train_loop
            if not isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop):
                raise _Done

    def before_val(self, runner: Runner) -> None:
        """What fails now, fails in the validation."""
        self._begin('val', 'take part in the validation')

    def after_val(self, runner: Runner) -> None:
        """What fails now, fails in the training."""
        self._run.result.ran.append('val')
        self._run.stage = _TRAIN

    def before_test(self, runner: Runner) -> None:
        """What fails now, fails in the test."""
        self._begin('test', 'take part in the test')

    def after_test(self, runner: Runner) -> None:
        """It went through."""
        self._run.result.ran.append('test')

    def _begin(self, split: str, stage: str) -> None:
        """Begin an evaluation, if there is something to evaluate."""
        if not self._counts[split]:
            if self._counts.get('train'):
                self._run.result.not_done.append(
                    f'nothing was predicted for {split}_evaluator: the data '
                    'are not here'
                )
            raise _Done
        self._run.stage = stage
        if time.monotonic() > self._run.end:
            self._stop(f'the evaluation of {split}_dataloader')

    def _stop(self, what: str) -> None:
        self._run.result.not_done.append(
            f'{what} was not run to its end: the {self._run.limit:g} s of '
            '--miniature were over'
        )
        raise _Done


def _limited(
    loader: DataLoader, batches: Sequence[Callable[[], Any]]
) -> DataLoader:
    """The loader, which keeps its length and gives only these batches."""
    kind = type(loader)
    kind = getattr(kind, 'whole', kind)

    def give(self: DataLoader) -> Iterator[Any]:
        for make in batches:
            yield make()

    object.__setattr__(
        loader,
        '__class__',
        type(kind.__name__, (kind,), {'__iter__': give, 'whole': kind}),
    )
    return loader


def _extremes(dataset: Any) -> list[int]:
    """Some of a data set: the smallest, the largest, one without objects."""
    count = len(dataset)
    asked = range(0, count, max(count // _ASKED, 1))
    areas, empty = {}, []
    for index in asked if hasattr(dataset, 'get_data_info') else ():
        info = dataset.get_data_info(index)
        size = (info.get('height'), info.get('width'))
        path = info.get('img_path')
        if None in size and isinstance(path, str) and os.path.isfile(path):
            with suppress(OSError), Image.open(path) as image:
                size = image.size
        if None not in size:
            areas[index] = size[0] * size[1]
        if info.get('instances') == []:
            empty.append(index)
    chosen = []
    if areas:
        chosen = [min(areas, key=areas.get), max(areas, key=areas.get)]
    chosen += [*empty[:1], *range(min(count, 2 * _VALIDATED))]
    return list(dict.fromkeys(chosen))


def _paths_of(dataset: Any, indices: Sequence[int]) -> Iterator[str]:
    """Files of the pictures, as far as a data set says."""
    for index in indices if hasattr(dataset, 'get_data_info') else ():
        yield str(dataset.get_data_info(index).get('img_path') or '')


def _pixels(batch: Any) -> int:
    """Pixels of the pictures of a batch, with their padding."""
    inputs = batch.get('inputs') if isinstance(batch, Mapping) else batch
    pictures = [t for t in all_tensors(inputs) if t.dim() > 2]
    if not pictures:
        return 0
    height = max(picture.shape[-2] for picture in pictures)
    width = max(picture.shape[-1] for picture in pictures)
    # Some are stacked.
    count = sum(p.numel() // p.shape[-2:].numel() for p in pictures)
    return count * height * width


def _accept_all_predictions(model: nn.Module) -> None:
    """Let no score be too low, as those of random weights are."""
    for module in model.modules():
        options = getattr(module, 'test_cfg', None)
        if not isinstance(options, Mapping):
            continue
        module.test_cfg = copy.deepcopy(options)
        for _, part in walk_dicts(module.test_cfg, ()):
            if isinstance(part.get('score_thr'), float):
                part['score_thr'] = 0.0


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
