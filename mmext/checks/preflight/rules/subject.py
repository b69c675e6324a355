"""The config that lint rules look at, with what they ask of it."""

import ast
import inspect
import os
import re
import sys
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ...config import (
    DELETE,
    SECTIONS,
    ConfigNode,
    MisplacedKey,
    RightLocations,
    RunnerKind,
    Steps,
    config_files,
    dataset_configs,
    default_of,
    find_component,
    find_misplaced_keys,
    is_own_key,
    is_used,
    join_key,
    key_location,
    parse_text,
    read_config_classes,
    used_names,
    walk_nodes,
)
from ..sandbox import plain_name

SPLITS = ('train', 'val', 'test')
# Keys of models whose classes are texts.
TEXTS = ('language_model', 'text_encoder')
# Names with fewer letters are near to too many others.
_LONG_NAME = 6
_SHORT_WORD = 5
# Packages whose classes read no key of a config.
_FOREIGN = {*sys.stdlib_module_names, 'torch'}
# '8xb2' in the name of a config: 8 processes, each with 2 samples.
_WORLD_IN_NAME = re.compile(r'(?<![a-z0-9])(\d+)xb\d+(?![a-z0-9])')
_OF_ANY_NAME = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)
# What looking up a data set raises that is not as its class wants it.
NO_CLASSES = (
    AttributeError,
    ImportError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def as_mapping(value: Any) -> Mapping:
    """A value that should be a dict; an empty one if it is not."""
    return value if isinstance(value, Mapping) else {}


def kind_of(value: Any) -> str:
    """Plain name of the ``type`` of a dict; empty for anything else."""
    return plain_name(as_mapping(value).get('type'))


def package_of(component: Any) -> str:
    """Outermost package of a class or a function; empty for None."""
    return getattr(component, '__module__', '').partition('.')[0]


def base_names(component: Any) -> set[str]:
    """Names of a class and its bases; empty for what is no class."""
    return {base.__name__ for base in getattr(component, '__mro__', ())}


def is_kind(component: Any, base: type) -> bool:
    """Whether a component is a class that inherits another."""
    return inspect.isclass(component) and issubclass(component, base)


def path_of(section: ConfigNode, key: str) -> Steps:
    """Where a key is set; the section itself for a default."""
    return (*section.path, key) if key in section.cfg else section.path


def steps_of(path: Steps, steps: Any, scope: str) -> list[ConfigNode]:
    """The steps of a pipeline at a path; none if it is no list."""
    return [
        ConfigNode((*path, index), as_mapping(step), scope)
        for index, step in enumerate(steps if isinstance(steps, list) else ())
    ]


def change(path: Sequence[str | int], value: Any) -> dict[str, Any]:
    """An option for one key; none for an item of a list that is to go."""
    if isinstance(path[-1], int) and value == DELETE:
        return {}
    return {join_key(path): value}


def sure_name(name: str, known: Iterable[str]) -> str | None:
    """The only known name that another one can be meant for.

    Names that differ by case, ``_`` or a plural are the same; so are long
    ones with a letter too many, too few, exchanged or next to another's
    location. Names of one letter or with digits mean something of their own.
    """
    same = [
        other for other in known if other != name and _is_same(name, other)
    ]
    if len(same) > 1:
        plain = _plain(name)
        same = [other for other in same if _plain(other) == plain]
    return same[0] if len(same) == 1 else None


def _plain(name: str) -> str:
    return re.sub('[_-]', '', name).casefold()


def _is_same(name: str, other: str) -> bool:
    one, two = sorted((_plain(name), _plain(other)), key=len)
    if one == two or two in (f'{one}s', f'{one}es'):
        return True
    if len(one) < _LONG_NAME or len(two) - len(one) > 1:
        return False
    start = _num_same(one, two)
    end = min(_num_same(one[::-1], two[::-1]), len(one) - start)
    left, right = one[start : len(one) - end], two[start : len(two) - end]
    if re.search(r'\d', left + right):
        return False
    if len(left) == len(right) == 1:
        # Not `mask` for `task`: a letter of a longer word.
        pairs = zip(name.casefold().split('_'), other.casefold().split('_'))
        return any(a != b and len(a) > _SHORT_WORD for a, b in pairs)
    return (not left and len(right) == 1) or (
        len(left) == 2 and left == right[::-1]
    )


def _num_same(one: str, two: str) -> int:
    """Letters with which both begin."""
    pairs = enumerate(zip(one, two))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))


@cache
def sources(kind: Any) -> tuple[str, ...] | None:
    """Code of a class and its bases, or of a function; None if unknown.

    Bases of PyTorch and of Python itself, some of which have no code, are
    left out.
    """
    try:
        return tuple(
            inspect.getsource(base)
            for base in (
                inspect.getmro(kind) if inspect.isclass(kind) else (kind,)
            )
            if package_of(base) not in _FOREIGN
        )
    except (OSError, TypeError):
        return None


def names_key(kind: Any, key: str) -> bool:
    """Whether the code of a class, or of its bases, has a key as text."""
    code = sources(kind)
    return code is None or any(
        f"'{key}'" in text or f'"{key}"' in text for text in code
    )


def arguments_of(kind: Any) -> list[str]:
    """Names of all arguments of a function, or of a class and its bases."""
    functions = [kind]
    if inspect.isclass(kind):
        functions = [base.__init__ for base in inspect.getmro(kind)[:-1]]
    names: dict[str, None] = {}
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            # Of C, which does not say what it takes.
            continue
        names |= dict.fromkeys(
            name
            for name, parameter in parameters.items()
            if name != 'self' and parameter.kind not in _OF_ANY_NAME
        )
    return list(names)


class Subject:
    """A config, and what can be known of it without building anything.

    ``top`` is the config as dicts, lists and plain values, ``scope`` the
    registry scope of names without one. Where a ``model`` was built, its own
    numbers of classes count; ``world`` are the processes that are going to
    train, where it is known.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        file: str | Path | None = None,
        model: Any = None,
        environ: Mapping[str, str] | None = None,
        world: int | None = None,
    ) -> None:
        self.cfg = cfg
        self.file = str(file or cfg.filename or '')
        self.model = model
        self.environ = os.environ if environ is None else environ
        self._world = world
        self.top: dict[str, Any] = cfg.to_dict()
        scope = self.top.get('default_scope')
        self.scope = scope if scope and isinstance(scope, str) else 'mmengine'
        self._found: dict[tuple, Any] = {}
        self._classes: dict[str, tuple[str, ...]] = {}

    @cached_property
    def world(self) -> int | None:
        """How many processes are going to train; None if not known.

        The name counts that is nearest to the config: its own, else that of
        the first file it inherits whose name says it.
        """
        if self._world is not None:
            return self._world
        launched = self.environ.get('WORLD_SIZE', '')
        if launched.isdigit() and int(launched) > 0:
            return int(launched)
        names = (Path(file).stem for file in self.files or [self.file])
        results = (_WORLD_IN_NAME.search(name) for name in names)
        return next((int(match[1]) for match in results if match), None)

    @cached_property
    def files(self) -> list[str]:
        """The config's file and all that it inherits; empty for none."""
        there = bool(self.file) and Path(self.file).is_file()
        return config_files(self.file) if there else []

    def tree_of(self, file: str) -> ast.Module:
        """Syntax tree of one of the files; an empty one of no Python."""
        is_python = file.endswith('.py')
        return parse_text(Path(file).read_text('utf-8') if is_python else '')

    def users(self, name: str) -> list[str]:
        """Files whose code uses a top-level name."""
        return [file for file, names in self._uses.items() if name in names]

    @cached_property
    def _uses(self) -> dict[str, set[str]]:
        return {
            file: {used for used, _ in used_names(self.tree_of(file))}
            for file in self.files
        }

    def is_used(self, name: str) -> bool:
        """Whether the config's own code uses a top-level name."""
        if self.files:
            return bool(self.users(name))
        return is_used(name, re.sub('#.*', '', self.cfg.text or ''))

    def is_own(self, path: Sequence[str | int]) -> bool:
        """Whether ``own_keys`` says that code of one's own reads a key."""
        return is_own_key(self.top, join_key(path))

    def unread(
        self, section: Mapping, path: Steps, known: Collection[str]
    ) -> Iterator[tuple[Any, Steps, str | None]]:
        """Keys that nothing reads, their paths, and the names meant, if sure.

        ``known`` are the keys that are read of the section.
        """
        for key in section:
            where = (*path, key)
            plain = str(key)
            if (
                key not in known
                and plain[:1] != '_'
                and not self.is_own(where)
            ):
                yield key, where, sure_name(plain, known)

    def is_above(self, key: str, other: str) -> bool:
        """Whether a key is set by a file that inherits that of another.

        What the other one says is then left over from a base.
        """
        if not self.files:
            return False
        upper = key_location(self.file, key).file
        lower = key_location(self.file, other).file
        return bool(upper) and lower in config_files(upper)[1:]

    def renamed(self, path: Sequence[str | int], name: str) -> dict[str, Any]:
        """Options that give a key another name, if that one is free.

        A name that only a base has is meant to be changed.
        """
        node = self.at(path[:-1])
        new = (*path[:-1], name)
        if name in node and not self.is_above(join_key(path), join_key(new)):
            return {}
        return {**change(path, DELETE), **change(new, node[path[-1]])}

    def renaming(
        self, path: Sequence[str | int], name: str | None
    ) -> dict[str, Any]:
        """Fields of a finding whose key is to have another name, if any."""
        if not name:
            return {}
        options = self.renamed(path, name)
        text = f'rename it to {name}'
        return {'remedy': text, 'names': (name,), 'options': options}

    @cached_property
    def right(self) -> RightLocations:
        """What the runner reads of the model wrapper's settings."""
        return RightLocations(self.top)

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

    @cached_property
    def sections(self) -> list[ConfigNode]:
        """All dicts of the sections that something is built from."""
        return [
            section
            for name in SECTIONS
            if name in self.top
            for section in walk_nodes(self.top[name], (name,), self.scope)
        ]

    def component(self, section: ConfigNode) -> Any:
        """Class or function that a dict's ``type`` names; None if unknown."""
        kind = section.cfg.get('type')
        if kind is None:
            return None
        key = (section.path[0], kind, section.scope)
        try:
            return self._found[key]
        except (KeyError, TypeError):
            registries = SECTIONS[section.path[0]]
            component = find_component(kind, registries, section.scope)
            if isinstance(kind, str):
                self._found[key] = component
            return component

    def setting(self, section: ConfigNode, key: str) -> Any:
        """An argument of a component: that of the config, or its default."""
        if key in section.cfg:
            return section.cfg[key]
        return default_of(self.component(section), key)

    def below(self, *path: str) -> Iterator[ConfigNode]:
        """Sections at and below a path, such as ``'model', 'neck'``."""
        for section in self.sections:
            if section.path[: len(path)] == path:
                yield section

    def datasets(self, split: str) -> Iterator[tuple[Steps, Mapping]]:
        """Data sets of a split, also those inside of others."""
        root = (f'{split}_dataloader', 'dataset')
        loader = as_mapping(self.top.get(root[0]))
        return dataset_configs(loader.get('dataset'), root)

    def at(self, path: Sequence[str | int]) -> Any:
        """What the config has at a path that is there."""
        node: Any = self.top
        for step in path:
            node = node[step]
        return node

    def classes(self, split: str) -> tuple[str, ...]:
        """Names of the classes of a split's data; empty if not known."""
        if split in self._classes:
            return self._classes[split]
        names, loader = (), self.cfg.get(f'{split}_dataloader')
        if isinstance(loader, Mapping):
            own = Config({'train_dataloader': loader})
            if isinstance(self.cfg.get('default_scope'), str):
                own.default_scope = self.cfg.default_scope
            # Of data without classes; what else is wrong with them is said
            # by other rules.
            with suppress(*NO_CLASSES):
                names = tuple(read_config_classes(own))
        self._classes[split] = names
        return names
