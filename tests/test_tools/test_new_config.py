"""From a folder to a config, through the tool."""

import hashlib
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import box_sets
from helpers.box_formats import CONVERTERS, voc_objects
from helpers.label_data import write_pairs
from helpers.label_sets import CLASSES, clean
from helpers.lint_findings import lint
from helpers.new_configs import dataset_of, made, run
from helpers.right_sets import check
from helpers.toy_ranks import load_tool
from mmengine.config import Config
from PIL import Image

from mmext.checks.config import read_config

SMALL = 'mmext::co_dino/co_dino_r18_shapes.py'
PIDNET = 'mmext::pidnet/pidnet_s_2xb6_120k_cityscapes.py'
FORMS = ('voc', *CONVERTERS)
CODES = ('utf-8-sig', 'utf-16')


def boxes_of(cfg: Config, split: str) -> dict[str, np.ndarray]:
    """Sides, label and whether it counts of each box of each picture."""
    results = {}
    dataset = dataset_of(cfg, split)
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        rows = [
            [
                *instance['bbox'],
                instance['bbox_label'],
                instance['ignore_flag'],
            ]
            for instance in info['instances']
        ]
        name = Path(info['img_path']).stem
        results[name] = np.array(rows, float).reshape(-1, 6)
    return results


def in_form(voc: Path, form: str, out: Path, classes: tuple) -> Path:
    return voc if form == 'voc' else CONVERTERS[form](voc, out, classes)


def files_below(folder: Path) -> dict[str, str]:
    """What lies in a folder, links as they are."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob('*'))
        if not path.is_dir()
    }


@pytest.fixture(scope='module')
def voc(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp('data') / 'voc'
    clean('voc', root)
    return root


@pytest.mark.parametrize(
    'form',
    [
        form
        if form in ('voc', 'yolo')
        else pytest.param(form, marks=pytest.mark.slow)
        for form in FORMS
    ],
)
def test_the_same_boxes_of_each_form(form, voc, tmp_path, capsys):
    data = in_form(voc, form, tmp_path / form, CLASSES)
    before = files_below(data)
    out = tmp_path / 'my.py'
    cfg = made(data, out, '--classes', *CLASSES)
    assert files_below(data) == before
    printed = capsys.readouterr().out
    assert f'Next: python tools/train.py {out}' in printed
    assert cfg.model.num_classes == len(CLASSES)
    # 6 pictures, 2 a step; the rate by the square root of 2 / 16.
    assert cfg.train_cfg.max_epochs == cfg.param_scheduler[0].end == 100
    assert cfg.param_scheduler[0].milestones == [92]
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(7.07e-5)
    assert cfg.auto_scale_lr.base_batch_size == 2
    for split, number in (('train', 6), ('val', 4), ('test', 4)):
        boxes = boxes_of(cfg, split)
        assert len(boxes) == number
        for stem, rows in boxes.items():
            objects, _ = voc_objects(voc, stem)
            wanted = [[*box, CLASSES.index(name), 0] for name, box in objects]
            np.testing.assert_allclose(rows, wanted, atol=1e-4)
    dataset = dataset_of(cfg, 'val')
    assert dataset.metainfo['classes'] == CLASSES
    assert cfg.test_evaluator == cfg.val_evaluator
    assert cfg.val_evaluator.type == 'mmext.CocoMetric'


@pytest.mark.slow
def test_a_split_is_made(voc, tmp_path):
    """As lists beside the config, the same each time."""
    data = {}
    data['voc'] = tmp_path / 'voc'
    shutil.copytree(voc, data['voc'], ignore=lambda *_: ['ImageSets'])
    for form in ('coco', 'yolo'):
        data[form] = CONVERTERS[form](voc, tmp_path / form, CLASSES)
    (data['coco'] / 'annotations/instances_val2017.json').unlink()
    shutil.rmtree(data['yolo'] / 'valid')
    (data['yolo'] / 'data.yaml').write_text(
        f'train: train/images\nnames: {[*CLASSES]}\n'
    )
    numbers = {'voc': (8, 2), 'coco': (5, 1), 'yolo': (5, 1)}
    for form, folder in data.items():
        before = files_below(folder)
        chosen = []
        for _ in range(2 if form == 'yolo' else 1):
            cfg = made(folder, tmp_path / f'{form}.py', '--overwrite')
            own = [boxes_of(cfg, split) for split in ('train', 'val')]
            assert tuple(map(len, own)) == numbers[form]
            assert not own[0].keys() & own[1].keys()
            chosen.append(sorted(own[1]))
        assert chosen[0] == chosen[-1]
        assert files_below(folder) == before
        assert len(list((tmp_path / f'{form}_data').iterdir())) == 2


@pytest.mark.parametrize(
    ('warm_up', 'expected'),
    [
        (dict(by_epoch=False, end=500), dict(end=2)),
        (dict(by_epoch=True, end=3), dict(end=1, convert_to_iter_based=True)),
    ],
)
def test_a_warm_up_ends(warm_up, expected, voc, tmp_path):
    """One of a single step would not; the preflight says that (SCHED008)."""
    base = tmp_path / 'base.py'
    base.write_text(
        "_base_ = 'mmext::co_dino/co_dino_r18_shapes.py'\n"
        f"param_scheduler = [dict(type='LinearLR', begin=0, **{warm_up})]\n"
    )
    cfg = made(voc, tmp_path / 'my.py', '--base', base, '--epochs', 1)
    scheduler = cfg.param_scheduler[0]
    assert {key: scheduler[key] for key in expected} == expected
    assert lint(cfg, 'SCHED008') == []


def test_a_short_training_has_the_milestones_before_its_end(voc, tmp_path):
    results = []
    for epochs in (1, 2, 9):
        out = tmp_path / f'{epochs}.py'
        cfg = made(voc, out, '--epochs', epochs)
        results.append(cfg.param_scheduler[0].milestones)
        assert lint(cfg, 'SCHED003') == []
    assert results == [[], [], [8]]


def test_paths_stay_relative(voc, tmp_path, monkeypatch):
    """To the working folder, but where a link leads elsewhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'data').mkdir()
    data = CONVERTERS['yolo'](voc, tmp_path / 'data/yolo', CLASSES)
    shutil.rmtree(data / 'valid')
    (data / 'data.yaml').write_text('train: train/images\nnames: [a, b, c]')
    cfg = made(Path('data/yolo'), Path('my.py'))
    dataset = cfg.train_dataloader.dataset
    assert dataset.data_root == 'data/yolo/'
    assert dataset.ann_file == '../../my_data/train.txt'
    assert len(dataset_of(cfg, 'val')) == 1
    (tmp_path / 'link').symlink_to(data)
    cfg = made(Path('link'), Path('my.py'), '--overwrite')
    assert cfg.train_dataloader.dataset.ann_file == (
        str(tmp_path / 'my_data/train.txt')
    )
    assert len(dataset_of(cfg, 'train')) == 5


def masks(folder: Path) -> Path:
    """Pictures beside masks of four values, of which 3 is of no class."""
    write_pairs(folder, number=10, ignore=3)
    return folder


def test_folders_of_masks(tmp_path):
    data = masks(tmp_path / 'data')
    cfg = made(
        data,
        tmp_path / 'my.py',
        *('--classes', 'road', 'car', 'sky', '--ignore-index', '3'),
        base=PIDNET,
    )
    assert cfg.model.decode_head.num_classes == 3
    losses = cfg.model.decode_head.loss_decode
    assert all(loss.get('class_weight') is None for loss in losses)
    assert cfg.train_cfg.max_iters == 1000
    # 6 pictures of 32 x 32 in place of 6 of 1024 x 1024.
    assert [loss.get('min_kept') for loss in losses] == [None, 128, None, 128]
    for location in (
        cfg.model.decode_head,
        *(cfg.val_evaluator, cfg.test_evaluator),
        *(cfg[f'{s}_dataloader'].dataset for s in ('train', 'val', 'test')),
    ):
        assert location.ignore_index == 3
    assert len(dataset_of(cfg, 'train')) == 8
    assert len(dataset_of(cfg, 'val')) == 2
    # Of the size of the pictures, for functions of mmseg, too.
    assert cfg.test_pipeline == cfg.test_dataloader.dataset.pipeline
    assert cfg.test_pipeline[1].scale == (32, 24)
    sample = dataset_of(cfg, 'train', steps=True)[0]
    # Smaller pictures are padded with the batch.
    assert max(sample['inputs'].shape[1:]) <= 32


def test_the_ignored_value_is_no_class(tmp_path, capsys):
    """Without names, classes are the values of the masks but for that."""
    data = masks(tmp_path / 'data')
    cfg = made(data, tmp_path / 'my.py', '--ignore-index', '3', base=PIDNET)
    assert cfg.model.decode_head.num_classes == 3
    assert 'the 3 classes have no names' in capsys.readouterr().out


def test_a_base_that_is_made_for_the_masks(tmp_path, capsys):
    """Its names, class weights and ignored value are kept."""
    data = masks(tmp_path / 'data')
    for path in data.rglob('*.png'):
        mask = np.array(Image.open(path))
        if mask.ndim == 2:
            mask[mask == 3] = 11
            mask[0, 0] = 10
            Image.fromarray(mask).save(path)
    base = 'mmext::pidnet/pidnet_s_camvid.py'
    cfg = made(data, tmp_path / 'my.py', base=base)
    given = read_config(base)
    head = cfg.model.decode_head
    assert (head.num_classes, head.ignore_index) == (11, 11)
    assert head.loss_decode[0].class_weight == (
        given.model.decode_head.loss_decode[0].class_weight
    )
    for split in ('train', 'val'):
        dataset = cfg[f'{split}_dataloader'].dataset
        assert dataset.metainfo.classes == given.metainfo.classes
        assert dataset.ignore_index == 11
    assert '11 classes: Sky, Building' in capsys.readouterr().out


@pytest.mark.slow
def test_errors_of_labels_make_the_exit_code_1(
    voc, tmp_path, monkeypatch, capsys
):
    """The config is written all the same; each split is checked."""
    data = tmp_path / 'voc'
    shutil.copytree(voc, data)
    lists = data / 'ImageSets/Main'
    stem = (lists / 'train.txt').read_text().split()[0]
    shutil.copy(data / f'JPEGImages/{stem}.jpg', data / 'JPEGImages/more.jpg')
    text = (data / f'Annotations/{stem}.xml').read_text()
    text = re.sub('<xmax>.*?</xmax>', '<xmax>0</xmax>', text, count=1)
    (data / 'Annotations/more.xml').write_text(text)
    (lists / 'test.txt').write_text('more\n')
    monkeypatch.chdir(tmp_path)
    assert run(data, tmp_path / 'my.py', base=SMALL) == 1
    assert (tmp_path / 'my.py').is_file()
    printed = capsys.readouterr().out
    assert 'Do not train with' in printed
    assert 'can be trained' not in printed
    assert '(DET002) at voc/Annotations/more.xml' in printed
    assert 'tools/validate_labels.py my.py --fix DIR' in printed


def spoil(form: str, data: Path) -> None:
    """Make errors in the labels that --fix can fix."""
    if form == 'voc':
        path = data / 'Annotations/train_0.xml'
        text = path.read_text()
        side = re.search('<xmin>(.*?)</xmin>', text)[1]
        path.write_text(
            re.sub('<xmax>.*?</xmax>', f'<xmax>{side}</xmax>', text, count=1)
        )
    else:
        path = min(data.rglob('*.json'))
        content = json.loads(path.read_text())
        content['annotations'][0]['bbox'][2:] = [0, 0]
        path.write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.parametrize('form', ['voc', 'coco', 'coco without val'])
def test_fix_goes_on_with_repaired_copies(
    form, voc, tmp_path, monkeypatch, capsys
):
    """All splits have copies, nothing of the user's is touched."""
    monkeypatch.chdir(tmp_path)
    # Processes that read files keep the folder in which they were started.
    data, base, out = tmp_path / 'data', SMALL, tmp_path / 'my.py'
    more = ('--fix', '--classes', *CLASSES)
    if form == 'voc':
        shutil.copytree(voc, data)
    else:
        in_form(voc, 'coco', data, CLASSES)
        if form != 'coco':
            max(data.rglob('*val*.json')).unlink()
    spoil(form, data)
    before = files_below(data)
    made(data, out, *more, base=base)
    printed = capsys.readouterr().out
    assert 'label files were fixed, in copies of all in ' in printed
    assert files_below(data) == before
    check = load_tool('validate_labels').main
    assert check([str(out), '--split', 'train', 'val']) == 0
    # Again, over all of it.
    with pytest.raises(SystemExit):
        run(data, out, *more, '--no-check', base=base)
    cfg = made(data, out, *more, '--overwrite', base=base)
    assert len(dataset_of(cfg, 'train')) >= 2
    assert 'my_fixed' in json.dumps(cfg.train_dataloader.dataset.to_dict())


def test_fix_leaves_what_is_in_doubt(voc, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / 'voc'
    shutil.copytree(voc, data)
    path = data / 'Annotations/train_0.xml'
    path.write_text(
        re.sub('<name>.*?</name>', '<name>what</name>', path.read_text())
    )
    out = tmp_path / 'my.py'
    made(data, out, '--fix', '--classes', *CLASSES, base=SMALL)
    assert not (tmp_path / 'my_fixed').exists()
    out = capsys.readouterr().out
    assert 'no error of the label files has a safe fix' in out


@pytest.mark.parametrize('form', ['coco', 'voc'])
def test_fix_leaves_boxes_that_mean_something_else(form, tmp_path, capsys):
    """Nor is an object without width removed."""
    boxes = box_sets.colonies()
    faults = box_sets.WRONG[form]
    meaning, writer = next(iter(faults.items()))
    boxes.images[3][1][0] = (0, (5, 5, 5, 5))
    box_sets.write(boxes, form, tmp_path / 'data', writer)
    out = tmp_path / 'my.py'
    classes = ('--classes', *box_sets.CLASSES)
    made(tmp_path / 'data', out, '--fix', *classes, base=SMALL)
    assert not (tmp_path / 'my_fixed').exists()
    text = capsys.readouterr().out
    assert 'no error of the label files has a safe fix' in text
    code, report = check(tmp_path, out, ignore=['DUP'])
    (group,) = [item for item in report['groups'] if item['severity'] == 2]
    assert (code, group['rule']) == (1, 'DET013')
    assert group['value'].startswith(meaning)


@pytest.mark.parametrize(
    ('command', 'more', 'shown'),
    [
        ('', (), 'python tools/train.py'),
        ('mmext', ('--gpus', '2'), 'mmext train'),
    ],
)
def test_the_next_command(
    command, more, shown, voc, tmp_path, monkeypatch, capsys
):
    """It is called as this one was, and parses, with the file's name."""
    monkeypatch.chdir(tmp_path)
    if command:
        monkeypatch.setenv('MMEXT_COMMAND', command)
    made(voc, Path('my config.py'), *more, base=SMALL)
    last = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(last.removeprefix('Next: '))
    nproc = ['--nproc', '2'] if more else []
    assert words == [*shown.split(), 'my config.py', *nproc]


def test_wrong_input_is_one_line(voc, tmp_path, capsys):
    (tmp_path / 'old.py').touch()
    (tmp_path / 'empty').mkdir()
    one = tmp_path / 'one'
    (one / 'images').mkdir(parents=True)
    (one / 'labels').mkdir()
    shutil.copy(voc / 'JPEGImages/train_0.jpg', one / 'images')
    (one / 'labels/train_0.txt').write_text('0 0.5 0.5 0.5 0.5')
    new = tmp_path / 'my.py'
    latin = tmp_path / 'latin'
    shutil.copytree(voc, latin)
    names = latin / 'ImageSets/Main/train.txt'
    names.write_bytes(names.read_bytes() + b'\xe4\n')
    marked = [clean('coco', tmp_path / c).annotation() for c in CODES]
    for path, code in zip(marked, CODES):
        path.write_text(path.read_text(), code)
    (tmp_path / 'cvat').mkdir()
    (tmp_path / 'cvat/annotations.xml').write_text(
        '<annotations></annotations>'
    )
    for args, message in (
        ((tmp_path / 'cvat', new), f'datum convert -i {tmp_path}/cvat -f'),
        ((marked[0].parent, new), f'{marked[0]} must be JSON in UTF-8'),
        ((marked[1].parent, new), f'{marked[1]} must be JSON in UTF-8'),
        ((latin, new), f'{names} must be text in UTF-8'),
        ((voc, tmp_path / 'old.py'), '--out must be a new file'),
        ((voc, tmp_path / 'my.txt'), '--out must be a .py file'),
        ((tmp_path / 'none', new), 'DATA must be a folder'),
        ((tmp_path / 'empty', new), 'DATA must have one of the forms'),
        ((tmp_path / 'empty', new), f'datum convert -i {tmp_path}/empty -f'),
        ((one, new), 'give them with --classes'),
        ((one, new, '--classes', 'a'), 'a split needs at least 2 pictures'),
        ((voc, new, '--val-fraction', '1'), '--val-fraction must be above 0'),
        ((voc, new, '--gpus', '0'), '--gpus must be at least 1'),
    ):
        with pytest.raises(SystemExit) as error:
            run(*args, '--no-check')
        assert error.value.code == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.count('\n') == 1
        assert not new.exists()
    with pytest.raises(SystemExit):
        run(voc, new, '--no-check', base='none.py')
    assert '--base must be a config' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(voc, new, '--no-check', base='mmext::co_dino/none.py')
    assert 'got mmext::co_dino/none.py (file' in capsys.readouterr().err


def test_a_base_in_a_file_and_weights(voc, tmp_path):
    """It is named relative to the config."""
    base = tmp_path / 'bases/base.py'
    base.parent.mkdir()
    base.write_text(f'_base_ = {SMALL!r}\nwork_dir = "here"\n')
    out = tmp_path / 'configs/my.py'
    more = ('--load-from', 'a.pth', '--batch-size', '4', '--epochs', '3')
    cfg = made(voc, out, *more, base=str(base))
    assert "_base_ = '../bases/base.py'" in out.read_text()
    assert (cfg.work_dir, cfg.load_from) == ('here', 'a.pth')
    assert cfg.train_cfg.max_epochs == 3
    assert cfg.train_dataloader.batch_size == 4


def test_labels_are_in_the_order_of_classes(voc, tmp_path, capsys):
    """The loader of COCO goes by the file, and a file may lack a class."""
    data = CONVERTERS['coco'](voc, tmp_path / 'coco', CLASSES)
    path = data / 'annotations/instances_val2017.json'
    content = json.loads(path.read_text())
    lacks = content['categories'].pop(1)
    content['annotations'] = [
        note
        for note in content['annotations']
        if note['category_id'] != lacks['id']
    ]
    path.write_text(json.dumps(content))
    for order in ((), CLASSES[::-1]):
        more = ('--classes', *order) if order else ()
        cfg = made(data, tmp_path / 'my.py', '--overwrite', *more, base=SMALL)
        names = order or CLASSES
        for split in ('train', 'val'):
            boxes = boxes_of(cfg, split)
            for stem, rows in boxes.items():
                wanted = [name for name, _ in voc_objects(voc, stem)[0]]
                if split == 'val':
                    wanted = [name for name in wanted if name != lacks['name']]
                assert [names[int(row[4])] for row in rows] == wanted
        assert 'a copy has them in that of the' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ('base', 'locations'),
    [
        (
            'mmdet::cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py',
            ['roi_head.bbox_head.0', 'roi_head.bbox_head.2'],
        ),
        ('mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', ['bbox_head']),
        ('mmext::mae/mae_vit_mini_retinanet_shapes.py', ['bbox_head']),
        (
            'mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py',
            ['decode_head', 'auxiliary_head'],
        ),
        (
            'mmseg::mask2former/mask2former_r50_8xb2-90k_cityscapes-512x1024.py',
            ['decode_head'],
        ),
    ],
)
def test_bases_of_hosts(base, locations, voc, tmp_path):
    """Heads in lists, one for pixels beside another, and weights of K + 1."""
    if base.startswith('mmseg'):
        data = masks(tmp_path / 'data')
        more = ('--ignore-index', '3', '--classes', *CLASSES)
    else:
        data, more = voc, ()
    cfg = made(data, tmp_path / 'my.py', *more, base=base)
    for location in locations:
        node = cfg.model
        for step in location.split('.'):
            node = node[int(step)] if step.isdecimal() else node[step]
        assert node.num_classes == 3
    if 'mask2former' in base:
        head = cfg.model.decode_head
        assert head.loss_cls.class_weight == [1.0, 1.0, 1.0, 0.1]


@pytest.mark.slow
def test_a_base_that_needs_masks(voc, tmp_path, capsys):
    base = 'mmext::co_dino/co_dino_5scale_r50_lsj_8xb2_1x_coco.py'
    with pytest.raises(SystemExit):
        run(voc, tmp_path / 'my.py', '--no-check', base=base)
    assert '--base must not need masks' in capsys.readouterr().err
    data = clean('coco', tmp_path / 'coco').root
    cfg = made(data, tmp_path / 'my.py', base=base)
    assert cfg.train_dataloader.dataset.dataset.ann_file == 'train.json'
    assert cfg.val_evaluator.ann_file == f'{data}/val.json'


def test_a_blank_in_the_name_of_a_voc_picture(voc, tmp_path):
    data = tmp_path / 'voc'
    shutil.copytree(voc, data)
    names = data / 'ImageSets' / 'Main' / 'train.txt'
    first, *rest = names.read_text().split('\n')
    for folder, suffix in (('Annotations', 'xml'), ('JPEGImages', 'jpg')):
        path = data / folder / f'{first}.{suffix}'
        path.rename(path.with_name(f'my {path.name}'))
    names.write_text('\n'.join([f'my {first}', *rest]))
    cfg = made(data, tmp_path / 'my.py')
    assert dataset_of(cfg, 'train')
