"""Names of classes that are equal but for the way they are written."""

from collections.abc import Iterable, Sequence

from ...findings import Severity, found
from ..expectations import Expectations
from ..totals import SplitTotals
from .registry import CFG, Findings

_BLANKS = str.maketrans('', '', '_-')


def likeness(name: str) -> str:
    """What is left of a name without case, blanks, hyphens, underscores."""
    return ''.join(name.split()).translate(_BLANKS).casefold()


def written_like(name: str, names: Iterable[str]) -> str:
    """The first of other names that is equal but for those; empty if none."""
    own = likeness(name)
    for other in names:
        if own and other != name and likeness(other) == own:
            return other
    return ''


@CFG.rule(
    'CFG010',
    title='classes whose names differ only in case, blanks or hyphens',
    severity=Severity.WARNING,
    remedy='if both are the same class, give it one name in the annotations '
    'and once in metainfo.classes; loaders compare letter by letter',
    subject='class',
    in_preflight=True,
)
def _alike(
    totals: Sequence[SplitTotals], expected: Sequence[Expectations]
) -> Findings:
    seen = set()
    for wanted in expected:
        for index, name in enumerate(wanted.classes):
            other = written_like(name, wanted.classes[:index])
            if other and (name, other) not in seen:
                seen.add((name, other))
                yield found(
                    f'classes {other!r} and {name!r} are two to the training',
                    key='metainfo.classes',
                    value=name,
                )
