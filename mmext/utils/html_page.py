"""Pages for a browser that need nothing but themselves.

What they show comes from files that nobody has looked at. It is escaped
wherever it is, no script holds any of it, and a content security policy lets
a page run its own script alone, known by its hash, and load nothing.
"""

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    PackageLoader,
    StrictUndefined,
)
from markupsafe import Markup

from ..version import __version__

__all__ = ['render_page']

_POLICY = (
    "default-src 'none'; img-src data:; style-src '{style}'; "
    "script-src '{script}'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [
                PackageLoader(package, 'templates'),
                PackageLoader(__package__, 'templates'),
            ]
        ),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters['thousands'] = lambda number: f'{number:,}'
    return environment


def _digest(text: str) -> str:
    """As a content security policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f'sha256-{base64.b64encode(digest).decode()}'


def render_page(package: str, template: str, **data: Any) -> bytes:
    r"""Fill a template.

    Args:
        package: Its ``templates`` folder holds the template; those of
            ``mmext.utils`` are there for all.
        template: Name of the file; gets ``policy``, ``style``, ``script``
            and ``version`` besides the data.
        data: What it shows.

    Returns:
        UTF-8, the same for the same data.

    Note:
        What is not valid in UTF-8, such as an odd byte of a file name, is
        written as ``\udcff``.
    """
    environment = _environment(package)
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
    return text.encode('utf-8', 'backslashreplace')
