"""Freed memory is used again, and the user's settings win."""

import json
import platform
import subprocess
import sys

import pytest
from helpers.toy_ranks import process_environ

from mmext.engine import keep_freed_memory

PROGRAM = """
import json, resource, sys
import torch
from mmext.engine import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory()
for _ in range(30):
    torch.ones(16 << 20)
before = faults()
for _ in range(10):
    torch.ones(16 << 20)
print(json.dumps([kept, faults() - before]))
"""
GLIBC = pytest.mark.skipif(
    platform.libc_ver()[0] != 'glibc', reason='other C libraries have no knobs'
)


def run(**environ: str) -> tuple[bool, int]:
    """Whether it says that it keeps, and page faults of ten 64 MiB blocks."""
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM],
        env={**process_environ(), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@GLIBC
def test_blocks_are_used_again():
    kept, faults = run()
    assert kept
    assert faults < 1000
    kept, others = run(MALLOC_MMAP_MAX_='65536')
    assert not kept
    # 16384 pages each, unless the system makes pages of 2 MiB by itself.
    assert others >= faults


@pytest.mark.parametrize(
    'environ',
    [
        {'MALLOC_TRIM_THRESHOLD_': '0'},
        {'GLIBC_TUNABLES': 'glibc.malloc.arena_max=1'},
        {'LD_PRELOAD': 'libjemalloc.so.2'},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_what_the_user_chose_stays(environ):
    assert not keep_freed_memory(environ)


def test_without_glibc(monkeypatch):
    monkeypatch.setattr(platform, 'libc_ver', lambda: ('', ''))
    assert not keep_freed_memory({})
