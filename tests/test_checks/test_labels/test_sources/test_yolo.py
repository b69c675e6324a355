"""Folders of label files in YOLO's form."""

import msgspec
import pytest
from helpers.label_sets import SIZES, clean
from helpers.toy_ranks import load_tool

from mmext.checks import check_labels
from mmext.checks.findings import Severity
from mmext.checks.labels.facts import Orphan
from mmext.checks.labels.report import Report
from mmext.checks.labels.sources.folders import splits_of_yolo

BASE = 'mmext::co_dino/co_dino_r18_shapes.py'


@pytest.fixture
def root(tmp_path):
    return clean('yolo_bare', tmp_path / 'data').root


def test_splits(root):
    sources = splits_of_yolo(root, ('train', 'val', 'test'))
    assert [source.expected.split for source in sources] == ['train', 'val']
    assert [len(list(source.samples())) for source in sources] == [
        *SIZES.values()
    ]
    sample = next(sources[1].samples())
    assert sample.image == str(root / 'images/val/0.jpg')
    assert sample.annotation == str(root / 'labels/val/0.txt')
    assert sample.annotation_kind == 'yolo'
    with pytest.raises(ValueError, match=r"some of \['train', 'val'\]"):
        splits_of_yolo(root, ['test'])


def test_label_files_of_other_splits_are_no_orphans(root):
    """Lists of pictures in one folder, whose labels are in one, too."""
    for split in SIZES:
        (root / f'{split}.txt').write_text(f'./images/{split}/0.jpg\n')
    (root / 'data.yaml').write_text(
        'train: train.txt\nval: [images/train, val.txt]\nnames: [a, b, c]'
    )
    (root / 'labels/train/classes.txt').touch()
    (root / 'labels/train/more.txt').touch()
    (train,) = splits_of_yolo(root, ['train'])
    assert list(train.orphans()) == [
        Orphan(
            split='train',
            path=str(root / 'labels/train/more.txt'),
            kind='annotation',
        )
    ]


def test_pictures_of_the_page(tmp_path):
    """The wrong box of a line is drawn; nothing offers to repair it."""
    data = clean('yolo_bare', tmp_path / 'data')
    path = data.annotation(2)
    path.write_text('1 0.5 0.5 0 0.5\n0 0.5 0.5 0.5 0.5\n')
    code, _ = data.check(html=tmp_path / 'page.html')
    assert code == 1
    page = (tmp_path / 'page.html').read_text()
    assert 'data:image' in page
    assert 'DET002' in page
    assert '--fix DIR' not in page


def test_is_not_repaired(root, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        load_tool('validate_labels').main(
            ['--yolo', str(root), '--fix', str(tmp_path / 'new')]
        )
    assert error.value.code == 2
    assert 'does not repair label files of YOLO' in capsys.readouterr().err


def test_of_poses_the_boxes_are_read(root, tmp_path):
    """A note says so; a line without all key points is an error."""
    bare = check_labels(yolo=root, store=tmp_path / 'store')
    data = root / 'data.yaml'
    data.write_text(f'{data.read_text()}\nkpt_shape: [2, 3]\n')
    files = sorted((root / 'labels').rglob('*.txt'))
    for file in files:
        lines = file.read_text().splitlines()
        file.write_text('\n'.join(f'{x} 0.5 0.5 2 9 nan 0' for x in lines))
    out = tmp_path / 'report.json'
    args = ['--yolo', str(root), '--json', str(out), '--store']
    args += [str(tmp_path / 'store')]
    tool = load_tool('validate_labels')
    assert tool.main(args) == 0
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    assert report.splits == bare.report.splits
    notes = [group for group in report.groups if group.rule == 'PAIR011']
    assert [group.severity for group in notes] == [Severity.INFO]
    assert 'key points are not used' in notes[0].message
    files[0].write_text('0 0.5 0.5 0.5 0.5 0.5 0.5')
    assert tool.main(args) == 1
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    wrong = [group for group in report.groups if group.rule == 'YOLO001']
    assert 'must have 11 columns' in wrong[0].message
    assert 'got 7 columns' in wrong[0].message


@pytest.mark.parametrize(
    ('more', 'message'),
    [
        (
            '\n'.join(
                ['a0: &a0 [x, x]']
                + [
                    f'a{i}: &a{i} [' + ', '.join([f'*a{i - 1}'] * 9) + ']'
                    for i in range(1, 11)
                ]
                + ['train: *a10']
            ),
            'data.yaml must be YAML: its aliases expand to more than 100,000 ',
        ),
        ('x: &x [*x]', 'data.yaml must be YAML: *x in line'),
        *(
            pytest.param(
                *(f'x:\n  {start * 20_000}', 'more than 100 levels deep in'),
                id=f'deep {start}',
            )
            for start in ('[', '{x: ', '- ', '? ')
        ),
        ('x: !!bool x', 'data.yaml must be YAML: a value does not fit'),
        ('kpt_shape: 17', 'such as [17, 3], got 17'),
    ],
)
def test_data_that_are_not_read(root, capsys, more, message):
    path = root / 'data.yaml'
    path.write_text(f'{path.read_text()}\n{more}\n')
    for tool, args in (
        ('validate_labels', ['--yolo', str(root)]),
        (
            'new_config',
            [str(root), '--base', BASE, '--out', str(root / 'my.py')],
        ),
    ):
        with pytest.raises(SystemExit) as error:
            raise SystemExit(load_tool(tool).main(args))
        assert error.value.code in (1, 2)
        printed = capsys.readouterr().err
        assert message in printed
        assert 'Traceback' not in printed
        assert len(printed) < 2000
