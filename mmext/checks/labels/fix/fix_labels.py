"""Write the label files of a data set anew, repaired where that is safe."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from ....utils.files import new_tree, open_regular
from ...findings import Finding, Rule, Severity, to_json, to_json_line
from ..check import annotated, sample_facts
from ..expectations import INDEX_MODES, SplitSource, loaded_values
from ..facts import ImageFacts, SampleFacts
from ..readers.boxes import read_voc
from ..readers.coco import read_coco
from ..readers.image import read_mask_facts
from ..report import many
from ..rules.registry import RULES
from ..sources.coco import coco_samples
from ..store import FactStore
from . import FixedFile
from .coco import COCO_RULES, fix_coco
from .masks import MASK_RULES, fix_mask, needs_fix
from .voc import VOC_RULES, fix_voc


class LeftGroup(msgspec.Struct, frozen=True):
    """Errors of one kind that were not repaired, for one reason."""

    rule: str  # Id of the rule that finds them.
    split: str  # 'train', 'val', ...
    reason: str  # Why they were not repaired.
    files: tuple[str, ...]  # All files that have them, in order; each once.


class NewLocation(msgspec.Struct, frozen=True):
    """Where the repaired labels of a split are."""

    split: str  # 'train', 'val', ...
    # Of the config of the data set, such as 'data_prefix.seg_map_path'.
    key: str
    was: str  # Folder or file that the labels were in.
    now: str  # Folder or file to name instead; an absolute path.


class FixSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair has done, in all."""

    # Of this form; it grows when a field changes meaning.
    schema_version: int = 1
    out: str  # Folder of the repaired files.
    num_files: int  # Label files in it.
    num_fixed: int  # Those that differ from what they were.
    changes: Mapping[str, int]  # Id of a rule to the number of its changes.
    locations: tuple[NewLocation, ...] = ()  # What to name in the config.
    not_repaired: tuple[LeftGroup, ...] = ()  # What is left, and why.

    def text(self) -> str:
        """The same to be read, in lines."""
        lines = [
            f'repaired {self.num_fixed:,} of {self.num_files:,} label files; '
            f'all of them are in {self.out}, each change is in fixes.jsonl'
        ]
        for rule, count in sorted(self.changes.items()):
            lines.append(f'  {rule}  {count:,} x {RULES[rule].title}')
        if self.not_repaired:
            lines.append('not repaired (fixes.json names all files):')
        for group in self.not_repaired:
            files = many(len(group.files), 'file')
            lines.append(
                f'  {group.rule}  {group.split}, {files}: {group.reason}'
            )
        locations = self.locations if self.num_fixed else ()
        if locations:
            lines.append('to train with the repaired files, set')
        for location in locations:
            lines.append(
                f'  {location.split}: {location.key}={location.now!r}, which '
                f'was {location.was!r}'
            )
        return '\n'.join(lines)


def fix_labels(
    sources: Sequence[SplitSource],
    store: FactStore,
    out: str | Path,
    *,
    rules: Sequence[Rule] | None = None,
    asked: Sequence[str] = (),
) -> FixSummary:
    """Write all label files of some splits to a new folder, repaired.

    What is repaired is certain: it loses no label and makes none, or it is
    what the loader does anyway. The rest is left as it is, and listed.
    Label files keep their paths relative to the folder that they have in
    common; images are not copied. ``fixes.jsonl`` has each change, and
    ``fixes.json`` the summary. What is wrong with the config, or with a data
    set as a whole, is for the report of the check.

    ``out`` appears when all is written; an error leaves nothing behind. What
    ``rules`` find is repaired; what would lose labels, only if the id of its
    rule is in ``asked``.
    """
    # Relative paths would not do as settings of a config.
    out = Path(out).absolute()
    rules = tuple(RULES.values()) if rules is None else tuple(rules)
    check_out(out, ())
    splits = [_Split(source, store) for source in sources]
    labels = set().union(
        *(split.folders['mask'] for split in splits),
        *(split.folders['annotation'] for split in splits),
    )
    check_out(out, labels.union(*(split.folders['image'] for split in splits)))
    folder = common_folder(labels)
    # 255 may stand for a class that no split with such label maps has.
    seen: dict[tuple, set[int]] = {}
    for split in splits:
        seen.setdefault(split.reads_as, set()).update(split.seen)
    with new_tree(out) as tree:
        with open(tree / 'fixes.jsonl', 'xb') as log:
            files = _NewFiles(tree, folder, log)
            for split in splits:
                expected = split.source.expected
                classes = set(range(expected.num_classes))
                unseen = classes - {expected.ignore_index}
                unseen -= seen[split.reads_as]
                split.fix(files, rules, sorted(unseen), asked)
        summary = FixSummary(
            out=str(out),
            num_files=files.num_files,
            num_fixed=files.num_fixed,
            changes=files.changes,
            locations=tuple(
                location
                for split in splits
                for location in split.locations(folder, out)
            ),
            not_repaired=files.not_repaired(),
        )
        (tree / 'fixes.json').write_bytes(to_json(summary))
    return summary


class _NewFiles:
    """The label files of all splits, in a new tree, and how many there are."""

    def __init__(self, tree: Path, folder: str, log: BinaryIO):
        self._tree = tree
        self._folder = folder
        self._log = log
        self._left: dict[tuple[str, str, str], set[str]] = {}
        self.changes: Counter[str] = Counter()
        self.num_files = 0
        self.num_fixed = 0

    def put(self, split: str, path: str, old: bytes, new: FixedFile) -> bytes:
        """Write a file, if no other split has written it; what it is now."""
        name = os.path.relpath(path, self._folder)
        target = self._tree / name
        content = new.content
        if target.exists():
            content = target.read_bytes()
            if content != new.content:
                # Either split may be the one that has changed it.
                rule = new.changes[0].rule if new.changes else 'SEG004'
                reason = 'another split reads the file in another way'
                self.leave(split, path, rule, reason)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            self.num_files += 1
            self.num_fixed += content != old
            for change in new.changes:
                change = msgspec.structs.replace(
                    change, split=split, file=path, new_file=name
                )
                self.changes[change.rule] += 1
                self._log.write(to_json_line(change) + b'\n')
        return content

    def leave(self, split: str, file: str, rule: str, reason: str) -> None:
        """Note what is not repaired."""
        self._left.setdefault((rule, split, reason), set()).add(file)

    def not_repaired(self) -> tuple[LeftGroup, ...]:
        """What was left for the same reason, together."""
        return tuple(
            LeftGroup(rule, split, reason, tuple(sorted(names)))
            for (rule, split, reason), names in sorted(self._left.items())
        )


class _Split:
    """One split: what is known of its files, and their repair."""

    def __init__(self, source: SplitSource, store: FactStore):
        self.source = source
        # Annotation files in a form that is not repaired.
        self.others: set[str] = set()
        # Classes that have a pixel.
        self.seen: set[int] = set()
        self._store = store
        self._expected = expected = source.expected
        # What loaded label maps depend on.
        self.reads_as = (
            expected.num_classes,
            expected.ignore_index,
            expected.reduce_zero_label,
            expected.label_map,
        )
        # Folders that have some files of a kind.
        self.folders: dict[str, set[str]] = {
            'mask': set(),
            'annotation': set(),
            'image': set(),
        }
        for facts in sample_facts(source, store):
            sample = facts.sample
            self._add('mask', sample.mask)
            self._add('image', sample.image)
            if sample.annotation_kind:
                self._add('annotation', sample.annotation)
            elif source.coco is None and expected.task != 'semantic':
                # What a semantic data set names is a list of its samples.
                self._add('annotation', sample.annotation)
                self.others.add(sample.annotation)
            mask = facts.mask
            if mask is None or mask.error or mask.mode not in INDEX_MODES:
                continue
            table = loaded_values(expected)
            self.seen.update(
                table.value[value]
                for value, _ in mask.values
                if 0 <= value < len(table.kind)
                and table.kind[value] == 'class'
            )
        self.others.discard('')
        if source.coco is not None:
            self._add('annotation', source.coco.path)
        for orphan in source.orphans():
            if orphan.kind != 'image':
                self._add(orphan.kind, orphan.path)

    def _add(self, kind: str, path: str) -> None:
        if path:
            self.folders[kind].add(os.path.dirname(path) or '.')

    def fix(
        self,
        files: _NewFiles,
        rules: Sequence[Rule],
        unseen: Sequence[int],
        asked: Sequence[str],
    ) -> None:
        """Repair all files, or write them as they are.

        ``unseen`` are classes without a pixel; ``asked``, ids of rules whose
        repair may lose labels.
        """
        self._files, self._rules = files, rules
        self._chosen = {rule.id for rule in rules}
        images: list[ImageFacts | None] = []
        paths: list[str] = []
        for facts in sample_facts(self.source, self._store):
            if self.source.coco is not None:
                images.append(facts.image)
                paths.append(facts.sample.image)
            self._fix_sample(facts, unseen)
        if self.source.coco is not None:
            self._fix_coco(images, paths, asked)
        for path in sorted(self.others):
            self._copy(path)
        for orphan in self.source.orphans():
            if orphan.kind != 'image':
                self._copy(orphan.path)
                self._note(self._findings('orphan', orphan))

    def _copy(self, path: str) -> None:
        content = self._read(path)
        self._put(path, content, FixedFile(content=content))

    def _read(self, path: str) -> bytes:
        with open_regular(path) as file:
            return file.read()

    def _put(self, path: str, old: bytes, new: FixedFile) -> bytes:
        return self._files.put(self._expected.split, path, old, new)

    def _findings(self, scope: str, facts: object) -> list[Finding]:
        return [
            finding
            for rule in self._rules
            if rule.scope == scope
            for finding in rule.check(facts, self._expected)
            if finding.severity > Severity.INFO
        ]

    def _note(self, findings: Sequence[Finding], problem: str = '') -> None:
        """Say that findings remain."""
        for finding in findings:
            reason = problem or f'no repair is certain; {finding.remedy}'
            self._files.leave(
                self._expected.split, finding.file, finding.rule, reason
            )

    def _fix_sample(self, facts: SampleFacts, unseen: Sequence[int]) -> None:
        """Repair the files of a sample, and check what they are now."""
        sample, expected = facts.sample, self._expected
        voc = sample.annotation if sample.annotation_kind else ''
        for path, own in (
            (sample.mask, facts.mask),
            (voc, facts.annotation),
        ):
            if not path:
                continue
            try:
                content = self._read(path)
            except OSError:
                if own.error:
                    continue  # A rule says so.
                raise
            fixed = FixedFile(content=content)
            if path == voc:
                rules = self._chosen & VOC_RULES
                fixed = fix_voc(content, facts.image, rules=rules)
            elif needs_fix(own, expected):
                rules = self._chosen & MASK_RULES
                fixed = fix_mask(content, expected, rules=rules, unseen=unseen)
            now = self._put(path, content, fixed)
            if now == content:
                continue
            if path == voc:
                file = read_voc(now)
                facts = msgspec.structs.replace(
                    facts,
                    annotation=file,
                    sample=annotated(sample, file, None, expected.classes),
                )
            else:
                mask = read_mask_facts(now)
                facts = msgspec.structs.replace(facts, mask=mask)
        if self.source.coco is not None:
            # Boxes are those of a file that is repaired as a whole.
            facts = msgspec.structs.replace(
                facts,
                sample=msgspec.structs.replace(
                    facts.sample, boxes=(), width=0, height=0
                ),
            )
        self._note(self._findings('sample', facts))

    def _fix_coco(
        self,
        images: Sequence[ImageFacts | None],
        paths: Sequence[str],
        asked: Sequence[str],
    ) -> None:
        """Repair the annotation file, and check what it is now."""
        old = self.source.coco
        content = self._read(old.path)
        # What loses objects has to be asked for.
        rules = self._chosen & (COCO_RULES | {'COCO016'}.intersection(asked))
        fixed = fix_coco(content, self._expected, images, rules=rules)
        new = self._put(old.path, content, fixed)
        file = read_coco(new, old.split, old.path)
        findings = self._findings('coco', file)
        known = dict(zip(old.images.file_name, zip(images, paths)))
        samples = coco_samples(file, old.path, '', self._expected.classes)
        for sample, name in zip(samples, file.images.file_name):
            image, path = known[name]
            sample = msgspec.structs.replace(sample, image=path)
            own = SampleFacts(split=old.split, sample=sample, image=image)
            findings += (
                finding
                for finding in self._findings('sample', own)
                if RULES[finding.rule].of_records
            )
        self._note(findings, fixed.problem)

    def locations(self, folder: str, out: Path) -> Iterator[NewLocation]:
        """What to name in the config in place of what."""
        results: list[tuple[str, str]] = []
        if self.folders['mask']:
            key = 'data_prefix.seg_map_path'
            if self._expected.task != 'semantic':
                key = 'data_prefix.seg'
            results.append((key, common_folder(self.folders['mask'])))
        if self.source.coco is not None:
            results.append(('ann_file', self.source.coco.path))
        elif self.others:
            results += (('ann_file', path) for path in sorted(self.others))
        elif self.folders['annotation']:
            was = common_folder(self.folders['annotation'])
            results.append(('ann_subdir', was))
        for key, was in results:
            now = str(out / os.path.relpath(was, folder))
            yield NewLocation(self._expected.split, key, was, now)


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
