"""Gradient surgery: two processes, windows and precision against one batch."""

import copy
import uuid

import pytest
import torch
from helpers import toy_tasks
from helpers import toy_training as toy
from helpers.toy_tasks import (
    AGGREGATORS,
    Job,
    kill_on_two_ranks,
    train,
    train_on_ranks,
)
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, RUNNERS
from torch import nn

from mmext.engine import (
    AmpGradientSurgeryOptimWrapper,
    GradientSurgeryOptimWrapper,
)

aggregation = pytest.importorskip('torchjd.aggregation')
pytestmark = pytest.mark.xdist_group('processes')
SLOW = pytest.mark.slow


def difference(one, other):
    """Largest difference of weights."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).abs().max()) for n in one)


def check_pairs(jobs, folder):
    """Two processes do what one does with all points; they agree in bits."""
    results = train_on_ranks(jobs, folder)
    for job, (first, second) in zip(jobs, results, strict=True):
        assert isinstance(first, dict), (job, first)
        assert difference(first, second) == 0, job
        assert difference(first, train(job)) < 1e-6, job


def test_two_processes(tmp_path):
    check_pairs(
        [
            Job('PCGrad'),
            Job('PCGrad', wrapper='mm', parts=2),
            Job('IMTLG', model=dict(unused=True)),
            Job('GradDrop', model=dict(balancer='UncertaintyWeights')),
            Job('MGDA', model=dict(balancer='GeometricMean')),
            Job('PCGrad', ddp=dict(find_unused_parameters=True)),
            Job(None, model=dict(balancer='FAMO')),
            Job(None, model=dict(balancer='STCH')),
            Job(
                None,
                model=dict(balancer='UncertaintyWeights'),
                ddp=dict(find_unused_parameters=True),
            ),
        ],
        tmp_path,
    )


def test_faults_of_two_processes(tmp_path):
    jobs = [
        Job('PCGrad', ddp=dict(static_graph=True)),
        Job('PCGrad', fault='drift'),
        Job('PCGrad', fault='error'),
    ]
    refused, drift, error = train_on_ranks(jobs, tmp_path)
    for text in refused:
        assert 'model_wrapper_cfg.static_graph must be False' in text
    for text in drift:
        assert text.startswith('GradientSyncError')
        assert 'backbone.linear.bias' in text
    assert error[1].startswith('TypeError')
    assert error[0].startswith('PeerError')
    assert 'NoneType' in error[0]


def test_as_ddp_where_ranks_differ(tmp_path):
    # What is shared changes with the batch, and with the rank.
    route = dict(model=dict(route=True))
    norm = dict(model=dict(norm=True), parts=2)
    buffers = dict(broadcast_buffers=True)
    jobs = [
        Job('Sum', **route),
        Job(None, ddp=dict(find_unused_parameters=True), **route),
        Job('Sum', ddp=buffers, **norm),
        Job(None, ddp=buffers, **norm),
    ]
    results = train_on_ranks(jobs, tmp_path)
    for ours, plain in zip(results[::2], results[1::2], strict=True):
        for mine, other in zip(ours, plain, strict=True):
            assert difference(mine, other) < 1e-12
    assert difference(*results[2]) > 1e-3  # statistics, after the last sent


@SLOW
@pytest.mark.parametrize('parts', [1, 2])
def test_two_processes_with_each(tmp_path, parts):
    check_pairs([Job(name, parts) for name in AGGREGATORS], tmp_path)


# Without state, with some, and with much; the others are slow.
EACH = [
    pytest.param(
        name,
        marks=() if name in ('PCGrad', 'GradVac', 'ExcessMTL') else SLOW,
    )
    for name in AGGREGATORS
]


@pytest.mark.parametrize('name', EACH)
def test_windows_and_one_task(name):
    # A window is one big batch.
    assert difference(train(Job(name, 4)), train(Job(name))) < 1e-6
    # One task shares nothing.
    one = dict(num_tasks=1)
    assert difference(train(Job(name, model=one)), train(Job(model=one))) == 0


def test_the_sum_is_the_plain_wrapper():
    for model in ({}, dict(unused=True), dict(balancer='IMTLL')):
        plain = train(Job(model=model))
        assert difference(train(Job('Sum', model=model)), plain) < 1e-12
    clip = dict(clip_grad=dict(max_norm=0.01))
    plain = train(Job(options=copy.deepcopy(clip)))
    assert difference(train(Job('Sum', options=clip)), plain) < 1e-12
    assert difference(train(Job()), plain) > 1e-3


class Recorder(nn.Module):
    """An aggregator that keeps what it gets and returns the first row."""

    def __init__(self):
        super().__init__()
        self.matrices = []

    def forward(self, matrix):
        self.matrices.append(matrix.clone())
        return matrix[0]


def toy_model(**kwargs):
    torch.manual_seed(0)
    return MODELS.build(toy_tasks.model_cfg(**kwargs)).train()


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return dict(inputs=list(torch.randn(8, 3, generator=generator)))


def surgery(model, aggregator='PCGrad', kind=None, **kwargs):
    kind = kind or GradientSurgeryOptimWrapper
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return kind(aggregator=aggregator, optimizer=optimizer, **kwargs)


def gradients_of(model, wrapper, data):
    """Gradients with which the optimizer steps."""
    results = {}

    def note(*_):
        for name, parameter in model.named_parameters():
            grad = parameter.grad
            results[name] = None if grad is None else grad.clone()

    handle = wrapper.optimizer.register_step_pre_hook(note)
    model.train_step(data, wrapper)
    handle.remove()
    return results


def test_what_is_shared():
    model, recorder = toy_model(unused=True), Recorder()
    true = copy.deepcopy(model)
    gradients = gradients_of(model, surgery(model, recorder), batch())
    points = torch.stack(batch()['inputs'])
    losses = [
        value
        for name, value in true(points, mode='loss').items()
        if 'loss' in name
    ]
    shared = 'backbone', 'architecture.pair'
    rows = []
    for loss in losses:
        true.zero_grad()
        loss.backward(retain_graph=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten()
                    if p.grad is None
                    else p.grad.flatten()
                    for name, p in true.named_parameters()
                    if name.startswith(shared)
                ]
            )
        )
    # All of the trunk, and what only two of three tasks use.
    torch.testing.assert_close(recorder.matrices[0], torch.stack(rows))
    true.zero_grad()
    sum(losses).backward()
    for name, parameter in true.named_parameters():
        if name.startswith('architecture.unused'):
            assert gradients[name] is None
        elif not name.startswith(shared):
            torch.testing.assert_close(gradients[name], parameter.grad)
    mine = torch.cat(
        [gradients[n].flatten() for n in gradients if n.startswith(shared)]
    )
    torch.testing.assert_close(mine, rows[0])


def test_weights_of_the_aggregator_for_the_heads():
    model = toy_model()
    weights = torch.tensor([0.5, 1.0, 2.0])
    aggregator = dict(type='Constant', weights=weights.tolist())
    true = copy.deepcopy(model)
    losses = true(torch.stack(batch()['inputs']), mode='loss')
    terms = [value for name, value in losses.items() if 'loss' in name]
    torch.stack(terms).mul(weights).sum().backward()
    gradients = gradients_of(
        model, surgery(model, aggregator, weigh_heads=True), batch()
    )
    for name, parameter in true.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    with pytest.raises(ValueError, match='weigh_heads needs an aggregator'):
        surgery(model, 'GradDrop', weigh_heads=True)


def test_groups_of_parameters_and_frozen_ones():
    model = toy_model()
    model.backbone.requires_grad_(False)
    groups = [
        dict(params=model.heads.parameters(), lr=0.0),
        dict(params=model.backbone.parameters()),
        dict(params=model.architecture.parameters()),
    ]
    recorder = Recorder()
    wrapper = GradientSurgeryOptimWrapper(
        aggregator=recorder, optimizer=torch.optim.SGD(groups, lr=0.1)
    )
    before = copy.deepcopy(model.state_dict())
    model.train_step(batch(), wrapper)
    changed = {
        name.rpartition('.')[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {'architecture.pair'} | {
        f'architecture.own.{task}' for task in 'abc'
    }
    # Of the third task only parameters of its own are trained.
    assert recorder.matrices[0].shape == (2, 20)


def test_a_task_without_graph():
    model = toy_model()
    recorder = Recorder()
    wrapper = surgery(model, recorder)
    model.separate_losses = True
    with wrapper.optim_context(model):
        losses, _ = model.parse_losses(model(batch()['inputs'], mode='loss'))
    wrapper.update_params((losses[0], losses[1].detach(), losses[2]))
    # It is left out.
    assert len(recorder.matrices[0]) == 2
    assert recorder.matrices[0].abs().max(1).values.all()


def test_sparse_gradients():
    class Table(nn.Module):
        def __init__(self, sparse):
            super().__init__()
            self.items = nn.Embedding(4, 2, sparse=sparse)

    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = Table(sparse)
        wrapper = surgery(model, accumulative_counts=2)
        for index in (0, 2):
            row = model.items(torch.tensor([index, 3]))
            wrapper.update_params((row.sum(), row.square().sum()))
        results.append(model.items.weight.detach())
    torch.testing.assert_close(*results)


def test_gradients_that_are_not_finite():
    model, recorder = toy_model(), Recorder()
    wrapper = surgery(model, recorder)
    data = batch()
    data['inputs'][0][0] = float('nan')
    gradients = gradients_of(model, wrapper, data)
    assert not recorder.matrices
    assert gradients['backbone.linear.weight'].isnan().any()
    model, broken = toy_model(), nn.Module()
    broken.forward = lambda matrix: matrix[0] / 0
    with pytest.raises(FloatingPointError, match='not finite, of gradients'):
        model.train_step(batch(), surgery(model, broken))


@pytest.mark.parametrize('name', EACH)
def test_state_is_restored(name):
    aggregator = dict(type=name, **AGGREGATORS[name])
    model = toy_model()
    wrapper = surgery(model, aggregator)
    for seed in range(3):
        model.train_step(batch(seed), wrapper)
    saved = copy.deepcopy((model.state_dict(), wrapper.state_dict()))
    again = toy_model()
    again.load_state_dict(saved[0])
    other = surgery(again, aggregator)
    other.load_state_dict(saved[1])
    for seed in range(3, 6):
        model.train_step(batch(seed), wrapper)
        again.train_step(batch(seed), other)
    assert difference(model.state_dict(), again.state_dict()) == 0


def test_settings_are_those_of_the_config():
    model = toy_model()
    state = surgery(model, dict(type='GradVac', beta=0.1)).state_dict()
    assert state['gradient_surgery']['aggregator']['modules'] == {}
    wrapper = surgery(model, dict(type='GradVac', beta=0.9))
    wrapper.load_state_dict(state)
    assert wrapper.aggregator.gramian_weighting.beta == 0.9
    # With another aggregator, or from a training without.
    surgery(model, 'PCGrad').load_state_dict(state)
    plain = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    surgery(model).load_state_dict(plain.state_dict())
    plain.load_state_dict(state)


def test_rejects_losses():
    model = toy_model()
    context = surgery(model).optim_context(nn.Linear(1, 1))
    with pytest.raises(TypeError, match='model whose parse_losses'), context:
        pass
    with pytest.raises(TypeError, match=r'got a tensor of shape \(3,\)'):
        surgery(model).update_params(torch.ones(3))


# Training -------------------------------------------------------------------


def surgery_cfg(counts, name='PCGrad', kind=''):
    """Config of the wrapper, with a window of ``counts`` batches."""
    return dict(
        type=f'mmext.{kind}GradientSurgeryOptimWrapper',
        aggregator=dict(type=name, **AGGREGATORS[name]),
        accumulative_counts=counts,
        clip_grad=dict(max_norm=5.0),
        optimizer=dict(type='Adam', lr=0.05),
    )


def train_config(work_dir, **changes):
    work_dir.mkdir(parents=True, exist_ok=True)
    hooks = dict(
        checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False),
        logger=dict(type='LoggerHook', interval=1),
    )
    cfg = toy_tasks.config(
        'UncertaintyWeights', default_hooks=hooks, **changes
    )
    cfg = toy.traced(work_dir / 'trace', cfg)
    cfg.update(work_dir=str(work_dir), experiment_name=uuid.uuid4().hex)
    return Config(cfg)


@pytest.mark.parametrize(
    ('name', 'counts', 'kind'),
    [
        ('GradVac', 4, ''),
        pytest.param('PCGrad', 4, 'Amp', marks=SLOW),
        pytest.param('NashMTL', 3, '', marks=SLOW),
        pytest.param('GradDrop', 1, '', marks=SLOW),
    ],
)
def test_resumed_within_a_window(tmp_path, name, counts, kind):
    if name not in AGGREGATORS:
        pytest.skip(f'{name} needs a solver')
    wrapper = surgery_cfg(counts, name, kind)

    def run(folder, **changes):
        cfg = train_config(tmp_path / folder, optim_wrapper=wrapper, **changes)
        RUNNERS.build(cfg).train()

    run('a')
    for at in (7, 11):
        with pytest.raises(toy.Killed):
            run('b', resume=True, custom_hooks=[dict(type='KillHook', at=at)])
    run('b', resume=True)
    one, other = (toy.read_trace(tmp_path / n / 'trace.0') for n in 'ab')
    last = {line['iter']: line for line in toy.steps(other)}
    assert list(last.values()) == toy.steps(one)
    assert other[-1] == one[-1]
    files = (tmp_path / n / 'iter_18.pth' for n in 'ab')
    assert toy.differences(*files) == []


@pytest.mark.parametrize(
    ('aggregator', 'message'),
    [
        ('PCgrad', r"UPGradWeighting, .* got 'PCgrad'"),
        ('MoDoWeighting', 'needs the gradients of independent batches'),
        (
            dict(
                type='CRMOGMWeighting', weighting=dict(type='SDMGradWeighting')
            ),
            'SDMGradWeighting needs the gradients of independent batches',
        ),
        ('CAGrad', "missing a required argument: 'c', got 'CAGrad'"),
        ('NashMTL', "missing a required argument: 'n_tasks'"),
        (dict(type='MGDA', c=0.5), "unexpected keyword argument 'c'"),
    ],
)
def test_aggregators_that_cannot_work_are_refused(aggregator, message):
    with pytest.raises(ValueError, match=message):
        surgery(toy_model(), aggregator)


@SLOW
@pytest.mark.parametrize(('name', 'counts'), [('PCGrad', 1), ('GradVac', 3)])
def test_kill_9_and_resume_surgery(tmp_path, name, counts):
    model = toy_tasks.model_cfg('DWA', noise=0.1, norm=True)
    wrapper = surgery_cfg(counts, name)
    kill_on_two_ranks(tmp_path, model=model, optim_wrapper=wrapper)


# Mixed precision ------------------------------------------------------------


@pytest.fixture
def scaled(monkeypatch):
    """The wrapper for GPUs with a scaler that works on a CPU."""
    where = 'mmengine.optim.optimizer.amp_optimizer_wrapper'
    monkeypatch.setattr(f'{where}.is_cuda_available', lambda: True)

    def make(model, aggregator, scale, **kwargs):
        wrapper = surgery(
            model, aggregator, AmpGradientSurgeryOptimWrapper, **kwargs
        )
        wrapper.loss_scaler = torch.amp.GradScaler('cpu', init_scale=scale)
        return wrapper

    return make


def test_the_aggregator_gets_no_scale(scaled):
    plain, model, recorder = toy_model(), toy_model(), Recorder()
    expected = Recorder()
    clip = dict(clip_grad=dict(max_norm=0.1))
    wrapper = scaled(model, recorder, 1024.0, **copy.deepcopy(clip))
    other = surgery(plain, expected, **clip)
    for seed in range(3):
        data = batch(seed)
        plain.train_step(data, other)
        points = torch.stack(data['inputs'])
        wrapper._check(model)
        losses, _ = model.parse_losses(model(points, mode='loss'))
        wrapper.update_params(losses)
    for mine, true in zip(recorder.matrices, expected.matrices, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-7)
    assert difference(model.state_dict(), plain.state_dict()) < 1e-6


def test_an_overflow_is_skipped(scaled):
    model, recorder = toy_model(), Recorder()
    wrapper = scaled(model, recorder, 2.0**127)
    before = copy.deepcopy(model.state_dict())
    wrapper._check(model)
    points = torch.stack(batch()['inputs'])
    for _ in range(2):
        losses, _ = model.parse_losses(model(points, mode='loss'))
        wrapper.update_params([100 * loss for loss in losses])
    assert not recorder.matrices
    assert difference(model.state_dict(), before) == 0
    assert wrapper.loss_scaler.get_scale() == 2.0**125
    state = wrapper.state_dict()
    assert {'loss_scaler', 'gradient_surgery'} <= set(state)


def test_bfloat16_on_a_cpu():
    from mmext.engine.optim.cpu_amp import cpu_amp_cfg

    kind = cpu_amp_cfg(dict(type='mmext.AmpGradientSurgeryOptimWrapper'))
    results = []
    for cls in (GradientSurgeryOptimWrapper, kind['type']):
        model = toy_model()
        wrapper = surgery(model, kind=cls)
        grads = gradients_of(model, wrapper, batch())
        assert grads['backbone.linear.weight'].dtype == torch.float32
        results.append(torch.cat([g.flatten() for g in grads.values()]))
    error = (results[1] - results[0]).norm() / results[0].norm()
    assert 0 < error < 0.1


def test_without_torchjd(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'torchjd', None)
    with pytest.raises(ImportError, match=r'pip install "mmext\[multi_task'):
        surgery(toy_model())
