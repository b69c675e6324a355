"""Build the data sets of a config to look at what they would read."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmdet.datasets import CocoDataset, CocoPanopticDataset, XMLDataset
from mmengine.config import Config
from mmengine.dataset import (
    BaseDataset,
    ClassBalancedDataset,
    ConcatDataset,
    RepeatDataset,
)
from mmengine.registry import DATASETS, DefaultScope

from ...datasets.dataset_walk import inner_datasets, walk_datasets
from ...utils.config_nodes import walk_dicts

__all__ = [
    'build_leaves',
    'classes_of',
    'loaders',
    'reads_coco',
    'reads_voc',
]

_WRAPPERS = (ConcatDataset, RepeatDataset, ClassBalancedDataset)
_READERS = ('load_data_list', 'parse_data_info')


def build_leaves(dataset: Mapping, cfg: Config) -> list[Any]:
    """The data sets inside of all wrappers, without their pipelines.

    Args:
        dataset: As a dataloader of the config has it; stays as it is.
        cfg: The config, for its default scope.

    Returns:
        Data sets whose files can be looked at as they stand
        (:func:`reads_coco`, :func:`reads_voc`) have not loaded them: a
        loader may fail at a file, or drop what is wrong in it.
    """
    dataset = copy.deepcopy(dataset)
    scope = cfg.get('default_scope', 'mmengine')
    with (
        DefaultScope.overwrite_default_scope(scope),
        DATASETS.switch_scope_and_registry(scope) as registry,
    ):
        for _, node in walk_dicts(dataset):
            if 'pipeline' in node:
                node['pipeline'] = []
            kind = node.get('type')
            if isinstance(kind, str):
                kind = registry.get(kind)
            if _takes(kind, 'lazy_init'):
                node['lazy_init'] = True
            # MMEngine cannot serialize a data set without a sample.
            if _takes(kind, 'serialize_data'):
                node['serialize_data'] = False
        built = DATASETS.build(dataset)
    leaves = [
        each for each in walk_datasets(built) if not inner_datasets(each)
    ]
    for leaf in leaves:
        if not (reads_coco(leaf) or reads_voc(leaf)) and hasattr(
            leaf, 'full_init'
        ):
            leaf.full_init()
    return leaves


def _takes(kind: Any, name: str) -> bool:
    """Whether a data set, or a wrapper of some, has such an argument."""
    if not inspect.isclass(kind):
        return False
    names = inspect.signature(kind).parameters
    if name in names:
        return issubclass(kind, (BaseDataset, *_WRAPPERS))
    return issubclass(kind, BaseDataset) and any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in names.values()
    )


def _reads_as(dataset: Any, base: type) -> bool:
    return isinstance(dataset, base) and all(
        getattr(type(dataset), name) is getattr(base, name)
        for name in _READERS
    )


def reads_coco(dataset: Any) -> bool:
    """Whether a data set reads a file in COCO's format in MMDetection's way.

    Args:
        dataset: Any; a subclass that reads the file differently does not.
    """
    return _reads_as(dataset, CocoDataset) and not isinstance(
        dataset, CocoPanopticDataset
    )


def reads_voc(dataset: Any) -> bool:
    """Whether a data set reads XML files in MMDetection's way.

    Args:
        dataset: Any; a subclass that reads them differently does not.
    """
    return _reads_as(dataset, XMLDataset)


def loaders(plain: Mapping, split: str) -> Iterator[Mapping]:
    """Steps of a split's pipelines that load labels.

    Args:
        plain: The config, as dicts.
        split: ``'train'``, ``'val'`` or ``'test'``.
    """
    dataset = (plain.get(f'{split}_dataloader') or {}).get('dataset')
    for _, node in walk_dicts(dataset):
        if str(node.get('type')).rpartition('.')[2] == 'LoadAnnotations':
            yield node


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Names of the classes of a data set; empty if it does not say.

    Args:
        dataset: Of MMEngine's kind.
    """
    names: Sequence | None = dataset.metainfo.get('classes')
    return tuple(str(each) for each in names or ())
