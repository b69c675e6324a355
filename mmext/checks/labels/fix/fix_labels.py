"""Write the label files of a data set anew, with the fixes that are safe."""

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ....utils.files import new_tree, open_regular
from ...findings import Severity, to_json, to_json_line
from ..check import sample_facts
from ..expectations import SplitSource
from ..facts import has_size, is_turned
from ..report import Report, many
from ..rules.registry import RULES
from ..store import FactStore
from . import FixedFile
from .coco import fix_coco
from .masks import fix_mask
from .voc import fix_voc


class NewLocation(msgspec.Struct, frozen=True):
    """Where the fixed labels of a split are."""

    split: str  # 'train', 'val', ...
    # Key of the dataset config, such as 'data_prefix.seg_map_path'.
    key: str
    was: str  # Folder or file that the labels were in.
    now: str  # Folder or file to name instead; an absolute path.


class FixSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a fix.

    ``changes`` and ``left`` have the objects, pixels or files of each rule, by
    id: those that were fixed, and those that the check had found besides.
    """

    schema_version: int = 2  # Grows when a field changes meaning.
    out: str  # Folder of the new files.
    num_files: int  # Label files in it.
    num_fixed: int  # Files that differ from the old ones.
    changes: Mapping[str, int]
    left: Mapping[str, int]
    locations: tuple[NewLocation, ...] = ()  # Settings for the new files.

    def text(self) -> str:
        """Lines to read."""
        lines = [
            f'fixed {self.num_fixed:,} of {self.num_files:,} label files; all '
            f'of them are in {self.out}, each change is in fixes.jsonl'
        ]
        lines += [
            f'  {title} {rule}, '
            f'{many(count, RULES[rule].unit or RULES[rule].subject)}: '
            f'{RULES[rule].title}'
            for title, counts in (('fixed', self.changes), ('left', self.left))
            for rule, count in sorted(counts.items())
        ]
        if self.num_fixed and self.locations:
            lines.append('to train with the new files, set')
            lines += [
                f'  {location.split}: {location.key}={location.now!r}, which '
                f'was {location.was!r}'
                for location in self.locations
            ]
        return '\n'.join(lines)


def fix_labels(
    sources: Sequence[SplitSource],
    store: FactStore,
    out: str | Path,
    report: Report,
) -> FixSummary:
    """Write all label files of some splits to a new folder, with fixes.

    A fix changes no meaning of a label: docs/label_check.md lists all. A split
    whose boxes or labels a rule explains in another way is copied as it is.
    Label files keep their paths relative to the folder that they have in
    common; images are not copied. ``fixes.jsonl`` has each change, and
    ``fixes.json`` the summary. ``report`` is the report of the check, and
    names the rules whose findings are fixed.

    ``out`` appears when all is written; an error leaves nothing behind.
    """
    # Relative paths would not do as settings of a config.
    out = Path(out).absolute()
    splits = [_Split(source, store) for source in sources]
    labels = set().union(*(split.folders() for split in splits))
    images = set().union(*(split.folders('image') for split in splits))
    check_out(out, labels | images)
    common = common_folder(labels)
    explained = {
        split
        for group in report.groups
        if group.severity is Severity.ERROR and RULES[group.rule].explains
        for split, _ in group.splits
    }
    # In the units of the report, of which fixed ones are taken away.
    left = Counter()
    for group in report.groups:
        if group.severity > Severity.INFO:
            has_unit = bool(RULES[group.rule].unit)
            left[group.rule] += group.count if has_unit else group.num_subjects
    # Boxes that leave their images may be of those that are noted.
    beyond = left.keys() & {'DET004', 'DET005'}
    forbidden = {'PAIR004'} if beyond else set()
    changes: Counter[str] = Counter()
    num_files = num_fixed = 0
    with new_tree(out) as tree:
        with open(tree / 'fixes.jsonl', 'xb') as log:
            for split in splits:
                name = split.source.expected.split
                rules = {*report.rules} - forbidden
                if name in explained:
                    rules = set()
                for path, old, new in split.fix(rules):
                    new_file = os.path.relpath(path, common)
                    # Splits may share a file; no fix depends on the split.
                    if (tree / new_file).exists():
                        continue
                    (tree / new_file).parent.mkdir(parents=True, exist_ok=True)
                    (tree / new_file).write_bytes(new.content)
                    num_files += 1
                    num_fixed += new.content != old
                    for change in new.changes:
                        changes[change.rule] += change.count
                        change = msgspec.structs.replace(
                            change, split=name, file=path, new_file=new_file
                        )
                        log.write(to_json_line(change) + b'\n')
        summary = FixSummary(
            out=str(out),
            num_files=num_files,
            num_fixed=num_fixed,
            changes=changes,
            left=left - changes,
            locations=tuple(
                location
                for split in splits
                for location in split.locations(common, out)
            ),
        )
        (tree / 'fixes.json').write_bytes(to_json(summary))
    return summary


def _read(path: str) -> bytes:
    with open_regular(path) as file:
        return file.read()


class _Split:
    """The files of a split, and their fixes."""

    def __init__(self, source: SplitSource, store: FactStore):
        self.source, self._store = source, store
        # Paths of each kind, in order.
        self._paths: dict[str, dict[str, None]] = defaultdict(dict)
        # Differences between noted sizes and image files.
        self._differences: set[str] = set()
        for facts in sample_facts(source, store):
            sample, image = facts.sample, facts.image
            self._paths['mask'][sample.mask] = None
            self._paths['image'][sample.image] = None
            # A semantic data set names a list of its samples.
            if sample.annotation_kind or source.expected.task != 'semantic':
                self._paths['annotation'][sample.annotation] = None
            noted = sample.width, sample.height
            if has_size(image) and all(noted) and noted[0] != noted[1]:
                stored = image.width, image.height
                exchanged = noted == stored[::-1] and not is_turned(image)
                self._differences.add('exchanged' if exchanged else 'other')
        if source.coco is not None:
            self._paths['annotation'] = {source.coco.path: None}
        for orphan in source.orphans():
            if orphan.kind != 'image':
                self._paths['orphan'][orphan.path] = None

    def folders(self, *kinds: str) -> set[str]:
        """Folders of the files of some kinds, by default of all labels."""
        kinds = kinds or ('mask', 'annotation', 'orphan')
        paths = itertools.chain(*(self._paths[kind] for kind in kinds))
        return {os.path.dirname(path) or '.' for path in paths if path}

    def fix(
        self, rules: Container[str]
    ) -> Iterator[tuple[str, bytes, FixedFile]]:
        """Path, old and new content of each label file."""
        rules = {rule for rule in RULES if rule in rules}
        if self._differences != {'exchanged'}:
            rules.discard('PAIR004')
        expected, images = self.source.expected, []
        # Files that do not belong to a single sample.
        rest = {**self._paths['annotation'], **self._paths['orphan']}
        for facts in sample_facts(self.source, self._store):
            sample = facts.sample
            images.append(facts.image)
            for path, known in (
                (sample.mask, facts.mask),
                (sample.annotation, facts.annotation),
            ):
                if known is None:
                    continue
                rest.pop(path, None)
                if known.error and not os.path.isfile(path):
                    continue  # A rule says so.
                old = _read(path)
                if known is facts.mask:
                    new = fix_mask(old, expected, known, rules=rules)
                else:
                    new = fix_voc(old, facts.image, rules=rules)
                yield path, old, new
        for path in filter(None, rest):
            old = _read(path)
            new = FixedFile(content=old)
            if self.source.coco is not None and path == self.source.coco.path:
                new = fix_coco(old, expected, images, rules=rules)
            yield path, old, new

    def locations(self, common: str, out: Path) -> Iterator[NewLocation]:
        """Settings of the config that lead to the new files."""
        expected = self.source.expected
        own = any(sample.annotation_kind for sample in self.source.samples())
        maps = 'seg_map_path' if expected.task == 'semantic' else 'seg'
        masks = common_folder(self.folders('mask'))
        results = [(f'data_prefix.{maps}', masks)] if masks else []
        if own:
            annotations = common_folder(self.folders('annotation'))
            results.append(('ann_subdir', annotations))
        else:
            files = filter(None, self._paths['annotation'])
            results += [('ann_file', path) for path in files]
        for key, was in results:
            now = str(out / os.path.relpath(was, common))
            yield NewLocation(expected.split, key, was, now)


def common_folder(folders: Iterable[str]) -> str:
    """The folder that holds all folders; empty for none."""
    absolute = [os.path.abspath(folder) for folder in folders]
    return os.path.commonpath(absolute) if absolute else ''


def check_out(out: Path, folders: Iterable[str]) -> None:
    """Refuse a folder that holds something, or that is among the data."""
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(
            f'--fix must name a folder that is not there, or an empty one, '
            f'got {str(out)!r}; nothing is ever overwritten'
        )
    real = Path(os.path.realpath(out))
    for name in folders:
        folder = Path(os.path.realpath(name))
        if real == folder or folder in real.parents or real in folder.parents:
            raise ValueError(
                '--fix must be apart from the data, got '
                f'{str(out)!r} and the data folder {name!r}'
            )
