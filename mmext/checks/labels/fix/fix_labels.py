"""Write the label files of a data set anew, repaired where that is safe."""

from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ....utils.files import new_tree
from ...findings import Finding, Rule, Severity
from ..expectations import Expectations
from ..facts import ImageFacts, MaskFacts, Sample, SampleFacts
from ..loaded import INDEX_MODES, loaded_values
from ..readers.coco import CocoFacts, read_coco
from ..readers.mask import read_mask_facts
from ..readers.voc import read_voc
from ..rules.registry import RULES
from ..scan import sample_facts, with_boxes
from ..sources.coco import coco_samples, read_bytes
from ..sources.split_source import SplitSource
from ..store import FactStore
from .change_log import (
    ChangeLog,
    FixedFile,
    FixSummary,
    Left,
    NewPlace,
    in_groups,
)
from .coco import COCO_RULES, fix_coco
from .masks import MASK_RULES, fix_mask, needs_fix
from .out_tree import (
    NOT_TRAINABLE,
    SampleList,
    check_out,
    common_folder,
    relative_to,
    write_lists,
)
from .voc import VOC_RULES, fix_voc


def folder_of(path: str) -> str:
    """Folder of a file, by path or URL."""
    return path.rpartition('/')[0] or ('/' if path[:1] == '/' else '.')


def label_files(sample: Sample) -> Iterator[tuple[str, str]]:
    """Kind (``'mask'``, ``'voc'``) and path of a sample's label files."""
    if sample.mask:
        yield 'mask', sample.mask
    if sample.annotation_kind:
        yield sample.annotation_kind, sample.annotation


def other_file(source: SplitSource, sample: Sample) -> str:
    """An annotation file of several samples that no reader repairs, or ''.

    What a semantic data set names is a list of its samples.
    """
    if source.coco is not None or source.expected.task == 'semantic':
        return ''
    return '' if sample.annotation_kind else sample.annotation


class Survey:
    """What is known of a split before its repair.

    Attributes:
        masks: Folders of its label maps.
        annotations: Folders of its annotation files.
        others: Annotation files in a form that is not repaired.
        images: Folders of its images.
        seen: Classes that have a pixel.
    """

    def __init__(self) -> None:
        self.masks: set[str] = set()
        self.annotations: set[str] = set()
        self.others: set[str] = set()
        self.images: set[str] = set()
        self.seen: set[int] = set()

    def labels(self) -> set[str]:
        """Folders of label files of any kind."""
        return self.masks | self.annotations | set(map(folder_of, self.others))

    def add(self, sample: Sample, other: str) -> None:
        """Add the folders of a sample."""
        if other:
            self.others.add(other)
        for kind, path in label_files(sample):
            folders = self.masks if kind == 'mask' else self.annotations
            folders.add(folder_of(path))
        if sample.image:
            self.images.add(folder_of(sample.image))

    def add_values(self, mask: MaskFacts, expected: Expectations) -> None:
        """Add the classes of a label map."""
        if mask.error or mask.mode not in INDEX_MODES:
            return
        table = loaded_values(expected)
        for value, _ in mask.values:
            if 0 <= value < len(table.kind) and table.kind[value] == 'class':
                self.seen.add(table.value[value])


def survey(
    sources: Sequence[SplitSource], store: FactStore
) -> tuple[list[Survey], list[tuple[int, ...]]]:
    """Look over all splits; also the classes that no split like one has."""
    surveys = []
    seen: dict[tuple, set[int]] = {}
    for source in sources:
        own = Survey()
        surveys.append(own)
        for facts in sample_facts(source, store):
            own.add(facts.sample, other_file(source, facts.sample))
            if facts.mask is not None:
                own.add_values(facts.mask, source.expected)
        if source.coco is not None:
            own.annotations.add(folder_of(source.coco().path))
        for orphan in source.orphans():
            if orphan.kind == 'mask':
                own.masks.add(folder_of(orphan.path))
            elif orphan.kind == 'annotation':
                own.annotations.add(folder_of(orphan.path))
        seen.setdefault(_read_as(source.expected), set()).update(own.seen)
    unseen = [
        tuple(
            label
            for label in range(source.expected.num_classes)
            if label not in seen[_read_as(source.expected)]
            and label != source.expected.ignore_index
        )
        for source in sources
    ]
    return surveys, unseen


def _read_as(expected: Expectations) -> tuple:
    return (
        expected.num_classes,
        expected.ignore_index,
        expected.reduce_zero_label,
        expected.label_map,
    )


class NewFiles:
    """The label files of all splits, in a new tree.

    Attributes:
        left: What was not repaired.
        num_files: Files written.
        num_fixed: Those that differ from what they were.
    """

    def __init__(self, tree: Path, folder: str, log: ChangeLog):
        self.tree = tree
        self.folder = folder
        self.log = log
        self.left: list[Left] = []
        self.num_files = 0
        self.num_fixed = 0

    def put(self, split: str, path: str, old: bytes, new: FixedFile) -> bytes:
        """Write a file, if no other split has written it; what it is now."""
        name = relative_to(path, self.folder)
        target = self.tree / name
        left = list(new.left)
        if target.exists():
            content = target.read_bytes()
            if content != new.content:
                # Either split may be the one that has changed it.
                rule = new.changes[0].rule if new.changes else 'SEG004'
                reason = 'another split reads the file in another way'
                left.append(Left(rule=rule, reason=reason))
        else:
            content = new.content
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            self.num_files += 1
            self.num_fixed += content != old
            self.log.add(
                msgspec.structs.replace(
                    change, split=split, file=path, new_file=name
                )
                for change in new.changes
            )
        for item in left:
            self.leave(split, path, item.rule, item.reason, item.place)
        return content

    def leave(
        self, split: str, file: str, rule: str, reason: str, place: str = ''
    ) -> None:
        """Note what is not repaired."""
        self.left.append(
            Left(rule=rule, split=split, file=file, place=place, reason=reason)
        )


class SplitFixer:
    """Repairs the files of one split.

    Attributes:
        excluded: Samples that cannot be trained with even now.
    """

    def __init__(
        self,
        source: SplitSource,
        files: NewFiles,
        rules: Sequence[Rule],
        unseen: Sequence[int] = (),
        asked: Sequence[str] = (),
    ):
        self.excluded: list[Sample] = []
        self._source = source
        self._expected = source.expected
        self._files = files
        self._rules = rules
        self._unseen = unseen
        self._asked = asked
        self._images: list[ImageFacts | None] = []
        self._paths: list[str] = []
        self._others: set[str] = set()

    def fix(self, store: FactStore) -> None:
        """Repair all files, or write them as they are."""
        for facts in sample_facts(self._source, store):
            self._fix_sample(facts)
        if self._source.coco is not None:
            self._fix_coco()
        for path in sorted(self._others):
            self._copy(path)
        for orphan in self._source.orphans():
            if orphan.kind != 'image':
                self._copy(orphan.path)
                self._note(self._findings('orphan', orphan), ())

    def _copy(self, path: str) -> None:
        content = self._read(path)
        self._put(path, content, FixedFile(content=content))

    def _read(self, path: str) -> bytes:
        return read_bytes(path, self._source.backend_args)

    def _put(self, path: str, old: bytes, new: FixedFile) -> bytes:
        return self._files.put(self._expected.split, path, old, new)

    def _chosen(self, possible: Container[str]) -> set[str]:
        return {rule.id for rule in self._rules if rule.id in possible}

    def _fix_sample(self, facts: SampleFacts) -> None:
        """Repair the files of a sample, and check what they are now."""
        said: set[str] = set()
        other = other_file(self._source, facts.sample)
        self._others.update([other] if other else ())
        for kind, path in label_files(facts.sample):
            own = facts.mask if kind == 'mask' else facts.annotation
            try:
                content = self._read(path)
            except OSError:
                if own.error:
                    continue  # A rule says so.
                raise
            fixed = self._fixed(kind, content, facts)
            said.update(item.rule for item in fixed.left)
            now = self._put(path, content, fixed)
            if now != content:
                facts = _with_content(facts, kind, now)
        if self._source.coco is not None:
            # Boxes are those of a file that is repaired as a whole.
            self._images.append(facts.image)
            self._paths.append(facts.sample.image)
            sample = msgspec.structs.replace(
                facts.sample, boxes=(), width=0, height=0
            )
            facts = msgspec.structs.replace(facts, sample=sample)
        found = self._findings('sample', facts)
        self._note(found, said)
        if any(finding.rule in NOT_TRAINABLE for finding in found):
            self.excluded.append(facts.sample)

    def _fixed(
        self, kind: str, content: bytes, facts: SampleFacts
    ) -> FixedFile:
        """A label map or XML file after its repair."""
        if kind == 'voc':
            rules = self._chosen(VOC_RULES)
            return fix_voc(content, facts.image, rules=rules)
        if not needs_fix(facts.mask, self._expected):
            return FixedFile(content=content)
        return fix_mask(
            content,
            self._expected,
            rules=self._chosen(MASK_RULES),
            unseen=self._unseen,
        )

    def _findings(self, scope: str, facts: object) -> list[Finding]:
        return [
            finding
            for rule in self._rules
            if rule.scope == scope
            for finding in rule.check(facts, self._expected)
            if finding.severity > Severity.INFO
        ]

    def _note(self, found: Iterable[Finding], said: Container[str]) -> None:
        """Say that findings remain, but for rules that have said why."""
        split = self._expected.split
        for finding in found:
            if finding.rule not in said:
                reason = f'no repair is certain; {finding.remedy}'
                self._files.leave(
                    split, finding.file, finding.rule, reason, finding.place
                )

    def _fix_coco(self) -> None:
        """Repair the annotation file, and check what it is now."""
        old = self._source.coco()
        content = self._read(old.path)
        # What loses objects has to be asked for.
        rules = self._chosen(
            COCO_RULES | {'COCO016'}.intersection(self._asked)
        )
        fixed = fix_coco(content, self._expected, self._images, rules=rules)
        file = read_coco(self._put(old.path, content, fixed))
        facts = CocoFacts(split=old.split, path=old.path, file=file)
        found = self._findings('coco', facts)
        names = old.file.images.file_name
        images = dict(zip(names, self._images))
        paths = dict(zip(names, self._paths))
        samples = coco_samples(file, old.path, '', self._expected.classes)
        for sample, name in zip(samples, file.images.file_name):
            sample = msgspec.structs.replace(sample, image=paths[name])
            own = SampleFacts(
                split=old.split, sample=sample, image=images[name]
            )
            found += (
                finding
                for finding in self._findings('sample', own)
                if RULES[finding.rule].of_records
            )
        self._note(found, {item.rule for item in fixed.left})


def _with_content(
    facts: SampleFacts, kind: str, content: bytes
) -> SampleFacts:
    """Facts of a sample whose label file is another now."""
    if kind == 'mask':
        mask = read_mask_facts(content)
        return msgspec.structs.replace(facts, mask=mask)
    file = read_voc(content)
    labels = {box.class_name: box.label for box in facts.sample.boxes}
    return msgspec.structs.replace(
        facts,
        annotation=file,
        sample=with_boxes(facts.sample, file, labels),
    )


_LOG = 'fixes.jsonl'
_SUMMARY = 'fixes.json'


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
    common; images are not copied. ``fixes.jsonl`` has each change,
    ``fixes.json`` the summary, and ``exclude_<split>.txt`` the samples that
    cannot be trained with. What is wrong with the config, or with a data set
    as a whole, is for the report of the check.

    Args:
        sources: The splits, as they were checked.
        store: With the facts of their files.
        out: Not there, or an empty folder, apart from the data. It appears
            when all is written; an error leaves nothing behind.
        rules: Whose findings are repaired, if they can be; None for all.
        asked: Ids of those among them that are repaired even where labels
            are lost by it.

    Returns:
        What was done.

    Raises:
        FileExistsError: If ``out`` is a file or holds something.
        KeyError: If the files have not been scanned.
        ValueError: If ``out`` is in a folder of the data or has one in it.
    """
    # Relative paths would not do as settings of a config.
    out = Path(out).absolute()
    rules = tuple(RULES.values()) if rules is None else tuple(rules)
    check_out(out, ())
    surveys, unseen = survey(sources, store)
    labels = set().union(*(own.labels() for own in surveys))
    check_out(out, labels.union(*(own.images for own in surveys)))
    folder = common_folder(labels)
    with new_tree(out) as tree:
        lists: list[SampleList] = []
        with ChangeLog(tree / _LOG) as log:
            files = NewFiles(tree, folder, log)
            for source, own, missing in zip(sources, surveys, unseen):
                fixer = SplitFixer(source, files, rules, missing, asked)
                fixer.fix(store)
                listed = write_lists(
                    tree, source, fixer.excluded, own.images or own.labels()
                )
                lists += () if listed is None else (listed,)
        summary = FixSummary(
            out=str(out),
            num_files=files.num_files,
            num_fixed=files.num_fixed,
            changes=log.by_rule,
            places=tuple(
                place
                for source, own in zip(sources, surveys)
                for place in _places(source, own, folder, out)
            ),
            lists=tuple(lists),
            not_repaired=tuple(in_groups(files.left)),
        )
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        (tree / _SUMMARY).write_bytes(text + b'\n')
    return summary


def _places(
    source: SplitSource, own: Survey, folder: str, out: Path
) -> Iterator[NewPlace]:
    """What to name in the config in place of what."""
    found: list[tuple[str, str]] = []
    if own.masks:
        key = 'data_prefix.seg_map_path'
        if source.expected.task != 'semantic':
            key = 'data_prefix.seg'
        found.append((key, common_folder(own.masks)))
    if source.coco is not None:
        found.append(('ann_file', source.coco().path))
    elif own.others:
        found += (('ann_file', path) for path in sorted(own.others))
    elif own.annotations:
        found.append(('ann_subdir', common_folder(own.annotations)))
    for key, was in found:
        yield NewPlace(
            split=source.expected.split,
            key=key,
            was=was,
            now=str(out / relative_to(was, folder)),
        )
