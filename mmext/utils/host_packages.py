"""Distributions of MMEngine, MMCV, MMDetection and MMSegmentation.

Two families have the same import names: the original distributions and the
maintained forks, ``onedl-*``. pip installs one over the other without a
warning.

``import mmext`` loads this file, which imports the standard library only.
"""

from importlib.metadata import PackageNotFoundError, distribution

DISTRIBUTIONS = {
    'mmengine': ('mmengine', 'mmengine-lite', 'onedl-mmengine'),
    'mmcv': ('mmcv', 'mmcv-lite', 'onedl-mmcv'),
    'mmdet': ('mmdet', 'onedl-mmdetection'),
    'mmseg': ('mmsegmentation', 'onedl-mmsegmentation'),
}


class MissingHostError(ModuleNotFoundError):
    """A host package that mmext imports is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f'{package} is not installed, and mmext imports it; install it '
            'with its family: pip install "mmext[onedl]" (maintained) or '
            'pip install "mmext[openmmlab]" (original)',
            name=package,
        )

    def __reduce__(self) -> tuple:
        return MissingHostError, (self.name,)


def installed(package: str) -> dict[str, str]:
    """Return the versions of the installed distributions of a host package.

    ``package``: Import name, such as ``'mmdet'``. The distribution whose
    files are in place comes first.
    """
    versions, first = {}, ''
    for name in DISTRIBUTIONS[package]:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        versions[name] = found.version
        path = found.locate_file(f'{package}/version.py')
        text = path.read_text() if path.is_file() else ''
        # The forks write their name there, the original ones their version.
        if repr(name) in text or repr(found.version) in text:
            first = first or name
    return dict(sorted(versions.items(), key=lambda item: item[0] != first))


def overlaid_hosts() -> str:
    """Return a warning of distributions with the same files, or ''."""
    mixed = [v for v in map(installed, DISTRIBUTIONS) if len(v) > 1]
    if not mixed:
        return ''
    pairs = '; '.join(
        ' and '.join(f'{name} {version}' for name, version in versions.items())
        for versions in mixed
    )
    every = ' '.join(name for versions in mixed for name in versions)
    kept = ' '.join('=='.join(next(iter(v.items()))) for v in mixed)
    return (
        f'These distributions have the same files, and one overwrote the '
        f'other: {pairs}. To repair the environment: pip uninstall -y {every} '
        f'&& pip install --no-deps {kept}'
    )
