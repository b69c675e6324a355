"""Judge samples by rules, and remember the verdicts.

Samples are judged by the block. The verdict on a block, with the findings
and the sums of its samples, is kept in the store under a digest of all that
it follows from: the samples and the packed facts of their files, what the
training expects, the rules, and the code of this package. Whatever changes,
the digest is another, and the block is judged anew; nothing is ever marked
as outdated.
"""

import functools
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .by_digest import ImagesByDigest
from .expectations import Expectations
from .facts import Sample, SampleFacts
from .findings import Finding
from .rules import Rule
from .scan import packed_facts
from .store import FactStore
from .totals import SplitTotals
from .work import WorkItem, unpack

__all__ = ['code_digest', 'judge_samples']

_BLOCK = 512
# Verdicts written together.
_BATCH = 32
_PACKAGE = __name__.rpartition('.')[0]
# What the code of the rules is made of, below the package mmext.
_CODE = ('label_check', 'utils')
# Of rules, in the order of `_checks`.
_NEEDS = ('mask', 'image', 'annotation', 'boxes')
# Of a block with thousands of findings; judging it again is cheaper then.
_MAX_BYTES = 1 << 20


class _Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What came of a block.

    Attributes:
        findings: In the order of samples and rules.
        totals: Of these samples alone.
        digests: Of the image of each sample; empty without one.
        fingerprints: In the same order.
    """

    findings: tuple[Finding, ...]
    totals: SplitTotals
    digests: tuple[str, ...]
    fingerprints: tuple[int, ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Verdict)
# What msgspec raises for text that is no valid Unicode, and for numbers and
# objects that rules of others may put into findings.
_NOT_PACKED = (TypeError, ValueError, OverflowError)


class _Block(NamedTuple):
    """Samples, the files of each, and the packed facts of all files."""

    samples: list[Sample]
    files: list[list[WorkItem]]
    packed: list[bytes]


def code_digest(folder: Path) -> bytes:
    """Digest of the Python files below a folder.

    Args:
        folder: With all folders in it.

    Returns:
        32 bytes, another for other names or contents.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob('*.py')):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f'{name}\0{len(content)}\0'.encode())
        digest.update(content)
    return digest.digest()


@functools.cache
def _own_code() -> bytes:
    """Digest of what judges; empty if it does not lie in files."""
    root = Path(__file__).parents[1]
    folders = [root / name for name in _CODE]
    if not all(folder.is_dir() for folder in folders):
        return b''
    return b''.join(map(code_digest, folders))


def _is_own(rule: Rule) -> bool:
    """Whether the code of a rule is among that which the digest is of."""
    module = getattr(rule.check, '__module__', '')
    name = getattr(rule.check, '__qualname__', '<')
    return f'{module}.'.startswith(f'{_PACKAGE}.') and '<' not in name


class _Judge:
    """State of one call of :func:`judge_samples`."""

    def __init__(
        self,
        store: FactStore,
        rules: Sequence[Rule],
        expected: Expectations,
        totals: SplitTotals,
        facts_of: Callable[[Sample, Sequence[Any]], SampleFacts],
        boxes: bool,
    ):
        self.store = store
        self.rules = rules
        self.expected = expected
        self.totals = totals
        self.facts_of = facts_of
        self.boxes = boxes
        self.head = self._head()
        self.checks: dict[tuple[bool, ...], list[Callable]] = {}
        self.new: list[tuple[bytes, bytes]] = []
        self.used: list[bytes] = []

    def _head(self) -> bytes:
        """What all verdicts of the call follow from; empty to keep none."""
        code = _own_code()
        if not code or not all(map(_is_own, self.rules)):
            return b''
        rules = [
            (rule.id, rule.check.__module__, rule.check.__qualname__)
            for rule in self.rules
        ]
        versions = sys.version, msgspec.__version__
        try:
            packed = _ENCODER.encode(
                (code, versions, rules, self.expected, self.boxes)
            )
        except _NOT_PACKED:
            return b''
        return hashlib.sha256(packed).digest()

    def _key(self, block: _Block) -> bytes:
        """Digest of all that a verdict follows from; empty to keep none."""
        if not self.head:
            return b''
        try:
            # A sample tells which files it has, and in which order.
            content = _ENCODER.encode((block.samples, block.packed))
        except _NOT_PACKED:
            return b''
        return hashlib.sha256(self.head + content).digest()

    def judge(self, block: _Block) -> Iterator[Finding]:
        """Findings of a block; adds its samples to the totals."""
        key = self._key(block)
        verdict = self._known(key) if key else None
        if verdict is None:
            verdict = self._made(block)
            if key:
                self._keep(key, verdict)
        else:
            self.used.append(key)
        self.totals.merge(verdict.totals)
        self.totals.images.extend(
            [sample.image for sample in block.samples],
            verdict.digests,
            verdict.fingerprints,
        )
        yield from verdict.findings
        if len(self.new) >= _BATCH:
            self.write()

    def _known(self, key: bytes) -> _Verdict | None:
        packed = self.store.verdict(key)
        if packed is None:
            return None
        try:
            return _DECODER.decode(zlib.decompress(packed))
        except (zlib.error, msgspec.DecodeError):
            # Damaged on the disk; it will be replaced.
            return None

    def _checks(self, facts: SampleFacts) -> list[Callable]:
        """Of the rules that may have something to say about a sample."""
        has = (
            facts.mask is not None,
            facts.image is not None,
            facts.annotation is not None,
            bool(facts.sample.boxes),
        )
        if has not in self.checks:
            there = {'', *compress(_NEEDS, has)}
            self.checks[has] = [
                rule.check for rule in self.rules if rule.needs in there
            ]
        return self.checks[has]

    def _made(self, block: _Block) -> _Verdict:
        totals = SplitTotals(split=self.totals.split)
        findings: list[Finding] = []
        digests, fingerprints = [], []
        packed = iter(block.packed)
        for sample, files in zip(block.samples, block.files):
            known = [unpack(item.kind, next(packed)) for item in files]
            facts = self.facts_of(sample, known)
            totals.add(facts, boxes=self.boxes)
            image = facts.image
            digests.append(image.digest if image is not None else '')
            fingerprints.append(image.fingerprint if image is not None else -1)
            for check in self._checks(facts):
                findings.extend(check(facts, self.expected))
        return _Verdict(
            tuple(findings), totals, tuple(digests), tuple(fingerprints)
        )

    def _keep(self, key: bytes, verdict: _Verdict) -> None:
        """Have a verdict written, if it comes back as it is."""
        if self.store.read_only:
            return
        try:
            packed = _ENCODER.encode(verdict)
            same = _DECODER.decode(packed) == verdict
        except (*_NOT_PACKED, msgspec.DecodeError):
            return
        packed = zlib.compress(packed, 1)
        if same and len(packed) <= _MAX_BYTES:
            self.new.append((key, packed))

    def write(self) -> None:
        """Write what is to be kept."""
        if not self.store.read_only and (self.new or self.used):
            self.store.write_verdicts(self.new, self.used)
        self.new, self.used = [], []


def judge_samples(
    samples: Iterable[Sample],
    store: FactStore,
    rules: Sequence[Rule],
    expected: Expectations,
    totals: SplitTotals,
    *,
    items_of: Callable[[Sample], Iterable[WorkItem]],
    facts_of: Callable[[Sample, Sequence[Any]], SampleFacts],
    boxes: bool = True,
) -> Iterator[Finding]:
    """Findings of each sample; what the store knows is not judged again.

    Args:
        samples: Of a split, gone through once.
        store: With the facts of their files; verdicts are kept in it, unless
            it was opened to be read only.
        rules: Of the scope ``'sample'``.
        expected: Of the split.
        totals: The samples are added to them, and their images.
        items_of: The files of a sample.
        facts_of: Makes what rules look at of a sample and the facts of its
            files, in that order. It must be of this package, and depend on
            nothing but these and ``expected``.
        boxes: As in :meth:`~mmext.label_check.totals.SplitTotals.add`.

    Yields:
        In the order of samples and rules, be they judged now or before.

    Raises:
        KeyError: If a file has not been scanned.

    Note:
        With a rule from elsewhere, whose code is not known, all samples are
        judged, and no verdict is kept. The samples of 512 are in memory at a
        time.
    """
    totals.images = ImagesByDigest()
    judge = _Judge(store, rules, expected, totals, facts_of, boxes)
    samples = iter(samples)
    try:
        while several := list(islice(samples, _BLOCK)):
            yield from judge.judge(_with_facts(several, store, items_of))
    finally:
        judge.write()


def _with_facts(
    samples: list[Sample],
    store: FactStore,
    items_of: Callable[[Sample], Iterable[WorkItem]],
) -> _Block:
    files = [list(items_of(sample)) for sample in samples]
    packed = packed_facts([item for own in files for item in own], store)
    return _Block(samples, files, packed)
