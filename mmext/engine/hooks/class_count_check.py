"""Check the classes of the data against those of the model."""

from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from ...registry import HOOKS

# Where hosts keep the head that names the classes, best first. Not all
# modules with `num_classes`: that of an RPN is 1, that of a semantic branch
# counts other classes.
_HEADS = (
    'panoptic_fusion_head',
    'bbox_head',
    'roi_head.bbox_head',
    'mask_head',
    'panoptic_head',
    'decode_head',
    'head',
)
_MAX_CLASSES = 6


def _unwrap(model: nn.Module) -> nn.Module:
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def _get(module: Any, path: str) -> Any:
    for name in path.split('.'):
        module = getattr(module, name, None)
    return module


def _heads(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Heads that classify, each with its config key."""
    for path in _HEADS:
        head = _get(model, path)
        if isinstance(head, (nn.ModuleList, list, tuple)):
            for index, part in enumerate(head):
                yield f'{path}[{index}]', part
        elif head is not None:
            yield path, head
        if head is not None and path == 'panoptic_fusion_head':
            # The other heads know things, or stuff, only.
            return


def model_class_counts(model: nn.Module) -> dict[str, int]:
    """Config key -> number of classes that a model is built for.

    The model's own attribute ``num_classes`` counts, else that of its heads; a
    segmentor of mmseg copies that attribute from its head, which is where the
    config has it. Empty if the model does not say, or knows objects only,
    whatever their class, as a region proposal network.
    """
    # Not at the top: this loads the models of MMDetection.
    from mmdet.models.detectors import RPN

    model = _unwrap(model)
    if isinstance(model, RPN):
        return {}
    is_segmentor = hasattr(model, 'decode_head')
    own = getattr(model, 'num_classes', None)
    if isinstance(own, int) and not is_segmentor:
        return {'model.num_classes': own}
    return {
        f'model.{key}.num_classes': head.num_classes
        for key, head in _heads(model)
        if isinstance(getattr(head, 'num_classes', None), int)
    }


def class_vocabulary(model: nn.Module, training: bool) -> Any:
    """Class embeddings that a model classifies by, or None."""
    method = _get(_unwrap(model), 'query_head.class_vocabulary')
    return None if method is None else method(training)


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
        name: count
        for name, count in model_class_counts(model).items()
        if count != len(classes)
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
