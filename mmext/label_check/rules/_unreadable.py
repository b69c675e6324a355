"""Why a file could not be read, in one word."""

__all__ = ['error_kind']

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
