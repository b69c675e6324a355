"""Check the classes of the data against those of the model."""

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from ...registry import HOOKS
from ...utils.label_spec import class_vocabulary, heads_of_model

_MAX_CLASSES = 6


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
