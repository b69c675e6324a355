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
import os
from collections.abc import Iterator, Mapping
from contextlib import (
    ExitStack,
    closing,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from warnings import catch_warnings, simplefilter

from mmengine.config import Config
from mmengine.dataset import Compose, DefaultSampler
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import (
    EpochBasedTrainLoop,
    FlexibleRunner,
    IterBasedTrainLoop,
    Runner,
)
from torch import nn

from ..config import (
    RightLocations,
    Steps,
    copy_tree,
    walk_datasets,
    walk_dicts,
)
from ..findings import ErrorCatcher, frames_of
from .batches import fake_batch, make_batches
from .build import Built, build_for_preflight, hook_configs
from .first_steps import fit_batch_size
from .loaders import (
    MADE_UP,
    SPLITS,
    Failure,
    Loaders,
    Outcome,
    limited,
    section_of,
)
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
from .smoke_budget import Budget
from .smoke_config import CLIENTS, smoke_config
from .trainable import TrainableChange, TrainableWatch

# Sections whose parts look at pictures, and at predictions.
_SEES_DATA = ('model', 'evaluator', 'dataloader')
_SEES_PREDICTIONS = ('model', 'evaluator')
_ITERATIONS = 2
_MAX_ATTEMPTS = 32
# Bytes of a checkpoint that is written to try it.
_MAX_CHECKPOINT = 1 << 30
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
_RAN = {
    'train': 'two iterations',
    'val': 'a validation',
    'resume': 'a checkpoint saved and loaded',
    'test': 'a test',
}


@dataclass
class Miniature(Outcome):
    """What came of it."""

    # What went through, of the keys of _RAN.
    ran: list[str] = field(default_factory=list)
    # Of an epoch of the training whose last batch is kept; 0 if not known.
    samples: int = 0
    # Of images of each split whose data are here.
    objects: dict[str, list[int]] = field(default_factory=dict)
    # Hooks that have frozen or unfrozen parameters.
    trainable: list[TrainableChange] = field(default_factory=list)

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

    The model that was built of the config is trained, and of no use
    afterwards; without one nothing is run. ``read_data`` is to use data that
    are here, ``limit`` the seconds that running may take, 0 to build parts
    only: what would take longer, as the first iteration shows, is not begun.
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
        cfg, result = Config(copy_tree(given)), Miniature(asked)
        loaders = Loaders(cfg, scope, read_data, result)
        run = _Run(cfg, built, scope, limit, Path(folder), result, loaders)
        run.do()
    return result


class _Done(BaseException):
    """Ends a loop. No error, so that nobody handles it."""


@dataclass
class _Run:
    """The runs of one config."""

    cfg: Config
    built: Built | None
    scope: str
    limit: float
    folder: Path
    result: Miniature
    loaders: Loaders
    # Fewest samples of a made-up batch.
    least: int = 1
    budget: Budget = field(default_factory=partial(Budget, 0.0))
    # Sections that have failed.
    left_out: set[Steps] = field(default_factory=set)
    # Of one attempt: the runner, its hooks by identity, what is being done,
    # in which section, and with which pictures.
    runner: Runner | None = None
    hooks: dict[int, Steps] = field(default_factory=dict)
    watch: TrainableWatch = field(default_factory=TrainableWatch)
    stage: str = 'be built'
    section: Steps = ()
    pictures: str = ''
    # Whether an evaluation begins with weights of another seed.
    other_weights: bool = False
    # Of each split, until its loop takes them.
    batches: dict[str, Iterator[Any]] = field(default_factory=dict)

    def do(self) -> None:
        """Build the loaders, run until nothing fails, build the rest."""
        catch = self.result.catch_errors
        for split in SPLITS:
            self.loaders.build(split)
            self.result.objects[split] = self.loaders.object_counts(split)
        if self.built is not None:
            self.least = fit_batch_size(self.built.model)
        loader = self.loaders.built.get('train')
        batches = getattr(loader, 'batch_sampler', None)
        if (
            'train' in self.loaders.known
            and isinstance(getattr(batches, 'sampler', None), DefaultSampler)
            and not getattr(batches, 'drop_last', True)
        ):
            self.result.samples = len(loader.dataset)
        self.budget = Budget(self.limit)
        self._look_into_parts()
        for split in ('val', 'test'):
            path = (f'{split}_evaluator',)
            evaluator = section_of(self.cfg, *path)
            if split not in self.loaders.known and any(
                part.get('ann_file') for _, part in walk_dicts(evaluator)
            ):
                # It knows the pictures of that file only.
                self.left_out.add(path)
                of_val = section_of(self.cfg, 'val_evaluator')
                if split == 'val' or evaluator != of_val:
                    with catch(path):
                        Runner.build_evaluator(None, evaluator)
        for _ in range(_MAX_ATTEMPTS):
            if not self._attempt():
                break
        # What ``tools/test.py --tta`` of the hosts builds.
        model = section_of(self.cfg, 'tta_model')
        if model and self.built is not None:
            with catch(('tta_model',)):
                MODELS.build({**model, 'module': self.built.model})
        pipeline = section_of(self.cfg, 'tta_pipeline')
        if pipeline:
            with catch(('tta_pipeline',)):
                Compose(pipeline)

    def _look_into_parts(self) -> None:
        """Try what a runner does not use before much later."""
        visualizer = section_of(self.cfg, 'visualizer')
        for path, part in walk_dicts(visualizer, ('visualizer',)):
            with self.result.catch_errors(path, 'be used'):
                kind = plain_name(part.get('type'))
                for package in CLIENTS.get(kind, ()):
                    if find_spec(package) is None:
                        raise ImportError(
                            f'{kind} needs the package {package}'
                        )
        for path, hook in hook_configs(self.cfg):
            options = hook if isinstance(hook, Mapping) else {}
            for name, steps in options.items():
                if str(name).endswith('pipeline') and steps:
                    with self.result.catch_errors((*path, name)):
                        Compose(copy_tree(steps))

    # Batches ----------------------------------------------------------------

    def _batches(self, split: str) -> Iterator[Any]:
        """What a loop gets of a split, for as many iterations as it takes.

        The first batch of a training is made up and small, and shows how long
        others take; one that would take too long is left out.
        """
        known = split in self.loaders.known
        give = self._real if known else self._made_up
        if split == 'train':
            yield from self._made_up(split)
        for number, batch in enumerate(give(split)):
            part = self._affordable(split, batch, number)
            if part is None:
                self.pictures = ''
                break
            yield part
        if split == 'train':
            # For iterations that there is no other batch for.
            yield from self._made_up(split) or give(split)

    def _real(self, split: str) -> Iterator[Any]:
        """Batches of the data if they are here, one of a training."""
        for indices in self.loaders.choose(split):
            batch, self.pictures = self.loaders.batch(split, indices)
            if self.built is not None and isinstance(batch, Mapping):
                self._pad_for(batch.get('inputs'))
            yield batch

    def _pad_for(self, images: Any) -> None:
        """Let images be padded to the size of the largest, or as configured.

        The model was built for smaller ones.
        """
        if not isinstance(images, list | tuple):
            return
        recipe = self.built.recipe
        size = tuple(
            max(least, min(most, max(image.shape[axis] for image in images)))
            for axis, least, most in zip(
                (-2, -1), recipe.size, recipe.declared_size
            )
        )
        for module in self.built.model.data_preprocessor.modules():
            if isinstance(getattr(module, 'size', None), tuple):
                module.size = size

    def _made_up(self, split: str) -> list[Any]:
        """A small batch as the pipeline packs it; none if that is unknown."""
        built, size = self.built, self.least
        with suppress(CannotBuildError):
            if split == 'train':
                if built.task == 'data set' and split in self.loaders.known:
                    return []
                made = make_batches(
                    built, ['normal'], steps=1, batch_size=size
                )
                return made.get('normal', [])
            recipe = make_recipe(
                {
                    **built.cfg.to_dict(),
                    'train_dataloader': self.cfg[f'{split}_dataloader'],
                },
                built.model,
                built.recipe.size,
                built.recipe.declared_size,
            )
            if recipe.task != 'data set':
                return [fake_batch(recipe, 'normal', batch_size=size)]
        return []

    def _affordable(self, split: str, batch: Any, number: int) -> Any | None:
        """A batch that the budget has time and memory for; None for none.

        Where the whole one takes too much, it has the fewest samples.
        ``number`` counts the batches before it.
        """
        parts, reason = [batch], ''
        if isinstance(batch, Mapping) and all(
            isinstance(value, list | tuple) for value in batch.values()
        ):
            parts.append({k: v[: self.least] for k, v in batch.items()})
        for part in parts:
            reason = self.budget.why_not(split, part, not number)
            if not reason:
                return part
        done = 'only a part' if number else 'nothing'
        self.result.not_done.append(
            f'{done} was run with data of {split}_dataloader: {reason}'
        )
        return None

    # The run ----------------------------------------------------------------

    def _attempt(self) -> bool:
        """Run; whether a part has failed that can be left out."""
        before, failed = len(self.result.asked), []
        self.runner, self.hooks, self.section = None, {}, ()
        self.batches, self.watch = {}, TrainableWatch()
        self.stage, self.result.ran, self.pictures = 'be built', [], ''
        with ErrorCatcher(failed.append), closing(self.budget):
            self._run()
        if not failed:
            return False
        path = self._blame(failed[0])
        code = frames_of(failed[0])[-1][0].f_code
        if not path and Path(code.co_filename).parent == Path(__file__).parent:
            # It is ours.
            raise failed[0]
        split = _SPLIT_OF.get(self.stage, '')
        sees_data = bool(split and path) and path[0].endswith(_SEES_DATA)
        doubt, is_shown = '', False
        if sees_data:
            doubt, is_shown = self._doubt(failed[0], path, split)
        failure = Failure(
            path,
            failed[0],
            self.stage,
            doubt,
            is_shown,
            split,
            self.pictures if sees_data else '',
        )
        if not self._leave_out(path):
            # It was said before.
            return False
        self.result.take(failure, before)
        return True

    def _doubt(
        self, error: Exception, path: Steps, split: str
    ) -> tuple[str, bool]:
        """Why a training may not meet an error, and whether that is shown."""
        if split not in self.loaders.known:
            return MADE_UP, False
        if split == 'train' or not path[0].endswith(_SEES_PREDICTIONS):
            return '', False
        stage = self.stage
        again = self._with_other_weights(split)
        self.stage = stage
        if isinstance(again, CannotBuildError):
            # Nothing is known of other weights, so nothing is softened.
            return '', False
        if again is None or _origin(again) != _origin(error):
            end = f'it is {type(again).__name__}' if again else 'it is gone'
            return (
                f'the weights are the cause: with other random weights {end}',
                True,
            )
        seen = sum(map(len, self.loaders.choose(split)))
        count = len(self.loaders.built[split].dataset)
        if seen < count and any(
            frame.f_code.co_name == 'evaluate'
            and isinstance(frame.f_locals.get('self'), Evaluator)
            for frame, _ in frames_of(error)
        ):
            text = f'the metric got {seen} of {count} samples'
            return f'{text}, which may be the cause', False
        return '', False

    def _with_other_weights(self, split: str) -> Exception | None:
        """Run a loop once more with weights of another seed; its error."""
        loop = vars(self.runner)[f'_{split}_loop']
        evaluator = getattr(loop, 'evaluator', None)
        for metric in getattr(evaluator, 'metrics', ()):
            metric.results.clear()
        before = self.pictures, self.result.ran
        failed: list[Exception] = []
        self.other_weights, self.result.ran = True, []
        self.batches[split] = self._batches(split)
        # The same batches again take no longer than they did.
        with (
            self.budget.free(),
            ErrorCatcher(failed.append),
            suppress(_Done),
            closing(self.budget),
        ):
            loop.run()
        self.pictures, self.result.ran = before
        self.other_weights = False
        return next(iter(failed), None)

    def load_other_weights(self, model: nn.Module) -> None:
        """Give a model the weights of another seed."""
        other = build_for_preflight(
            self.built.cfg, size=self.built.recipe.size, seed=1
        )
        model.load_state_dict(other.model.state_dict(), strict=False)

    def _leave_out(self, path: Steps) -> bool:
        """Take a part out of the next attempt; whether that can be done."""
        part = path[:1]
        if part == ('model',) or not part:
            # The rest can still be built.
            part = ('steps',)
        elif part[0].endswith('_dataloader'):
            split = part[0].partition('_')[0]
            self.loaders.known.discard(split)
            part = part if split == 'train' else (f'{split}_cfg',)
        elif part[0].endswith('_hooks') or isinstance(path[-1], int):
            part = path[:2]
        if part in self.left_out:
            return False
        self.left_out.add(part)
        return True

    def _run(self) -> None:
        """Build a runner; let it train, validate, load and test."""
        self.section = ('runner_type',)
        kind = RightLocations(self.cfg.to_dict()).runner
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
        cfg = smoke_config(
            self.cfg,
            left_out=self.left_out,
            splits=self.loaders.built,
            folder=self.folder,
            scope=self.scope,
        )
        runner = self._class_of(kind, cfg).from_cfg(cfg)
        runs = self.limit > 0 and self.built is not None
        runs &= ('steps',) not in self.left_out
        is_same = all(
            section_of(self.cfg, f'val_{end}')
            == section_of(self.cfg, f'test_{end}')
            for end in ('dataloader', 'evaluator')
        )
        for split in SPLITS[: 2 if is_same else 3]:
            loader = self.loaders.built.get(split)
            if loader is not None and cfg.get(f'{split}_cfg') is not None:
                loader = limited(
                    loader,
                    partial(self.batches.pop, split, ()),
                    cfg[f'{split}_dataloader'].get('batch_size'),
                )
                vars(runner)[f'_{split}_dataloader'] = loader
                if runs:
                    number = _ITERATIONS if split == 'train' else None
                    self.batches[split] = islice(self._batches(split), number)
        runner.register_hook(_Conductor(self))
        if runs:
            _accept_all_predictions(self.built.model)
        if runner._train_dataloader is not None:
            with suppress(_Done):
                runner.train()
            if isinstance(
                runner.train_loop, EpochBasedTrainLoop | IterBasedTrainLoop
            ):
                self._follow_hooks(runner)
        saved = sorted(self.folder.rglob('*.pth'), key=os.path.getmtime)
        if saved and 'train' in self.result.ran:
            self.stage = 'be loaded again'
            runner.resume(str(saved[-1]))
            self.result.ran.append('resume')
        self.stage = 'be built'
        if runner._test_dataloader is not None and not is_same:
            with suppress(_Done):
                runner.test()

    def _follow_hooks(self, runner: Runner) -> None:
        """Let hooks that freeze parameters do so, as late as they would."""
        loop, train_cfg = runner.train_loop, self.cfg.get('train_cfg') or {}
        by_epoch = isinstance(loop, EpochBasedTrainLoop)
        end = train_cfg.get('max_epochs' if by_epoch else 'max_iters')
        if isinstance(end, int) and 'train' in self.result.ran:
            counts = loop._epoch, loop._iter
            self.result.not_done += self.watch.replay(runner, end, by_epoch)
            loop._epoch, loop._iter = counts
        self.result.trainable = self.watch.changes

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
            options['model'] = run.built.model if run.built else _StandIn()
            # Of before the first forward, after which modules may share
            # parameters.
            wrapper = run.built and run.built.optim_wrapper
            if wrapper and ('optim_wrapper',) not in run.left_out:
                options['optim_wrapper'] = wrapper
            kind.__init__(self, **options)

        def register_hook(self: Runner, hook: Any, *args: Any) -> None:
            path = next((p for p in paths if paths[p] == hook), ())
            paths.pop(path, None)
            if not path and not isinstance(hook, Hook | Mapping):
                path = ('custom_hooks', None)
            if path[:1] == ('custom_hooks',):
                path = path[:1] if path[1] is None else kept[path[1]]
            run.section, before = path, {id(part) for part in self._hooks}
            kind.register_hook(self, hook, *args)
            # Ctrl-C ends a preflight, and saves nothing.
            self._hooks = [
                part
                for part in self._hooks
                if type(part).__name__ != 'GracefulStopHook'
            ]
            for part in self._hooks:
                if id(part) not in before:
                    run.hooks[id(part)] = path
                    run.watch.add(part, path)
            run.section = ()

        methods = {
            '__init__': start,
            'register_hook': register_hook,
            'wrap_model': lambda self, cfg, model: model,
            # They are initialised, and those of a file are left out.
            '_init_model_weights': lambda self: None,
            # It asks for compilers.
            '_log_env': lambda self, env_cfg: None,
        }
        return type(kind.__name__, (kind,), methods)

    def _blame(self, error: Exception) -> Steps:
        """The section of the config whose part has failed."""
        runner, owners = self.runner, dict(self.hooks)
        state = vars(runner) if runner is not None else {}
        for split in SPLITS:
            loader = self.loaders.built.get(split)
            loop = state.get(f'_{split}_loop')
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
        # Of a hook, MMEngine raises anew what it raises.
        frames = frames_of(error)
        if error.__cause__ is not None:
            frames += frames_of(error.__cause__)
        for frame, _ in reversed(frames):
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


class _Conductor(Hook):
    """Cuts a run short."""

    # After all others, which see the length that the config says.
    priority = 'LOWEST'

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._steps = 0

    def before_train(self, runner: Runner) -> None:
        """Let the training end after its batches, and validate then."""
        self._begin('train', _TRAIN)
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            loop._max_epochs, loop._max_iters = 1, _ITERATIONS
        elif isinstance(loop, IterBasedTrainLoop):
            loop._max_iters = _ITERATIONS
        if hasattr(loop, 'val_begin'):
            loop.val_begin = min(loop.val_begin, loop.max_epochs or 1)
        runner.optim_wrapper.initialize_count_status(
            runner.model, 0, _ITERATIONS
        )
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
        if not self._run.budget.left:
            self._run.result.not_done.append(
                'training was not run to its end: the '
                f'{self._run.limit:g} s of --miniature were over'
            )
            raise _Done
        self._run.budget.begin_step('train', runner.model)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        """Note how long it took; end loops of other kinds."""
        self._run.budget.end_step('train', data_batch)
        self._steps += 1
        if self._steps == _ITERATIONS:
            self._run.result.ran.append('train')
            loop = runner.train_loop
            if not isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop):
                raise _Done

    def before_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Exchange the weights, after hooks that exchange them, too."""
        if self._run.other_weights and not batch_idx:
            self._run.load_other_weights(runner.model)
        self._run.budget.begin_step('val', runner.model)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        """Note how long it took."""
        self._run.budget.end_step('val', data_batch)

    before_test_iter, after_test_iter = before_val_iter, after_val_iter

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
        """Begin a loop, if there is something that it can run with."""
        run = self._run
        batches = run.batches.get(split, iter(()))
        run.stage, run.pictures = stage, ''
        first = next(batches, None)
        if first is None:
            run.stage = 'be built'
            raise _Done
        run.batches[split] = chain([first], batches)


def _origin(error: Exception) -> tuple[type, Any, int]:
    """Kind of an error, and the code and line that raised it."""
    frame, line = frames_of(error)[-1]
    return type(error), frame.f_code, line


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
