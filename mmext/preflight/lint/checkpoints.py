"""Weights that a config names and that cannot be loaded."""

import difflib
import importlib.util
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from mmengine.runner.checkpoint import CheckpointLoader

from ..findings import DELETE, Severity
from .registry import Note, lint_rule
from .subject import Subject, as_mapping, plain_name

__all__ = ['file_fault']

_KEYS = ('checkpoint', 'pretrained', 'load_from', 'prefix')
_SCHEME = re.compile(r'([A-Za-z][\w+.-]*)://')
_WEB = ('http', 'https')
_HEAD_BYTES = 512
# What begins files of PyTorch: a zip archive, a pickle, an old tar.
_ZIP = b'PK\x03\x04'
_PICKLE = b'\x80'
_LFS = b'version https://git-lfs'
_SUFFIXES_OF_OTHERS = ('.safetensors', '.npz', '.pkl')


def _named(subject: Subject) -> Iterator[tuple[tuple, Any]]:
    """Places of weights, and what is said there."""
    top = subject.top
    if 'load_from' in top:
        yield ('load_from',), top['load_from']
    for section in subject.below('model'):
        kind = plain_name(section.cfg.get('type'))
        if kind == 'Pretrained':
            path = (*section.path, 'checkpoint')
            yield path, section.cfg.get('checkpoint')
        elif 'pretrained' in section.cfg:
            value = section.cfg['pretrained']
            if isinstance(value, str):
                yield (*section.path, 'pretrained'), value


def _files(subject: Subject) -> Iterator[tuple[tuple, str]]:
    for path, value in _named(subject):
        if isinstance(value, str) and value and not _SCHEME.match(value):
            yield path, value


def _addresses(subject: Subject) -> Iterator[tuple[tuple, str, str]]:
    for path, value in _named(subject):
        match = _SCHEME.match(value) if isinstance(value, str) else None
        if match:
            yield path, value, match.group(1).lower()


@lint_rule(
    'CKPT001',
    title='a file of weights does not exist',
    severity=Severity.ERROR,
    remedy='correct the path, or download the file',
)
def missing_file(subject: Subject) -> Iterator[Note]:
    """Paths that are no files."""
    for path, value in _files(subject):
        file = Path(value).expanduser()
        if file.is_file():
            continue
        what = 'is a folder' if file.is_dir() else 'does not exist'
        yield Note(f'the file of weights {value} {what}', path=path)


@lint_rule(
    'CKPT002',
    title='a file of weights is none',
    severity=Severity.ERROR,
    remedy='download it again, and compare its size',
)
def damaged_file(subject: Subject) -> Iterator[Note]:
    """Empty files, web pages, pointers of Git LFS, archives cut off."""
    for path, value in _files(subject):
        file = Path(value).expanduser()
        fault = file_fault(file) if file.is_file() else ''
        if fault:
            yield Note(f'the file of weights {value} {fault}', path=path)


def file_fault(file: Path) -> str:
    """What is wrong with a file of weights, by its first and last bytes.

    Args:
        file: An existing file.

    Returns:
        The end of a sentence that begins with the file; empty if nothing
        can be said against it without loading it.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Path(folder, 'a.pth')
        ...     _ = page.write_text('<!DOCTYPE html><title>404</title>')
        ...     file_fault(page)
        'is a web page of 33 bytes'
    """
    size = file.stat().st_size
    if size == 0:
        return 'is empty'
    with open(file, 'rb') as opened:
        head = opened.read(_HEAD_BYTES)
    text = head.lstrip().lower()
    if text.startswith((b'<!doctype', b'<html', b'<?xml')):
        return f'is a web page of {size:,} bytes'
    if head.startswith(_LFS):
        return 'is a pointer of Git LFS, not the file itself'
    if head.startswith(_ZIP) and not zipfile.is_zipfile(file):
        return f'is cut off after {size:,} bytes: the end of the archive lacks'
    known = head.startswith((_ZIP, _PICKLE)) or b'ustar' in head
    plain = file.suffix not in _SUFFIXES_OF_OTHERS
    if plain and not known and head.isascii() and b'\x00' not in head:
        return f'is a text of {size:,} bytes'
    return ''


def _known_schemes() -> set[str]:
    """Words before ``://`` that MMEngine can load from."""
    found = set()
    for prefix in CheckpointLoader._schemes:
        word = re.search(r'([a-z][\w-]*)://', prefix)
        if word:
            found.add(word.group(1))
    return found


@lint_rule(
    'CKPT003',
    title='an address of weights cannot be loaded from',
    severity=Severity.ERROR,
    remedy='correct the address',
)
def bad_address(subject: Subject) -> Iterator[Note]:
    """Unknown schemes, and web addresses without a host or a file."""
    known = _known_schemes()
    for path, value, scheme in _addresses(subject):
        if scheme not in known:
            # One that a package registers when the training starts.
            near = difflib.get_close_matches(scheme, sorted(known), 1, 0.7)
            yield Note(
                f'{value} begins with {scheme}://, which no loader knows',
                path=path,
                remedy=f'correct it to {near[0]}://' if near else '',
                severity=Severity.ERROR if near else Severity.WARNING,
            )
            continue
        parts = urlparse(value)
        bare = not parts.netloc or not parts.path.strip('/')
        if value != value.strip() or ' ' in value:
            yield Note(f'{value!r} has blanks in it', path=path)
        elif scheme in _WEB and bare:
            yield Note(f'{value} names no file of a host', path=path)


@lint_rule(
    'CKPT004',
    title='pretrained weights are asked for and not named',
    severity=Severity.ERROR,
    remedy='name a checkpoint, or remove the init_cfg',
)
def nothing_named(subject: Subject) -> Iterator[Note]:
    """``init_cfg`` of type Pretrained without a checkpoint."""
    for path, value in _named(subject):
        if path[-1] != 'checkpoint' or (isinstance(value, str) and value):
            continue
        options = {}
        if not any(isinstance(step, int) for step in path):
            options = {'.'.join(map(str, path[:-1])): DELETE}
        yield Note(
            f'Pretrained needs a checkpoint, got {value!r}',
            path=path,
            options=options,
        )


@lint_rule(
    'CKPT005',
    title='resume is no checkpoint',
    severity=Severity.WARNING,
    remedy='set resume=True, and load_from to the checkpoint',
)
def named_by_resume(subject: Subject) -> Iterator[Note]:
    """``resume`` is a switch; the file is ``load_from``."""
    value = subject.top.get('resume')
    if isinstance(value, str) and value != 'auto':
        yield Note(
            f'resume must be True or False, got {value!r}: MMEngine goes on '
            'from the newest checkpoint of the work dir, or from load_from',
            path=('resume',),
            options={'resume': True, 'load_from': value},
        )


@lint_rule(
    'CKPT006',
    title='weights need a package that is not installed',
    severity=Severity.WARNING,
    remedy='install the package, or name the file itself',
)
def missing_package(subject: Subject) -> Iterator[Note]:
    """``torchvision://`` asks torchvision where its weights are."""
    if importlib.util.find_spec('torchvision') is not None:
        return
    for path, value, scheme in _addresses(subject):
        if scheme in ('torchvision', 'modelzoo'):
            yield Note(
                f'{value} is looked up by the package torchvision, which is '
                'not installed here',
                path=path,
                names=('torchvision',),
            )


@lint_rule(
    'CKPT007',
    title='weights are loaded twice',
    severity=Severity.INFO,
    remedy='remove the init_cfg, so that nothing is downloaded for it',
)
def loaded_twice(subject: Subject) -> Iterator[Note]:
    """A checkpoint of the whole model over pretrained weights of a part."""
    top = subject.top
    if not isinstance(top.get('load_from'), str) or not top['load_from']:
        return
    for section in subject.below('model'):
        init = as_mapping(section.cfg.get('init_cfg'))
        if plain_name(init.get('type')) == 'Pretrained':
            yield Note(
                f'{init.get("checkpoint")} is loaded first, and load_from '
                'over it',
                path=(*section.path, 'init_cfg'),
            )
