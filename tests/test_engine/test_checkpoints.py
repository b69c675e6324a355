import os
import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from mmengine.model import BaseTTAModel
from torch import nn

from mmext.engine import check_complete, load_weights
from mmext.engine.checkpoint.files import (
    find_newest_checkpoint,
    summarize_checkpoint,
)
from mmext.engine.checkpoint.load import check_fits, read_checkpoint
from mmext.utils.safe_load import UntrustedTypeError, careful_readers


class Custom:
    """An object, which a safe reader refuses."""


def save(path, *, iteration=1, epoch=0, optimizer=True, run='', **more):
    meta = dict(iter=iteration, epoch=epoch)
    if run:
        meta['run_id'] = run
    checkpoint = dict(meta=meta, state_dict={}, **more)
    if optimizer:
        checkpoint['optimizer'] = dict(state=torch.zeros(1000))
    torch.save(checkpoint, path)
    return path


def damage(path, where=0.5):
    """Flip one bit of a file."""
    content = bytearray(Path(path).read_bytes())
    content[int(len(content) * where)] ^= 1
    Path(path).write_bytes(content)


def newest(folder):
    result = find_newest_checkpoint(folder).checkpoint
    return result and Path(result).name


def test_summary(tmp_path):
    path = save(tmp_path / 'a.pth', iteration=7)
    summary = summarize_checkpoint(path)
    assert (summary.iter, summary.epoch, summary.resumable) == (7, 0, True)
    path = save(tmp_path / 'b.pth', optimizer=False)
    assert not summarize_checkpoint(path).resumable


def test_old_format_and_objects(tmp_path):
    torch.save(
        dict(meta=dict(iter=3)),
        tmp_path / 'old.pth',
        _use_new_zipfile_serialization=False,
    )
    assert summarize_checkpoint(tmp_path / 'old.pth').iter == 3
    path = save(tmp_path / 'object.pth', extra=Custom())
    with pytest.raises(UntrustedTypeError, match=r'test_checkpoints\.Custom'):
        read_checkpoint(path)
    assert isinstance(read_checkpoint(path, trust=True)['extra'], Custom)
    # Not even where files are trusted: nobody has named this one.
    with careful_readers(trust=True):
        assert read_checkpoint(path)
        with pytest.raises(UntrustedTypeError):
            summarize_checkpoint(path)


def test_newest_goes_by_iteration_and_epoch_not_by_a_clock(tmp_path):
    for name, iteration, epoch in (
        ('b', 8, 1),
        ('d', 9, 1),
        ('c', 9, 2),
        ('a', 8, 2),
    ):
        path = save(tmp_path / f'{name}.pth', iteration=iteration, epoch=epoch)
        os.utime(path, (2e9 - iteration * 1e6 - epoch, 2e9))
    assert newest(tmp_path) == 'c.pth'


def test_of_several_trainings_the_one_that_wrote_last(tmp_path):
    save(tmp_path / 'epoch_1.pth', iteration=6, run='first')
    save(tmp_path / 'epoch_9.pth', iteration=54, run='first')
    pointed = save(tmp_path / 'epoch_2.pth', iteration=12, run='second')
    # Killed after a checkpoint and before last_checkpoint was written.
    last = save(tmp_path / 'epoch_3.pth', iteration=18, run='second')
    (tmp_path / 'last_checkpoint').write_text(str(pointed))
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'epoch_3.pth'
    assert result.notes == [
        'epoch_9.pth are of another training in this folder and passed over; '
        'going on from epoch_3.pth'
    ]
    damage(last)
    damage(pointed)
    # What the second one may have begun with, rather than a later one.
    assert newest(tmp_path) == 'epoch_1.pth'
    (tmp_path / 'last_checkpoint').unlink()
    assert newest(tmp_path) == 'epoch_9.pth'


def test_last_one_that_needs_trust(tmp_path):
    """It is no reason to start anew without a word."""
    path = save(tmp_path / 'epoch_2.pth', extra=Custom())
    assert not find_newest_checkpoint(tmp_path).unused
    (tmp_path / 'last_checkpoint').write_text(str(path))
    result = find_newest_checkpoint(tmp_path)
    assert result.checkpoint is None
    assert '--trust-checkpoint' in result.unused


@pytest.mark.parametrize('where', [0.0, 0.04, 0.7, 'cut off'])
def test_damaged_file_is_passed_over(tmp_path, where):
    save(tmp_path / 'good.pth', iteration=1)
    bad = save(tmp_path / 'bad.pth', iteration=2)
    if where == 'cut off':
        os.truncate(bad, 1000)
    else:
        damage(bad, where)
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'good.pth'
    (note,) = result.notes
    assert 'passed over bad.pth' in note
    assert 'damaged' in note
    assert note.endswith('going on from good.pth')
    with pytest.raises(ValueError, match=r"bad.pth' is damaged: .*earlier"):
        read_checkpoint(bad)


def test_links_and_folders_are_no_further_checkpoints(tmp_path):
    save(tmp_path / 'epoch_1.pth')
    (tmp_path / 'a_latest.pth').symlink_to('epoch_1.pth')
    (tmp_path / 'folder.pth').mkdir()
    (tmp_path / 'gone.pth').symlink_to('nothing.pth')
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'epoch_1.pth'
    assert result.notes == []


def test_what_cannot_be_resumed_is_passed_over(tmp_path):
    save(tmp_path / 'best_mAP_epoch_3.pth', iteration=9, optimizer=False)
    torch.save(dict(weight=torch.zeros(1)), tmp_path / 'weights.pth')
    assert newest(tmp_path) is None
    save(tmp_path / 'epoch_1.pth')
    assert newest(tmp_path) == 'epoch_1.pth'


@pytest.mark.parametrize('text', ['', '\n', 'gone/epoch_9.pth', '\0\0\0'])
def test_bad_pointer_does_not_matter(tmp_path, text):
    save(tmp_path / 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_text(text)
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'epoch_1.pth'
    assert 'last_checkpoint' in result.notes[0]


def test_folder_of_the_checkpoints_elsewhere(tmp_path):
    other, work_dir = tmp_path / 'other', tmp_path / 'work'
    other.mkdir()
    work_dir.mkdir()
    pointed = save(other / 'epoch_1.pth', iteration=1)
    save(other / 'epoch_2.pth', iteration=2)
    save(work_dir / 'stopped_iter_3.pth', iteration=3)
    (work_dir / 'last_checkpoint').write_text(str(pointed))
    result = find_newest_checkpoint(work_dir, other)
    assert Path(result.checkpoint).name == 'stopped_iter_3.pth'
    os.remove(work_dir / 'stopped_iter_3.pth')
    result = find_newest_checkpoint(work_dir, other)
    assert Path(result.checkpoint) == other / 'epoch_2.pth'
    # A folder that only last_checkpoint names is somebody else's.
    (other / '.epoch_3.1.tmp.pth').touch()
    result = find_newest_checkpoint(work_dir)
    assert result.checkpoint is None
    assert f'names {pointed}, which is outside' in result.unused
    assert not result.leftovers


@pytest.mark.parametrize('name', ['ckpt_1.pt', 'sub/epoch_1.pth'])
def test_names_that_only_the_pointer_knows(tmp_path, name):
    path = tmp_path / 'before' / name
    path.parent.mkdir(parents=True)
    save(path)
    (tmp_path / 'before/last_checkpoint').write_text(str(path))
    shutil.copytree(tmp_path / 'before', tmp_path / 'after')
    result = find_newest_checkpoint(tmp_path / 'after')
    assert result.checkpoint == str(tmp_path / 'after' / name)
    assert 'such as a copy' in result.notes[0]


def test_remote_pointer_is_believed(tmp_path):
    save(tmp_path / 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_text('s3://bucket/epoch_2.pth')
    result = find_newest_checkpoint(tmp_path)
    assert result.checkpoint == 's3://bucket/epoch_2.pth'


def test_leftovers_are_found_and_never_taken(tmp_path):
    save(tmp_path / '.epoch_2.123.tmp.pth', iteration=2)
    (tmp_path / '.last_checkpoint.123.tmp').write_text('x')
    (tmp_path / '.hidden').write_text('of somebody else')
    save(tmp_path / 'epoch_1.pth')
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'epoch_1.pth'
    assert sorted(path.name for path in result.leftovers) == [
        '.epoch_2.123.tmp.pth',
        '.last_checkpoint.123.tmp',
    ]


@pytest.mark.parametrize(
    ('content', 'error', 'message'),
    [
        (None, FileNotFoundError, 'no such file, looked from'),
        (b'hello', ValueError, r'not a PyTorch checkpoint .5 bytes'),
        (b'PK\3\4', ValueError, 'is damaged: it is cut off'),
        ([1], ValueError, 'must hold a dict, got list'),
        (dict(meta=[1]), ValueError, "a dict as 'meta', got list"),
        (dict(state_dict=1), ValueError, "a dict as 'state_dict', got int"),
        (
            dict(meta=dict(dataset_meta='a')),
            ValueError,
            "a dict as 'dataset_meta', got str",
        ),
    ],
)
def test_rejects_what_is_no_checkpoint(tmp_path, content, error, message):
    path = tmp_path / 'a.pth'
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(error, match=message):
        read_checkpoint(path)


def test_rejects_a_folder_and_bare_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match='a folder without'):
        read_checkpoint(tmp_path)
    torch.save(dict(weight=torch.zeros(1)), tmp_path / 'a.pth')
    with pytest.raises(ValueError, match='must have a training position'):
        summarize_checkpoint(tmp_path / 'a.pth')


def test_remote_checkpoints_go_through_mmengine(monkeypatch):
    calls = []
    monkeypatch.setattr(
        'mmext.engine.checkpoint.load.CheckpointLoader.load_checkpoint',
        lambda *args: calls.append(args) or dict(a=1),
    )
    assert read_checkpoint('https://host/a.pth') == dict(a=1)
    assert calls == [('https://host/a.pth', 'cpu')]


def model(classes=4, width=3):
    return nn.Sequential(
        OrderedDict(
            backbone=nn.Sequential(
                nn.Linear(2, width),
                nn.BatchNorm1d(width),
                nn.Linear(width, width),
            ),
            head=nn.Linear(width, classes),
        )
    )


def checkpoint(module, prefix=''):
    return dict(
        state_dict=OrderedDict(
            (prefix + name, value + 1 if value.is_floating_point() else value)
            for name, value in module.state_dict().items()
        )
    )


def test_exact():
    source, target = checkpoint(model()), model()
    names = list(source['state_dict'])
    report = load_weights(target, source, 'a.pth')
    assert report.is_exact
    assert str(report) == '10 of 10 entries of the model'
    check_fits(report, 'a.pth')
    for name, value in target.state_dict().items():
        assert torch.equal(value, source['state_dict'][name])
    assert list(source['state_dict']) == names  # not changed


def test_agrees_with_torch_on_names():
    source, target = checkpoint(model()), model()
    weights = source['state_dict']
    weights.pop('backbone.0.bias')
    weights['backbone.2.extra'] = weights['neck.0.weight'] = torch.zeros(1)
    expected = model().load_state_dict(weights, strict=False)
    report = load_weights(target, source, 'a.pth')
    assert list(report.missing) == expected.missing_keys
    assert sorted(report.unexpected) == sorted(expected.unexpected_keys)


def test_bare_weights_and_wrapper_prefix():
    bare = checkpoint(model())['state_dict']
    assert load_weights(model(), bare, 'a.pth').is_exact
    wrapped = checkpoint(model(), 'module.')
    assert load_weights(model(), wrapped, 'a.pth').is_exact


def test_own_revise_keys():
    source = checkpoint(model(), 'student.')
    report = load_weights(
        model(), source, 'a.pth', revise_keys=[(r'^student\.', '')]
    )
    assert report.is_exact


def test_other_number_of_classes_is_a_readable_summary():
    target = model(classes=7)
    before = target.head.weight.clone()
    report = load_weights(target, checkpoint(model()), 'a.pth')
    assert str(report) == (
        '8 of 10 entries of the model; 2 have another shape (head.weight: '
        'torch.Size([4, 3]) in the checkpoint, torch.Size([7, 3]) in the '
        'model, head.bias: torch.Size([4]) in the checkpoint, '
        'torch.Size([7]) in the model)'
    )
    assert torch.equal(target.head.weight, before)
    with pytest.raises(ValueError, match='must be of the same model to resu'):
        check_fits(report, 'a.pth')


def test_complete_minds_the_model_only():
    weights = checkpoint(model())
    weights['state_dict']['neck.weight'] = torch.zeros(1)
    check_complete(load_weights(model(), weights, 'a.pth'), 'a.pth')
    with pytest.raises(ValueError, match='must hold all weights of the mode'):
        check_complete(
            load_weights(model(), checkpoint(model(classes=3)), 'a.pth'),
            'a.pth',
        )
    weights['state_dict'].pop('head.bias')
    with pytest.raises(ValueError, match=r'not in the checkpoint \(head.bias'):
        check_complete(load_weights(model(), weights, 'a.pth'), 'a.pth')


def test_few_weights_all_of_which_are_used_are_fine():
    target = nn.ModuleList([nn.Linear(1, 1) for _ in range(20)])
    source = {'0.weight': torch.ones(1, 1)}
    assert load_weights(target, source, 'a.pth').num_loaded == 1


def test_batch_counters_do_not_count():
    source = checkpoint(model())
    source['state_dict'].pop('backbone.1.num_batches_tracked')
    assert load_weights(model(), source, 'a.pth').is_exact


def test_aliases_of_a_pre_hook_count_as_loaded():
    target = model()

    def rename(module, state_dict, prefix, *_):
        for name in list(state_dict):
            if name.startswith('old_head.'):
                state_dict[name[4:]] = state_dict.pop(name)

    target._register_load_state_dict_pre_hook(rename, with_module=True)
    source = checkpoint(model())
    weights = source['state_dict']
    for name in ('weight', 'bias'):
        weights[f'old_head.{name}'] = weights.pop(f'head.{name}')
    assert load_weights(target, source, 'a.pth').is_exact
    assert 'old_head.weight' in weights


def test_post_hooks_can_forgive():
    target = model()
    target.register_load_state_dict_post_hook(
        lambda module, keys: keys.missing_keys.clear()
    )
    source = checkpoint(model())
    source['state_dict'].pop('head.bias')
    assert load_weights(target, source, 'a.pth').is_exact


def test_test_time_augmentation_model():
    class Tta(BaseTTAModel):
        def merge_preds(self, data_samples_list):
            return data_samples_list

    inner = model()
    inner.test_step = None
    assert load_weights(Tta(inner), checkpoint(model()), 'a').is_exact


@pytest.mark.parametrize(
    'other',
    [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)),
        # the same names, other shapes
        model(width=50),
        nn.Sequential(),
    ],
)
def test_rejects_another_model(other):
    with pytest.raises(
        ValueError, match=r"'a.pth' is not of this model: load.* of 10"
    ):
        load_weights(model(classes=9), checkpoint(other), 'a.pth')
