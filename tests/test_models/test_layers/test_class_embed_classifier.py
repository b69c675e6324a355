"""Cosine logits against torch's own cosine, values and gradients."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from mmext.models.layers.class_embed_classifier import (
    COSINE_EPS,
    LOG_TEMPERATURE_INIT,
    LOG_TEMPERATURE_RANGE,
    PRIOR_BIAS,
    bound_log_temperature,
    cosine_logits,
    init_class_embed,
    init_prototypes,
)


def make(generator, dtype=torch.float64, shape=(2, 3), channels=5, dims=7):
    """Arguments of the function, with gradient; four classes."""

    def draw(*size):
        value = torch.randn(*size, generator=generator, dtype=dtype)
        return value.requires_grad_()

    return (
        draw(*shape, channels),
        draw(channels, dims),
        draw(4, dims),
        torch.tensor([1.3], dtype=dtype, requires_grad=True),
        torch.tensor([-2.0], dtype=dtype, requires_grad=True),
    )


def reference(hidden, class_embed, embeddings, log_temperature, bias):
    """The formula, class by class."""
    queries = torch.einsum('...c,cd->...d', hidden, class_embed)
    cosines = [
        cosine_similarity(queries, row.expand_as(queries), dim=-1)
        for row in embeddings
    ]
    return torch.stack(cosines, -1) * log_temperature.exp() + bias


def test_values_and_gradients_are_those_of_the_formula(generator):
    args = make(generator)
    weights = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    results = []
    for function in (cosine_logits, reference):
        logits = function(*args)
        results.append(
            (logits, torch.autograd.grad((logits * weights).sum(), args))
        )
    (logits, grads), (expected, expected_grads) = results
    assert logits.shape == (2, 3, 4)
    torch.testing.assert_close(logits, expected)
    for grad, other in zip(grads, expected_grads):
        torch.testing.assert_close(grad, other)


def test_gradients_are_those_of_finite_differences(generator):
    args = make(generator, shape=(2,), channels=3, dims=4)
    assert torch.autograd.gradcheck(cosine_logits, args)


def test_lengths_do_not_matter(generator):
    args = make(generator, torch.float32)
    expected = cosine_logits(*args)
    hidden, class_embed, embeddings, *rest = args
    for scale in (1e-3, 1e3):
        scaled = cosine_logits(
            hidden * scale, class_embed, embeddings * scale, *rest
        )
        torch.testing.assert_close(scaled, expected)


def test_range_is_the_bias_plus_or_minus_the_temperature():
    eye = torch.eye(2)
    logits = cosine_logits(
        torch.tensor([[5.0, 0.0], [-5.0, 0.0]]),
        eye,
        eye,
        torch.tensor([LOG_TEMPERATURE_INIT]),
        torch.tensor([PRIOR_BIAS]),
    )
    low, high = PRIOR_BIAS - 1 / 0.07, PRIOR_BIAS + 1 / 0.07
    torch.testing.assert_close(
        logits, torch.tensor([[high, PRIOR_BIAS], [low, PRIOR_BIAS]])
    )
    # What the quality focal loss asks for at most, and at first.
    assert high > math.log(0.999 / 0.001)
    assert torch.tensor(PRIOR_BIAS).sigmoid() == pytest.approx(0.01)


@pytest.mark.parametrize('zero', [0, 1, 2])
def test_limit_zero_vectors(generator, zero):
    """A query, the projection or an embedding of zeros."""
    args = list(make(generator, torch.float32))
    args[zero] = torch.zeros_like(args[zero]).requires_grad_()
    logits = cosine_logits(*args)
    torch.testing.assert_close(logits, args[4].expand_as(logits))
    for grad in torch.autograd.grad(logits.sum(), args):
        assert grad.isfinite().all()
        assert grad.abs().max() < 100 / COSINE_EPS


def test_limit_no_queries(generator):
    args = make(generator, torch.float32, shape=(2, 0))
    logits = cosine_logits(*args)
    assert logits.shape == (2, 0, 4)
    for grad in torch.autograd.grad(logits.sum(), args):
        assert (grad == 0).all()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_does_not_round(generator, dtype, device):
    args = [
        value.detach().to(device) for value in make(generator, torch.float32)
    ]
    expected = cosine_logits(*args)
    with torch.autocast(device.type, dtype=dtype):
        inside = cosine_logits(*args)
        half = cosine_logits(args[0].to(dtype), *args[1:])
    assert inside.dtype == half.dtype == torch.float32
    assert torch.equal(inside, expected)
    torch.testing.assert_close(half, expected, rtol=0.05, atol=0.05)


def test_temperature_is_bounded_and_comes_back():
    eye = torch.eye(2)
    for start, bound in ((-9.0, 0), (99.0, 1)):
        log_temperature = torch.tensor([start], requires_grad=True)
        args = (eye, eye, eye, log_temperature, torch.zeros(1))
        limit = math.exp(LOG_TEMPERATURE_RANGE[bound])
        expected = torch.eye(2) * limit
        torch.testing.assert_close(cosine_logits(*args), expected)
        bound_log_temperature(log_temperature)
        torch.testing.assert_close(cosine_logits(*args), expected)
        cosine_logits(*args).sum().backward()
        assert float(log_temperature.grad) == pytest.approx(2 * limit)
    assert tuple(map(math.exp, LOG_TEMPERATURE_RANGE)) == pytest.approx(
        (1, 100)
    )


def test_bounding_leaves_earlier_losses_whole(generator):
    """Two losses, then one backward pass, as in teacher-student training."""
    args = make(generator, torch.float32)
    first = cosine_logits(*args)
    bound_log_temperature(args[3])
    (first.sum() + cosine_logits(*args).sum()).backward()
    assert args[3].grad.isfinite()


def test_initial_values():
    class_embed = torch.empty(64, 512)
    init_class_embed(class_embed)
    assert float(class_embed.std()) == pytest.approx(1, rel=0.02)
    prototypes = torch.empty(6, 512)
    init_prototypes(prototypes)
    torch.testing.assert_close(
        prototypes @ prototypes.t(), 512 * torch.eye(6), rtol=1e-5, atol=1e-3
    )
    # Each entry belongs to one class.
    assert (prototypes != 0).sum(0).tolist() == [1] * 512
    assert (prototypes > 0).any(1).all()
    assert (prototypes < 0).any(1).all()
    more = torch.empty(900, 40)
    init_prototypes(more)
    assert float(more.std()) == pytest.approx(1, rel=0.02)
