import pytest
import torch

from mmext.engine.distributed.replicas import checksum


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
