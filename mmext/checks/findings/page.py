"""Pages for a browser that need nothing but themselves.

What they show comes from files that nobody has looked at. It is escaped
wherever it is, no script holds any of it, and a content security policy lets
a page run its own script alone, known by its hash, and load nothing.
"""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...utils.printing import printable
from ...version import __version__
from .finding import Severity

if TYPE_CHECKING:
    import numpy as np

_POLICY = (
    "default-src 'none'; img-src data:; style-src '{style}'; "
    "script-src '{script}'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)


def _digest(text: str) -> str:
    """As a content security policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f'sha256-{base64.b64encode(digest).decode()}'


def tiles(
    rows: Iterable[tuple[Severity, int]],
) -> list[dict[str, Any]]:
    """The numbers at the top of a page, the worst first."""
    kinds, findings = Counter(), Counter()
    for severity, count in rows:
        kinds[severity] += 1
        findings[severity] += count
    return [
        {
            'word': severity_word(severity),
            'kinds': kinds[severity],
            'label': plural(kinds[severity], severity.noun),
            'findings': f'{findings[severity]:,}'
            if findings[severity] > kinds[severity]
            else '',
        }
        for severity in sorted(Severity, reverse=True)
    ]


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The numbers of :func:`tiles` in words: ``'1 error, 2 notes'``."""
    words = [f'{tile["kinds"]:,} {tile["label"]}' for tile in rows]
    kept = [word for word, tile in zip(words, rows) if tile['kinds']]
    return ', '.join(kept) or 'nothing was found'


def severity_word(severity: Severity | None) -> str:
    """As style sheet and script call it; ``'fine'`` for none."""
    return 'fine' if severity is None else severity.name.lower()


def plural(number: int, noun: str) -> str:
    """The noun, in the plural unless there is one."""
    if number == 1:
        return noun
    return noun + ('es' if noun.endswith(('s', 'x')) else 's')


def render(package: str, template: str, **data: Any) -> bytes:
    r"""Fill a template of a package's ``templates`` folder.

    The template gets ``policy``, ``style``, ``script`` and ``version``
    besides the data.
    """
    # Not at the top: only pages need it.
    import jinja2
    from markupsafe import Markup

    folders = (
        jinja2.PackageLoader(name, 'templates')
        for name in (package, __package__)
    )
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(list(folders)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters['thousands'] = lambda number: f'{number:,}'
    style, script = (
        environment.loader.get_source(environment, name)[0]
        for name in ('page.css', 'page.js')
    )
    text = environment.get_template(template).render(
        policy=_POLICY.format(style=_digest(style), script=_digest(script)),
        style=Markup(style),
        script=Markup(script),
        version=__version__,
        **data,
    )
    return printable(text).encode()


def data_uri(picture: 'np.ndarray') -> str:
    """A URI that holds all of a picture, ``(H, W, 3)`` uint8.

    It is a PNG, which keeps all values, or WebP, whichever is smaller.
    """
    # Not at the top: few pages have pictures.
    from PIL import Image

    image = Image.fromarray(picture)
    kinds = {
        'PNG': {'compress_level': 6},
        'WEBP': {'quality': 82, 'method': 2, 'use_sharp_yuv': True},
    }
    files = {}
    for kind, options in kinds.items():
        file = io.BytesIO()
        image.save(file, kind, **options)
        files[kind] = file.getvalue()
    kind = min(files, key=lambda file: len(files[file]))
    content = base64.b64encode(files[kind]).decode()
    return f'data:image/{kind.lower()};base64,{content}'
