"""mmext.version: one number, told by the changelog and by the metadata."""

import re
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from mmext.version import __version__


def test_is_a_release_number():
    assert str(Version(__version__)) == __version__


def test_changelog_has_no_later_version(checkout: Path):
    text = (checkout / 'CHANGELOG.md').read_text()
    released = re.findall(r'^## \[(\d[^]]*)\]', text, re.MULTILINE)
    assert all(Version(number) <= Version(__version__) for number in released)


def test_installed_metadata_agrees():
    assert metadata.version('mmext') == __version__
