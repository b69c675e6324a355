"""The error of a config of which nothing can be made on this machine."""

__all__ = ['CannotBuildError', 'explain_failure']


class CannotBuildError(RuntimeError):
    """No model, or no batches, can be made of a config here."""


def explain_failure(what: str, error: Exception, asked: list[str]) -> str:
    """Why something was not built, and what helps.

    Args:
        what: That was to be built.
        error: That ended it.
        asked: Hosts that files were to be fetched from.

    Returns:
        One sentence.

    Examples:
        >>> explain_failure('model', KeyError('a'), ['weights.org'])
        "cannot build model: KeyError: 'a'; it needs files of weights.org \
and a preflight downloads nothing: fetch them first, so that they are found \
locally"
    """
    text = ' '.join(str(error).split())
    message = f'cannot build {what}: {type(error).__name__}: {text}'
    if asked:
        hosts = ', '.join(sorted(set(asked)))
        return (
            f'{message}; it needs files of {hosts} and a preflight downloads '
            'nothing: fetch them first, so that they are found locally'
        )
    if isinstance(error, ImportError) or 'not installed' in text:
        return f'{message}; install the package that it needs'
    return message
