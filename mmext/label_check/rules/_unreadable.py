"""Why a file could not be read, in one word."""

from ..facts import ImageFacts, MaskFacts

__all__ = ['error_kind', 'has_size']

_KINDS = ('missing', 'empty', 'truncated', 'refused', 'suspect')


def error_kind(error: str) -> str:
    """The kind of an error that a reader notes.

    Args:
        error: Such as ``'empty: the file has no bytes'``.

    Returns:
        ``'missing'``, ``'empty'``, ``'truncated'``, ``'refused'``,
        ``'suspect'``, or ``'corrupt'`` for all others.

    Examples:
        >>> error_kind('empty: the file has no bytes')
        'empty'
        >>> error_kind('not an image: the file begins with 47 49')
        'corrupt'
    """
    word = error.partition(':')[0]
    if word in _KINDS:
        return word
    return 'refused' if ' are refused, ' in error else 'corrupt'


def has_size(facts: ImageFacts | MaskFacts | None) -> bool:
    """Whether the size of a file can be held against another.

    A file that is damaged or refused claims whatever it likes, and has a
    finding of its own.

    Args:
        facts: Of an image or a label map; None if there is none.

    Returns:
        False without a size, and with an error that is no mere suspicion.

    Examples:
        >>> has_size(ImageFacts(width=4, height=3))
        True
        >>> has_size(ImageFacts(width=4, height=3, error='corrupt: data'))
        False
    """
    return (
        facts is not None
        and facts.width > 0
        and (not facts.error or error_kind(facts.error) == 'suspect')
    )
