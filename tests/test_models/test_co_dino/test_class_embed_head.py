"""mmext.CoDINOClassEmbedHead trains, in every mode and on every batch."""

import math

import pytest
import torch
from helpers.tiny_class_embed import (
    AUXILIARY,
    CLASSIFIER,
    MODES,
    OFF,
    OWN,
    build,
    step,
)
from helpers.tiny_co_dino import (
    BATCHES,
    build_tiny,
    make_batch,
    propose_nothing,
    total_loss,
    training_losses,
    without_gradient,
)
from helpers.torch_versions import cpu_autocast
from torch.nn.functional import cosine_similarity, normalize

from mmext.models.co_dino.class_embed_head import (
    COSINE_EPS,
    LOG_TEMPERATURE_RANGE,
    bound_log_temperature,
    cosine_logits,
    init_class_embed,
    init_prototypes,
)
from mmext.models.co_dino.transformer import encoder_proposals

every_mode = pytest.mark.parametrize('mode', MODES)


@every_mode
# Of more boxes and of odd sizes the head knows nothing.
@pytest.mark.parametrize('case', list(BATCHES)[:6])
def test_every_parameter_learns_from_every_batch(mode, case):
    num_boxes, sizes, proposes = BATCHES[case]
    model = build(MODES[mode])
    if not proposes:
        propose_nothing(model)
    losses = step(model, make_batch(num_boxes, sizes))
    assert without_gradient(model) == []
    for name, shape in OWN.items():
        parameter = model.query_head.get_parameter(name)
        assert parameter.shape == shape
        # With and without boxes: there are always negatives.
        assert bool(parameter.grad.abs().sum() > 0) == (mode != 'off'), name
    own = [key for key in losses if 'loss_class_embed' in key]
    assert len(own) == {'classifier': 0, 'auxiliary': 9, 'off': 1}[mode]


def test_classifier_is_one_projection_for_all():
    """The logits of every group, and no linear classifier."""
    model = build(CLASSIFIER)
    head = model.query_head
    assert not any('cls_branches' in name for name in model.state_dict())
    assert set(OWN) <= set(dict(head.named_parameters()))
    hidden = torch.randn(2, 1, 3, 32)
    expected = (
        normalize(hidden @ head.class_embed, dim=-1)
        @ normalize(head.class_embeddings, dim=1).t()
    ) / 0.07 - 4.59512
    with torch.no_grad():
        scores, _ = head(hidden, [torch.full((1, 3, 4), 0.3)] * 3)
        torch.testing.assert_close(scores, expected)
        torch.testing.assert_close(head.classify(-1, hidden), expected)
        data = model.data_preprocessor(make_batch(), True)
        encoded = model.encode(data['inputs'], data['data_samples'])
    proposals = head.propose(encoded)
    torch.testing.assert_close(
        proposals.scores, head.class_logits(proposals.tokens)
    )
    assert proposals.scores.requires_grad
    best = proposals.scores.max(-1).values
    assert (best.diff(dim=1) <= 1e-5).all()


def test_gradient_of_the_proposals_is_that_of_all_tokens():
    """Scoring without gradient first changes nothing."""
    model = build(CLASSIFIER)
    head = model.query_head
    data = model.data_preprocessor(make_batch(), True)
    results = []
    for two_steps in (True, False):
        model.zero_grad()
        encoded = model.encode(data['inputs'], data['data_samples'])
        proposals = head.propose(encoded)
        scores = proposals.scores
        if not two_steps:
            transformer = head.transformer
            usable = encoder_proposals(encoded)[1][..., None]
            scores = head.class_logits(
                transformer._proposing(encoded.memory, usable)
            )
            best = scores.max(-1).values.topk(proposals.scores.shape[1])
            index = best.indices[..., None]
            scores = scores.gather(1, index.expand(-1, -1, scores.shape[2]))
        scores.square().sum().backward()
        results.append(
            (
                scores,
                [
                    parameter.grad.clone()
                    for parameter in model.parameters()
                    if parameter.grad is not None
                ],
            )
        )
    (scores, grads), (expected, expected_grads) = results
    torch.testing.assert_close(scores, expected)
    assert len(grads) == len(expected_grads) > 30
    for grad, other in zip(grads, expected_grads):
        torch.testing.assert_close(grad, other, rtol=1e-4, atol=1e-4)


def plain_and(head):
    """A plain detector, and one with this head and the same weights."""
    plain = build_tiny()
    model = build(head, seed=3)
    result = model.load_state_dict(plain.state_dict(), strict=False)
    return plain, model, result


@pytest.mark.parametrize('head', [AUXILIARY, OFF], ids=['auxiliary', 'off'])
@pytest.mark.parametrize('num_boxes', [(3, 2), (0, 0)])
def test_beside_the_classifier_nothing_else_changes(head, num_boxes):
    plain, model, result = plain_and(head)
    assert result.unexpected_keys == []
    assert sorted(result.missing_keys) == sorted(
        f'query_head.{name}' for name in OWN
    )
    batch = make_batch(num_boxes)
    expected, losses = step(plain, batch), step(model, batch)
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, msg=name)
    own = {key: losses[key] for key in losses if key not in expected}
    if head is OFF:
        assert {key: float(v.detach()) for key, v in own.items()} == {
            'loss_class_embed': 0
        }
        for name, parameter in plain.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(
                    model.get_parameter(name).grad, parameter.grad
                )
    else:
        # loss_cls0 and loss_cls1[i] are the auxiliary heads' own.
        names = [
            key
            for key in expected
            if key.endswith(('loss_cls', '_aux0', '_aux1'))
            and 'loss_cls' in key
        ]
        assert sorted(own) == sorted(
            name.replace('loss_cls', 'loss_class_embed') for name in names
        )
    with torch.no_grad():
        results = [
            item.eval()(torch.ones(1, 3, 64, 64), mode='tensor')[0]
            for item in (plain, model)
        ]
    torch.testing.assert_close(*results)


def test_same_logits_give_the_same_loss():
    """A cosine in the place of the classifier and beside it."""
    model, other = build(AUXILIARY), build(CLASSIFIER)
    other.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        # Both match alike if their classifiers agree, here on one constant.
        for head in (model.query_head, other.query_head):
            head.class_embed.zero_()
        for branch in model.query_head.cls_branches:
            branch.weight.zero_()
            branch.bias.fill_(float(other.query_head.class_bias))
    losses, expected = step(model, make_batch()), step(other, make_batch())
    compared = 0
    for name, value in losses.items():
        if 'class_embed' in name:
            same = expected[name.replace('class_embed', 'cls')]
            torch.testing.assert_close(value, same * 0.5, msg=name)
            compared += 1
    assert compared == 9


def test_two_losses_then_one_backward_pass():
    """As teacher-student methods do."""
    model = build(CLASSIFIER).train()
    losses = [
        total_loss(training_losses(model, make_batch(seed=i)))
        for i in range(2)
    ]
    sum(losses).backward()
    assert without_gradient(model) == []


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


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_does_not_round(generator, dtype, device):
    args = [
        value.detach().to(device) for value in make(generator, torch.float32)
    ]
    expected = cosine_logits(*args)
    if device.type == 'cpu':
        cpu_autocast(dtype)
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
