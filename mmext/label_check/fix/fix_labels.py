"""Write the label files of a data set anew, repaired where that is safe."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..rules import RULES, Rule
from ..sources import SplitSource
from ..store import FactStore
from ._split_fixer import NewFiles, SplitFixer
from ._survey import Survey, survey
from .change_log import ChangeLog, in_groups
from .out_tree import check_out, common_folder, new_tree, relative_to
from .sample_lists import SampleList, write_lists
from .summary import FixSummary, NewPlace

__all__ = ['fix_labels']

_LOG = 'fixes.jsonl'
_SUMMARY = 'fixes.json'


def fix_labels(
    sources: Sequence[SplitSource],
    store: FactStore,
    out: str | Path,
    *,
    rules: Sequence[Rule] | None = None,
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
                fixer = SplitFixer(source, files, rules, missing)
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
