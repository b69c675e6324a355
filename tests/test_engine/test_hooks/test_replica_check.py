import pytest
import torch
from helpers.toy_ranks import run_on_ranks
from mmengine.dist import get_rank
from torch import nn

from mmext.engine import ReplicaCheckHook
from mmext.engine.distributed import checksum, first_difference


@pytest.mark.parametrize(
    'dtype',
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_checksum_sees_every_bit(dtype):
    if dtype.is_floating_point or dtype.is_complex:
        value = torch.randn(3, 5).to(dtype)
    else:
        value = torch.randint(0, 2, (3, 5)).to(dtype)
    same = value.clone()
    assert checksum(value).dtype == torch.int64
    assert torch.equal(checksum(value), checksum(same))
    same.view(-1)[7] = (
        value.view(-1)[7] + 1 if dtype != torch.bool else (~value.view(-1)[7])
    )
    assert not torch.equal(checksum(value), checksum(same))


def test_checksum_sees_what_sums_do_not():
    a = torch.tensor([0.1, 0.2, 0.3])
    assert checksum(a) != checksum(a[[1, 0, 2]])
    tiny = a.clone()
    tiny[0] = torch.nextafter(tiny[0], torch.tensor(1.0))
    assert checksum(a) != checksum(tiny)
    assert checksum(torch.tensor([0.0])) != checksum(torch.tensor([-0.0]))
    nan = torch.tensor([float('nan')])
    assert checksum(nan) == checksum(nan.clone())


def test_checksum_of_views_and_of_nothing():
    value = torch.randn(4, 6)
    assert checksum(value.t()) == checksum(value.t().contiguous())
    assert checksum(torch.zeros(0)) == 0
    assert checksum(torch.tensor(3.0)) != 0


def test_checksum_keeps_its_input():
    value = torch.randn(4, requires_grad=True)
    before = value.detach().clone()
    checksum(value)
    assert torch.equal(value.detach(), before)
    assert value.grad is None


def test_first_difference():
    sums = [torch.tensor(s) for s in ([1, 2, 3], [1, 2, 3], [1, 9, 8])]
    assert first_difference(sums) == (1, 2)
    assert first_difference(sums[:2]) is None


def test_rejects_interval():
    with pytest.raises(ValueError, match='interval must be positive, got 0'):
        ReplicaCheckHook(interval=0)


def test_one_process_has_nothing_to_compare():
    ReplicaCheckHook().check(nn.Linear(1, 1), 0)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def check_equal():
    ReplicaCheckHook().check(make_model(), 0)


def check_parameter():
    model = make_model()
    with torch.no_grad():
        model[0].bias[1] += 1e-6 * get_rank()
    ReplicaCheckHook().check(model, 7)


def check_buffer(check_buffers=True):
    model = make_model()
    model[1].running_mean += get_rank()
    ReplicaCheckHook(check_buffers=check_buffers).check(model, 7)


def check_no_buffer():
    check_buffer(False)


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    ('function', 'message'),
    [
        (check_equal, None),
        (check_no_buffer, None),
        (
            check_parameter,
            "after iteration 7 parameter '0.bias' of rank 1 differs",
        ),
        (check_buffer, "buffer '1.running_mean' of rank 1 differs"),
    ],
)
def test_every_rank_raises(tmp_path, function, message):
    ranks = run_on_ranks(function, 2, tmp_path / 'out')
    assert ranks.wait() == [0 if message is None else 1] * 2
    for rank in range(2):
        assert (message or '') in ranks.output(rank)
