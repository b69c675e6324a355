"""Readers that do nothing but what a test of the engine needs.

Kinds are named ``'fake_readers:COUNTING'`` and so on, so that other
processes find them where this folder is on their path.
"""

import os
import signal
import time

from mmext.label_check import MaskFacts
from mmext.label_check.work import Reader, ReadOptions


def facts_of(content: bytes) -> MaskFacts:
    """Number of bytes as width, so that a test knows what must come out."""
    error = 'corrupt: bad' if content.startswith(b'bad') else ''
    return MaskFacts(width=len(content), mode='L', error=error)


def read(content: bytes, options: ReadOptions) -> MaskFacts:
    """Read at once."""
    return facts_of(content)


def slow(content: bytes, options: ReadOptions) -> MaskFacts:
    """Read in two milliseconds, and append to a log what was read."""
    time.sleep(0.002)
    log = os.open(os.environ['FAKE_READERS_LOG'], os.O_WRONLY | os.O_APPEND)
    os.write(log, content + b'\n')
    os.close(log)
    return facts_of(content)


def deadly(content: bytes, options: ReadOptions) -> MaskFacts:
    """Kill the process that reads a file of poison."""
    if content.startswith(b'poison'):
        os.kill(os.getpid(), signal.SIGKILL)
    return facts_of(content)


FAST = Reader(facts=MaskFacts, read=read)
FAST_2 = Reader(facts=MaskFacts, read=read, version=2)
SLOW = Reader(facts=MaskFacts, read=slow)
DEADLY = Reader(facts=MaskFacts, read=deadly)
