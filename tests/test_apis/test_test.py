import pickle

import pytest
import torch
import toy_training as toy

from mmext.apis.test import prepare_test, run_test

TEST = dict(
    test_dataloader=toy.loader(size=4, shuffle=False),
    test_cfg=dict(),
    test_evaluator=dict(type='ToyMetric'),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


@pytest.fixture
def make(tmp_path):
    """Writes a config file with some changes."""
    return lambda **changes: toy.write(
        tmp_path / 'cfg.py', toy.config(**{**TEST, **changes})
    )


@pytest.fixture
def checkpoint(tmp_path):
    """Weights that make every output 3, of which the first are 2 + 1."""
    path = tmp_path / 'a.pth'
    torch.save(
        {
            'linear.weight': torch.zeros(2, 3),
            'linear.bias': torch.full((2,), 3.0),
        },
        path,
    )
    return str(path)


def test_a_test(make, checkpoint, tmp_path):
    out = str(tmp_path / 'predictions.pkl')
    work_dir = str(tmp_path / 'w')
    cfg = prepare_test(make(), checkpoint, work_dir=work_dir, out=out)
    assert run_test(cfg, out=out) == dict(mean=3.0)
    with open(out, 'rb') as file:
        assert len(pickle.load(file)) == 2
    assert run_test(cfg) == dict(mean=3.0)


def test_resume_of_the_config_does_not_count(make, checkpoint):
    cfg = prepare_test(make(resume=True), checkpoint)
    assert (cfg.resume, cfg.load_from) == (False, checkpoint)


def test_only_test_data_are_needed(make, checkpoint):
    loader = toy.loader()
    loader['dataset']['ann_file'] = 'nowhere.json'
    prepare_test(make(train_dataloader=loader), checkpoint)
    with pytest.raises(FileNotFoundError, match='test data'):
        prepare_test(make(test_dataloader=loader), checkpoint)


def test_rejects_another_model(make, tmp_path):
    path = tmp_path / 'b.pth'
    torch.save({'other': torch.zeros(1)}, path)
    cfg = prepare_test(make(), str(path), work_dir=str(tmp_path / 'w'))
    with pytest.raises(ValueError, match='loaded 0 of 2 entries'):
        run_test(cfg)


def test_rejects_weights_that_leave_some_random(make, checkpoint, tmp_path):
    weights = torch.load(checkpoint, weights_only=True)
    weights.pop('linear.bias')
    torch.save(weights, tmp_path / 'part.pth')
    cfg = prepare_test(make(), str(tmp_path / 'part.pth'))
    with pytest.raises(ValueError, match='must hold all weights of the mode'):
        run_test(cfg)


def test_rejects_suffix(make, checkpoint):
    with pytest.raises(ValueError, match=r"must end in .pkl, got 'a.json'"):
        prepare_test(make(), checkpoint, out='a.json')


def test_rejects_absent_checkpoint(make):
    with pytest.raises(FileNotFoundError, match=r"got 'none.pth'"):
        prepare_test(make(), 'none.pth')


def test_rejects_config_without_test(make, checkpoint):
    none = dict.fromkeys(TEST)
    with pytest.raises(ValueError, match='config must have test_dataloader'):
        prepare_test(make(**none), checkpoint)
