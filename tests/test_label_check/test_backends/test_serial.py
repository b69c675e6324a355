"""The serial backend: one batch at a time, in order."""

import fake_readers

from mmext.label_check.backends import serial
from mmext.label_check.work import WorkItem, unpack


def test_reads_batches_only_as_they_are_asked_for(tmp_path):
    path = tmp_path / 'a'
    path.write_bytes(b'12345')
    item = WorkItem(path=str(path), kind='fake_readers:FAST')
    asked = []

    def batches():
        for size in 1, 2, 3:
            asked.append(size)
            yield [item] * size

    results = serial.run(batches())
    first = next(results)
    assert asked == [1]
    assert unpack(item.kind, first[0].facts) == fake_readers.facts_of(b'12345')
    assert [len(batch) for batch in results] == [2, 3]
