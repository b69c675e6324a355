"""Refuse labels out of range, and data of other classes than the model.

Labels are reported with their images: in a training on all processes; in an
evaluation before a metric drops them in silence.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from mmengine.dist import get_rank, is_distributed
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn
from torch import distributed as dist

from ...models.losses import (
    LabelRangeError,
    LabelRangeMonitor,
    LabelReport,
    find_out_of_range,
    set_current_batch,
)
from ...registry import HOOKS
from ...utils.label_spec import (
    LabelSpec,
    class_vocabulary,
    heads_of_model,
    values_text,
)
from ..distributed import StepVote, Vote, unwrap_model

_POLICIES = ('raise', 'ignore')
_MAX_VALUES = 12
_MAX_CLASSES = 6
# Metrics by the names of their classes, or of a base: hosts are not loaded.
_SEMANTIC = frozenset({'IoUMetric', 'SemSegMetric'})
# Reads label maps of its own from files.
_OF_FILES = 'CityscapesMetric'
_DETECTION = frozenset(
    {
        'CocoMetric',
        'CrowdHumanMetric',
        'LVISFixedAPMetric',
        'OpenImagesMetric',
        'VOCMetric',
    }
)


def samples_of(batch: Any) -> Iterator[Any]:
    """Data samples, also of batches of test-time augmentation."""
    if isinstance(batch, Mapping):
        batch = batch.get('data_samples')
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        for item in batch:
            yield from samples_of(item)
    elif batch is not None:
        yield batch


def image_paths(batch: Any, key: str = 'img_path') -> tuple[str, ...]:
    """Files of a batch's images, in order; () if a sample names none.

    ``key`` is ``'seg_map_path'`` for those of the label maps.
    """
    paths = tuple(getattr(sample, key, None) for sample in samples_of(batch))
    return () if None in paths else tuple(map(str, paths))


@HOOKS.register_module()
class LabelRangeHook(Hook):
    """Stop the training where labels are out of range, and say which.

    Gives the losses that check their labels, such as
    :class:`mmext.CheckedCrossEntropyLoss`, their name in the model, the
    iteration, and the images of the batch, so that their error names them.

    On GPUs the losses do not wait for the device; this hook looks, after
    each step, at the results that have come by then, without waiting, and
    raises the error, one or a few steps late, for the step that caused it.
    At the end of the training it waits for the last ones.

    With several processes on GPUs, they agree after each step, over Gloo,
    whether one of them has an error; then all raise it.

    Note:
        That agreement is a reduction of one number between the hosts, well
        under a millisecond if they are equally fast; it does not wait for
        the devices.

    Raises:
        LabelRangeError: If a loss has met a label out of range whose
            ``out_of_range`` is ``'raise'``.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self._monitors: dict[str, LabelRangeMonitor] = {}
        self._vote: StepVote | None = None

    def before_train(self, runner: Runner) -> None:
        """Find the losses, and name them after their position in the model."""
        self._monitors, self._vote = {}, None
        model = unwrap_model(runner.model)
        for name, module in model.named_modules():
            monitor = getattr(module, 'label_range', None)
            if isinstance(monitor, LabelRangeMonitor):
                loss_name = getattr(module, 'loss_name', '')
                suffix = f' ({loss_name})' if loss_name else ''
                monitor.name = f'{name or type(module).__name__}{suffix}'
                monitor.has_hook = True
                self._monitors[monitor.name] = monitor
        # Errors may come later than in the step, on all ranks or on none.
        first = next(model.parameters(), None)
        on_device = first is not None and first.device.type != 'cpu'
        if is_distributed() and any(
            on_device if monitor.deferred is None else monitor.deferred
            for monitor in self._monitors.values()
        ):
            self._vote = StepVote(dist.group.WORLD)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Hand the losses the files of the batch."""
        set_current_batch(
            runner.iter,
            image_paths(data_batch),
            get_rank(),
            image_paths(data_batch, 'seg_map_path'),
        )

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Look at the results that have come."""
        self._poll(wait=False)

    def after_train(self, runner: Runner) -> None:
        """Wait for the last results, and sum up what was left out."""
        self._poll(wait=True)
        set_current_batch()
        for name, monitor in self._monitors.items():
            monitor.has_hook = False
            if monitor.num_ignored:
                runner.logger.warning(
                    f'{name}: {monitor.num_ignored:,} labels out of range '
                    'were left out of the loss in this training'
                )

    def _poll(self, wait: bool) -> None:
        """Read the results, and agree with the other processes."""
        error: LabelRangeError | None = None
        for monitor in self._monitors.values():
            try:
                monitor.poll(wait)
            except LabelRangeError as new_error:
                error = error or new_error
        if self._vote is not None:
            vote = Vote.OK if error is None else Vote.ERROR
            if self._vote.cast(vote) is not Vote.OK:
                # All raise the errors of all.
                texts = self._vote.exchange(
                    '' if error is None else str(error)
                )
                report = None if error is None else error.report
                raise LabelRangeError('\n'.join(filter(None, texts)), report)
        if error is not None:
            raise error


# Classes ---------------------------------------------------------------------


def _check_vocabulary(given: Any, classes: Sequence[str], split: str) -> None:
    """Class embeddings must be of the classes of the data, in their order."""
    key = f'{split}_dataloader.dataset.metainfo.classes'
    remedy = (
        f'make the embeddings from the classes of the data, or set {key} to '
        'those that they were made from'
    )
    count = len(given.vectors)
    if count != len(classes):
        raise ValueError(
            f'the class embeddings and the {split} data must have the same '
            f'number of classes, got {count} in {given.source} and '
            f'{len(classes)} in the data; {remedy}'
        )
    for index, (own, name) in enumerate(zip(given.classes or (), classes)):
        if own != name:
            raise ValueError(
                f'the class embeddings and the {split} data must have the '
                f'same classes in the same order, got {own!r} in '
                f'{given.source} and {name!r} in the data as number {index}; '
                f'{remedy}'
            )


def check_class_count(model: nn.Module, metainfo: Any, split: str) -> None:
    """Raise if a data set has another number of classes than the model.

    TypeError if ``classes`` of the meta information is one string, which would
    count its letters. Class embeddings are compared by name where they have
    names. A data set without ``classes`` is not checked.
    """
    classes = (metainfo or {}).get('classes')
    if classes is None:
        return
    key = f'{split}_dataloader.dataset.metainfo.classes'
    if isinstance(classes, str):
        raise TypeError(
            f'{key} must be a tuple of names, got the string {classes!r}; '
            f'for one class write classes=({classes!r}, )'
        )
    given = class_vocabulary(model, training=split == 'train')
    if given is not None:
        _check_vocabulary(given, classes, split)
        return
    wrong = {
        f'{head.location}.num_classes': head.num_classes
        for head in heads_of_model(model)
        if head.num_classes != len(classes)
    }
    if wrong:
        shown = ', '.join(map(str, classes[:_MAX_CLASSES]))
        more = ', ...' if len(classes) > _MAX_CLASSES else ''
        given = ', '.join(f'{name}={count}' for name, count in wrong.items())
        raise ValueError(
            f'the model and the {split} data must have the same number of '
            f'classes, got {given} and {len(classes)} in the data ({shown}'
            f'{more}); set {", ".join(wrong)} to {len(classes)}, or name the '
            f"model's classes in {key}"
        )


@HOOKS.register_module()
class ClassCountCheckHook(Hook):
    """Refuse to start when data and model disagree on the classes.

    With too few classes in the model, labels are out of range, which on CUDA
    kills the process without saying why; with too many, the evaluation is
    quietly wrong. A model that predicts the classes of class embeddings is
    compared by these, and by their names where they are known.
    """

    def before_train(self, runner: Runner) -> None:
        """Check the training data, and those that are validated with."""
        self._check(runner, runner.train_dataloader, 'train')
        if runner.val_loop is not None:
            self._check(runner, runner.val_dataloader, 'val')

    def before_val(self, runner: Runner) -> None:
        """Check the validation data."""
        self._check(runner, runner.val_dataloader, 'val')

    def before_test(self, runner: Runner) -> None:
        """Check the test data."""
        self._check(runner, runner.test_dataloader, 'test')

    def _check(self, runner: Runner, dataloader: Any, split: str) -> None:
        metainfo = getattr(dataloader.dataset, 'metainfo', None)
        check_class_count(runner.model, metainfo, split)


# Evaluation ------------------------------------------------------------------


def _kinds(metric: Any) -> set[str]:
    return {kind.__name__ for kind in type(metric).__mro__}


def _is_semantic(metric: Any) -> bool:
    kinds = _kinds(metric)
    return bool(kinds & _SEMANTIC) or (
        hasattr(metric, 'ignore_index') and _OF_FILES not in kinds
    )


def _range_of(metric: Any) -> LabelSpec | None:
    """What a metric takes for classes; None if it looks at no labels."""
    classes = tuple((metric.dataset_meta or {}).get('classes') or ())
    if not classes or getattr(metric, 'format_only', False):
        return None
    ignored = None
    if _is_semantic(metric):
        ignored = getattr(metric, 'ignore_index', 255)
    elif not _kinds(metric) & _DETECTION:
        return None
    return LabelSpec(
        num_classes=len(classes), classes=classes, ignore_index=ignored
    )


def _label_map(sample: Any, field: str) -> Tensor | None:
    """``(1, H, W)``, or None if the sample has none, or scores."""
    data = getattr(sample, field, None)
    for name in ('data', 'sem_seg'):
        value = getattr(data, name, None)
        if isinstance(value, Tensor) and not value.is_floating_point():
            return value.reshape(-1, *value.shape[-2:])
    return None


@HOOKS.register_module()
class EvaluationLabelHook(Hook):
    """Stop a validation or a test where labels are out of range.

    The metrics of the hosts count such labels as nothing, and give a number:
    ``IoUMetric`` drops pixels that no class has, ``CocoMetric`` annotations
    of an unknown category. This hook looks at each batch before its metric
    does, with the number of classes and the ``ignore_index`` of that metric.
    :class:`~mmext.engine.PortableRunner` always has one. What is checked:

    * label maps, for metrics such as ``IoUMetric``: each pixel a class or
      ignored; the predicted maps: each pixel a class; the model has as many
      classes as the data;
    * labels of objects, and predicted ones, for metrics such as
      ``VOCMetric``: each a class;
    * the annotation file of ``CocoMetric``: each annotation is of one of its
      categories, and the classes of the data are among them in their order,
      by which MMDetection numbers labels.

    The error names image and mask, the values with their counts, the first
    location, the allowed range and the likely cause.

    Args:
        out_of_range: ``'raise'`` for an error; ``'ignore'`` to evaluate as
            the metric does, with one warning that says all that the error
            would, and the number of such labels at the end.

    Note:
        A label map is read once or twice, 2 to 10 ms for 2048 x 1024 pixels.
        Predictions are reduced where they are; metrics wait for these anyway.
        With an evaluator for several data sets (``dataset_prefixes``), whose
        metrics share one loader, labels are not checked, which is said.

    Raises:
        LabelRangeError: See ``out_of_range``.
        ValueError: If the model has another number of classes than the data
            of a semantic metric.
    """

    priority = 'VERY_HIGH'

    def __init__(self, out_of_range: str = 'raise') -> None:
        if out_of_range not in _POLICIES:
            raise ValueError(
                f'out_of_range must be one of {_POLICIES}, got '
                f'{out_of_range!r}'
            )
        self.policy = out_of_range
        self._metrics: list[tuple[Any, LabelSpec]] = []
        self._split = ''
        self._num_ignored = 0

    def before_val(self, runner: Runner) -> None:
        """Find the metrics, and look at what does not need a batch."""
        self._begin(runner, runner.val_evaluator, 'val')

    def before_test(self, runner: Runner) -> None:
        """Find the metrics, and look at what does not need a batch."""
        self._begin(runner, runner.test_evaluator, 'test')

    def _before_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        mode: str = 'train',
    ) -> None:
        if mode != 'train':
            self._check(data_batch, batch_idx, 'gt')

    def _after_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        if mode != 'train':
            self._check(outputs, batch_idx, 'pred')

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        if self._num_ignored:
            runner.logger.warning(
                f'{self._num_ignored:,} labels out of range were counted as '
                f'nothing in this {self._split}'
            )
        self._num_ignored = 0

    def _begin(self, runner: Runner, evaluator: Any, split: str) -> None:
        self._split, self._num_ignored = split, 0
        ranges = [
            (metric, _range_of(metric))
            for metric in getattr(evaluator, 'metrics', ())
        ]
        self._metrics = [pair for pair in ranges if pair[1] is not None]
        if self._metrics and getattr(evaluator, 'dataset_prefixes', None):
            runner.logger.warning(
                f'The {split} evaluator is for several data sets: their '
                'labels are not checked'
            )
            self._metrics = []
        given = runner.cfg.get(f'{split}_evaluator') or ()
        given = [given] if isinstance(given, Mapping) else given
        files = [g.get('ann_file') for g in given if isinstance(g, Mapping)]
        for metric, _ in self._metrics:
            if 'IoUMetric' in _kinds(metric) and self.policy == 'raise':
                check_class_count(runner.model, metric.dataset_meta, split)
            coco = getattr(metric, '_coco_api', None)
            if coco is not None:
                file = ' or '.join(filter(None, files))
                for problem in self._coco_problems(metric, coco, file):
                    self._tell(problem)

    def _check(self, batch: Any, batch_idx: int, what: str) -> None:
        """Look at the true (``'gt'``) or predicted (``'pred'``) labels."""
        for sample in samples_of(batch) if self._metrics else ():
            for metric, spec in self._metrics:
                if _is_semantic(metric):
                    label = _label_map(sample, f'{what}_sem_seg')
                else:
                    objects = getattr(sample, f'{what}_instances', None)
                    label = getattr(objects, 'labels', None)
                if isinstance(label, Tensor):
                    self._look(metric, spec, sample, label, what, batch_idx)

    def _look(
        self,
        metric: Any,
        spec: LabelSpec,
        sample: Any,
        label: Tensor,
        what: str,
        batch_idx: int,
    ) -> None:
        """Look at one label map, or the labels of one image."""
        whose = 'labels' if what == 'gt' else 'predictions'
        report = find_out_of_range(
            label if label.dim() > 1 else label[None],
            spec.num_classes,
            spec.ignore_index if what == 'gt' else None,
            name=f'{type(metric).__name__}, {whose} of {self._split} '
            f'[batch {batch_idx + 1}, rank {get_rank()}]',
            paths=image_paths([sample]),
            masks=image_paths([sample], 'seg_map_path'),
        )
        if report is None:
            return
        text = str(report)
        if what == 'pred':
            # Causes that are worked out from values are those of label maps.
            text = text[: text.rindex('  Likely cause:')] + (
                '  Likely cause: the model has other classes than the data; '
                f'set num_classes of its head to {spec.num_classes}, or name '
                f'its classes in {self._split}_dataloader.dataset.metainfo.'
                'classes'
            )
        self._tell(text, report)

    def _tell(self, text: str, report: LabelReport | None = None) -> None:
        first = not self._num_ignored
        self._num_ignored += 1 if report is None else report.num_bad
        if self.policy == 'raise':
            raise LabelRangeError(
                f'{text}\n  The metric does not check this, so that its '
                'result would be wrong in silence. tools/validate_labels.py '
                'finds all of them; to evaluate all the same, add '
                "dict(type='mmext.EvaluationLabelHook', "
                "out_of_range='ignore') to custom_hooks.",
                report,
            )
        if first:
            print_log(
                f'{text}\n  The evaluation goes on, as '
                "out_of_range='ignore' asks for; further ones are counted, "
                'not listed.',
                'current',
                logging.WARNING,
            )

    def _coco_problems(
        self, metric: Any, coco: Any, file: str
    ) -> Iterator[str]:
        """What is wrong between an annotation file and the classes."""
        name = f'{type(metric).__name__} of {self._split}'
        file = file or f'the file of {self._split}_evaluator.ann_file'
        unknown = [
            note
            for note in coco.anns.values()
            if note.get('category_id') not in coco.cats
        ]
        if unknown:
            counts = Counter(note.get('category_id') for note in unknown)
            first = unknown[0]
            image = coco.imgs.get(first.get('image_id'), {})
            yield (
                f'{name}: {len(unknown):,} of {len(coco.anns):,} annotations '
                f'in {file} are of a category that the file does not have\n'
                f'  values of category_id: {values_text(counts.most_common())}'
                f'\n  first: annotation {first.get("id")} of image '
                f'{image.get("file_name", first.get("image_id"))}, box '
                f'{first.get("bbox")}\n'
                f'  allowed are {_short(sorted(coco.cats))}\n'
                '  Likely cause: the file was made for other categories; '
                'correct category_id, or add the categories'
            )
        classes = tuple(metric.dataset_meta['classes'])
        proposals = getattr(metric, 'metrics', ())
        if all(str(kind).startswith('proposal') for kind in proposals):
            return
        # mmext.LVISV1Dataset finds classes by their names.
        ids = metric.dataset_meta.get('cat_ids') or coco.getCatIds(classes)
        found = [coco.cats.get(own, {}).get('name') for own in ids]
        wrong = [
            own or other
            for own, other in zip_longest(classes, found)
            if own != other
        ]
        if wrong:
            yield (
                f'{name}: {len(wrong)} of {len(classes)} classes of the data '
                'are not, not once, or not in this order among the '
                f'categories of {file}, so that labels would be counted for '
                'other classes\n'
                f'  classes: {_short(wrong)}\n'
                '  categories: '
                f'{_short([item["name"] for item in coco.cats.values()])}\n'
                '  Likely cause: a name is spelt in another way, or the file '
                'has another order, by which MMDetection numbers labels; '
                f'compare {self._split}_dataloader.dataset.metainfo.classes '
                'with categories, and add those that no image has'
            )


def _short(items: list) -> str:
    shown = ', '.join(map(repr, items[:_MAX_VALUES]))
    return shown + (', ...' if len(items) > _MAX_VALUES else '')
