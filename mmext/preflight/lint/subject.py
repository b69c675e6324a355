"""The config that lint rules look at, with what they ask of it."""

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .._config_sections import (
    SECTIONS,
    UNREAD,
    Section,
    find_component,
    is_used,
    walk,
)
from .._config_uses import used_names
from .._config_values import parse_text
from .._right_places import RightPlaces, RunnerKind
from ..config_places import config_files
from ..misplaced_keys import MisplacedKey, find_misplaced_keys

__all__ = ['SPLITS', 'Subject', 'as_mapping', 'plain_name']

SPLITS = ('train', 'val', 'test')
# What looking up a data set raises that is not as its class wants it.
_NO_CLASSES = (
    AttributeError,
    ImportError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def as_mapping(value: Any) -> Mapping:
    """A value that should be a dict; an empty one if it is not.

    Examples:
        >>> as_mapping({'a': 1}), as_mapping(None)
        ({'a': 1}, {})
    """
    return value if isinstance(value, Mapping) else {}


def plain_name(kind: Any) -> str:
    """A ``type`` without its scope or package.

    Examples:
        >>> plain_name('mmdet.FocalLoss'), plain_name(dict), plain_name(None)
        ('FocalLoss', 'dict', '')
    """
    if isinstance(kind, str):
        return kind.rpartition('.')[2]
    return getattr(kind, '__name__', '')


class Subject:
    """A config, and what can be known of it without building anything.

    Args:
        cfg: The config. It is not changed.
        file: The file it was read from; None for that which it names.
        model: Its model, where one was built.
        dataset_classes: For splits, the names of their classes, where they
            are known better than from the config.
        environ: Environment variables.
        world: How many processes are going to train; None if not known.

    Attributes:
        cfg: As given.
        file: As given; empty for none.
        model: As given.
        environ: As given.
        world: As given.
        top: The config as dicts, lists and plain values.
        scope: Registry scope of names without one.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        file: str | None = None,
        model: Any = None,
        dataset_classes: Mapping[str, Sequence[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        world: int | None = None,
    ) -> None:
        self.cfg = cfg
        self.file = file or cfg.filename or ''
        self.model = model
        self.environ = os.environ if environ is None else environ
        self.world = world
        self.top: dict[str, Any] = cfg.to_dict()
        scope = self.top.get('default_scope')
        self.scope = scope if scope and isinstance(scope, str) else 'mmengine'
        self._trees: dict[str, ast.Module] = {}
        self._uses: dict[str, set[str]] | None = None
        self._classes = dict(dataset_classes or {})

    @cached_property
    def files(self) -> list[str]:
        """The config's file and all that it inherits; empty for none."""
        there = bool(self.file) and Path(self.file).is_file()
        return config_files(self.file) if there else []

    def tree_of(self, file: str) -> ast.Module:
        """Syntax tree of one of the files; an empty one of no Python.

        Args:
            file: Its path.
        """
        if file not in self._trees:
            text = Path(file).read_text(encoding='utf-8')
            self._trees[file] = parse_text(
                text if file.endswith('.py') else ''
            )
        return self._trees[file]

    def users(self, name: str) -> list[str]:
        """Files whose code uses a top-level name.

        Args:
            name: Of a key of the config.
        """
        if self._uses is None:
            self._uses = {
                file: {used for used, _ in used_names(self.tree_of(file))}
                for file in self.files
            }
        return [file for file, names in self._uses.items() if name in names]

    def is_used(self, name: str) -> bool:
        """Whether the config's own code uses a top-level name."""
        if self.files:
            return bool(self.users(name))
        return is_used(name, re.sub('#.*', '', self.cfg.text or ''))

    @cached_property
    def right(self) -> RightPlaces:
        """What the runner reads of the model wrapper's settings."""
        return RightPlaces(self.top, self.scope, None)

    @cached_property
    def misplaced(self) -> list[MisplacedKey]:
        """Settings that are where nothing reads them."""
        if self.top.get('check_misplaced_keys') is False:
            return []
        return find_misplaced_keys(self.cfg)

    @property
    def is_flexible(self) -> bool:
        """Whether the runner is one with strategies."""
        return self.right.kind is RunnerKind.FLEXIBLE

    @property
    def runner_name(self) -> str:
        """Of the class that runs the config."""
        return getattr(self.right.runner, '__name__', 'the runner')

    @cached_property
    def sections(self) -> list[Section]:
        """All dicts of the sections that something is built from."""
        found: list[Section] = []
        for name in SECTIONS:
            if name in self.top and name not in UNREAD:
                found += walk(self.top[name], (name,), self.scope)
        return found

    def component(self, section: Section) -> Any:
        """Class or function that a dict's ``type`` names; None if unknown."""
        kind = section.cfg.get('type')
        if kind is None:
            return None
        key = (section.path[0], kind, section.scope)
        try:
            return self._found[key]
        except (KeyError, TypeError):
            registries = SECTIONS[section.path[0]]
            found = find_component(kind, registries, section.scope)
            if isinstance(kind, str):
                self._found[key] = found
            return found

    @cached_property
    def _found(self) -> dict[tuple, Any]:
        return {}

    def below(self, *path: str) -> Iterator[Section]:
        """Sections at and below a place.

        Args:
            path: Such as ``'model'``, or ``'train_dataloader', 'dataset'``.
        """
        for section in self.sections:
            if section.path[: len(path)] == path:
                yield section

    @cached_property
    def is_trained(self) -> bool:
        """Whether the config is one of a training."""
        return bool(
            self.top.get('model')
            and self.top.get('train_cfg')
            and self.top.get('train_dataloader')
        )

    def classes(self, split: str) -> tuple[str, ...]:
        """Names of the classes of a split's data.

        Args:
            split: ``'train'``, ``'val'`` or ``'test'``.

        Returns:
            The names; empty if they are not known.
        """
        if split not in self._classes:
            self._classes[split] = _read_classes(self.cfg, split)
        return tuple(self._classes[split])


def _read_classes(cfg: Config, split: str) -> tuple[str, ...]:
    # Not at the top: the tools' modules import this package.
    from ...apis.class_names import read_config_classes

    loader = cfg.get(f'{split}_dataloader')
    if not isinstance(loader, Mapping):
        return ()
    own = Config({'train_dataloader': loader})
    if isinstance(cfg.get('default_scope'), str):
        own.default_scope = cfg.default_scope
    try:
        return read_config_classes(own)
    except _NO_CLASSES:
        # Data without classes; what else is wrong is said by other rules.
        return ()
