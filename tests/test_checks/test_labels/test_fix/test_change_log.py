"""The summary of a repair, to be read."""

from mmext.checks.labels.fix.change_log import (
    FixSummary,
    LeftGroup,
    NewPlace,
    SampleList,
)

PLACE = NewPlace(split='train', key='ann_file', was='old.json', now='new.json')
SUMMARY = FixSummary(
    out='out',
    num_files=1200,
    num_fixed=1,
    changes={'SEG011': 1},
    places=(PLACE,),
    lists=(
        SampleList(
            split='train',
            excluded=1,
            exclude_file='exclude_train.txt',
            include_file='include_train.txt',
        ),
    ),
    not_repaired=(
        LeftGroup(
            rule='SEG001', split='val', reason='unknown', files=('a', 'b')
        ),
    ),
)


def test_text():
    assert SUMMARY.text().splitlines() == [
        'repaired 1 of 1,200 label files; all of them are in out, each '
        'change is in fixes.jsonl',
        '  SEG011  1 x palette mask, which OpenCV turns into colours',
        'not repaired (fixes.json names all files):',
        '  SEG001  val, 2 files: unknown',
        'to train with the repaired files, set',
        "  train: ann_file='new.json', which was 'old.json'",
        '  train: exclude_train.txt lists 1 sample that cannot be trained '
        'with; include_train.txt lists the others, for ann_file',
    ]


def test_no_settings_for_files_that_are_as_they_were():
    summary = FixSummary(
        out='out', num_files=3, num_fixed=0, changes={}, places=(PLACE,)
    )
    assert summary.text() == (
        'repaired 0 of 3 label files; all of them are in out, each change is '
        'in fixes.jsonl'
    )
