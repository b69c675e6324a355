"""Repair the label files of one split, and say what is still wrong."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import msgspec
from mmengine.fileio import get

from ..check import sample_facts, with_boxes
from ..facts import ImageFacts, Sample, SampleFacts
from ..findings import Finding, Severity
from ..readers.coco_reader import read_coco
from ..readers.mask_reader import read_mask_facts
from ..readers.voc_reader import read_voc
from ..rules import Rule
from ..rules.coco_file import CocoFacts
from ..sources import SplitSource
from ..sources.coco_source import coco_samples
from ..store import FactStore
from ._survey import label_files, other_file
from .change_log import ChangeLog, FixedFile, Left
from .coco_fixes import COCO_RULES, fix_coco
from .mask_fixes import MASK_RULES, fix_mask, needs_fix
from .out_tree import relative_to
from .sample_lists import NOT_TRAINABLE
from .voc_fixes import VOC_RULES, fix_voc

__all__ = ['NewFiles', 'SplitFixer']

# Rules of the scope 'sample' that are about the records of a sample.
_OF_RECORDS = ('DET', 'PAIR004', 'PAIR005')


class NewFiles:
    """The label files of all splits, in a new tree.

    Args:
        tree: Folder to write to.
        folder: That holds all label files now.
        log: Gets each change.

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
        """Write a file, if no other split has written it.

        Args:
            split: Whose file it is.
            path: Where it is.
            old: What it is.
            new: What it is to be.

        Returns:
            What it is in the new tree.
        """
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
                    each, split=split, file=path, new_file=name
                )
                for each in new.changes
            )
        for each in left:
            self.leave(split, path, each.rule, each.reason, each.place)
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

    Args:
        source: The split.
        files: Takes the files.
        rules: Whose findings are repaired, if they can be.
        unseen: Classes that have no pixel.

    Attributes:
        excluded: Samples that cannot be trained with even now.
    """

    def __init__(
        self,
        source: SplitSource,
        files: NewFiles,
        rules: Sequence[Rule],
        unseen: Sequence[int] = (),
    ):
        self.excluded: list[Sample] = []
        self._source = source
        self._expected = source.expected
        self._files = files
        self._rules = rules
        self._unseen = unseen
        self._images: list[ImageFacts | None] = []
        self._paths: list[str] = []
        self._others: set[str] = set()

    def fix(self, store: FactStore) -> None:
        """Repair all files, or write them as they are.

        Args:
            store: With the facts of the files.
        """
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
        return get(path, backend_args=self._source.backend_args)

    def _put(self, path: str, old: bytes, new: FixedFile) -> bytes:
        return self._files.put(self._expected.split, path, old, new)

    def _chosen(self, possible: Container[str]) -> set[str]:
        return {rule.id for rule in self._rules if rule.id in possible}

    def _fix_sample(self, facts: SampleFacts) -> None:
        """Repair the files of a sample, and judge what they are now."""
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
            said.update(each.rule for each in fixed.left)
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
        if any(each.rule in NOT_TRAINABLE for each in found):
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
        for each in found:
            if each.rule not in said:
                reason = f'no repair is certain; {each.remedy}'
                self._files.leave(
                    split, each.file, each.rule, reason, each.place
                )

    def _fix_coco(self) -> None:
        """Repair the annotation file, and judge what it is now."""
        old = self._source.coco()
        content = self._read(old.path)
        rules = self._chosen(COCO_RULES)
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
                each
                for each in self._findings('sample', own)
                if each.rule.startswith(_OF_RECORDS)
            )
        self._note(found, {each.rule for each in fixed.left})


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
