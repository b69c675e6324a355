import pickle

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import (
    load_tool,
    start_ranks,
)

pytestmark = pytest.mark.xdist_group('processes')


@pytest.fixture
def args(tmp_path):
    """Config, checkpoint and work dir of a test."""
    checkpoint = tmp_path / 'a.pth'
    torch.save(toy.WEIGHTS, checkpoint)
    path = toy.write(tmp_path / 'cfg.py', toy.config(**toy.TEST))
    return [path, str(checkpoint), '--work-dir', str(tmp_path / 'w')]


@pytest.mark.parametrize('world_size', [1, 2])
def test_metrics_and_predictions(args, tmp_path, world_size):
    out = tmp_path / 'out.pkl'
    ranks = start_ranks(
        [*args, '--out', out], world_size, tmp_path / 'log', tool='test'
    )
    assert ranks.wait() == [0] * world_size, ranks.output()
    assert 'mean: 3.0000' in ranks.output()
    assert len(pickle.loads(out.read_bytes())) == (3 if world_size == 1 else 4)


def test_wrong_input_is_one_line(args, capsys):
    main = load_tool('test').main
    for wrong, message in (
        ([args[0], 'none.pth'], "existing file, got 'none.pth'"),
        ([*args, '--out', 'a.json'], 'out must end in .pkl'),
        ([*args, '--device', 'tpu'], "got 'tpu'"),
    ):
        with pytest.raises(SystemExit) as info:
            main(wrong)
        assert info.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count('\n') == 1


def test_a_damaged_checkpoint_is_one_line(args, tmp_path, capsys):
    damaged = tmp_path / 'a.pth'
    damaged.write_bytes(damaged.read_bytes()[:500])
    with pytest.raises(SystemExit) as info:
        load_tool('test').main(args)
    assert info.value.code == 2
    printed = capsys.readouterr().err
    assert 'Traceback' not in printed
    message = printed.splitlines()[-1]
    assert f"checkpoint '{damaged}' is damaged: it is cut off" in message


def test_the_config_of_the_training_stays(args, tmp_path):
    config, _, *work_dir = args
    train = [config, *work_dir, '--cfg-options', 'train_cfg.max_epochs=1']
    assert load_tool('train').main(train) == 0
    written = tmp_path / 'w/cfg.py'
    text = written.read_text()
    assert 'max_epochs=1' in text
    options = ['--cfg-options', 'randomness.seed=9']
    assert load_tool('test').main([*args, *options]) == 0
    assert written.read_text() == text
