"""A loss that depends on a graph of an earlier step is explained."""

from types import SimpleNamespace

import pytest
import torch
from helpers import toy_training as toy
from mmengine.registry import DATASETS, MODELS
from torch import nn
from torch.nn import functional as F

from mmext.checks.ddp import StaleGraphError, kept_tensors, name_stale_graphs

# Embeddings of all samples, computed once and before the training: the
# report about MMoE with equal weights (LibMTL #89).
TABLE = nn.Embedding(3, 3)


@DATASETS.register_module(force=True)
class EmbeddedDataset(toy.ToyDataset):
    """Samples that were embedded once, all together."""

    def full_init(self):
        super().full_init()
        with torch.random.fork_rng():
            self.features = TABLE(torch.arange(self.size) % 3).exp()

    def prepare_data(self, idx):
        return dict(inputs=self.features[idx])


@MODELS.register_module(force=True)
class EmbeddingModel(toy.ToyModel):
    """Embeds all samples in its first forward."""

    def __init__(self, once):
        super().__init__()
        self.table, self.once = nn.Embedding(3, 3), once
        self.features = None

    def forward(self, inputs, mode='tensor', **kwargs):
        kinds = torch.stack(list(inputs))[:, 0].abs().long() % 3
        if self.features is None:
            features = self.table(torch.arange(3))
            is_view = self.once == 'view'
            self.features = features[:3] if is_view else features.exp()
        return super().forward(self.features[kinds], mode=mode, **kwargs)


@pytest.mark.parametrize('once', [True, 'view'])
def test_a_model_that_embeds_once(tmp_path, once):
    with pytest.raises(StaleGraphError) as caught:
        toy.train(tmp_path, model=dict(type='EmbeddingModel', once=once))
    text = str(caught.value)
    assert "the attribute 'features' of the model holds it" in text
    assert ' from the parameters table.weight' in text
    assert 'neither the model nor the batch' not in text
    assert 'retain_graph=True would only hide the error' in text
    assert 'a second time' in str(caught.value.__cause__)


def test_samples_that_were_embedded_before(tmp_path):
    loader = toy.loader()
    loader['dataset']['type'] = 'EmbeddedDataset'
    with pytest.raises(StaleGraphError, match=r"batch\['inputs'\]\[0\]") as e:
        toy.train(tmp_path, train_dataloader=loader)
    made = 'made by SelectBackward0 from a tensor of shape (3, 3), which '
    assert f'holds it ({made}EmbeddingBackward0 uses)' in str(e.value)


@DATASETS.register_module(force=True)
class LookedUpDataset(toy.ToyDataset):
    """Samples that are embedded when they are read."""

    def prepare_data(self, idx):
        return dict(inputs=TABLE(torch.tensor(idx % 3)))


def test_a_table_that_the_data_set_looks_up_is_named_once(tmp_path):
    loader = toy.loader()
    loader['dataset']['type'] = 'LookedUpDataset'
    toy.train(tmp_path, train_dataloader=loader)
    log = next(tmp_path.rglob('*.log')).read_text()
    assert log.count('Gradients add up that no optimizer uses') == 1
    assert "of shape (3, 3), of which batch['inputs'][" in log


def test_a_training_without_a_table_says_nothing(tmp_path):
    toy.train(tmp_path)
    assert 'no optimizer uses' not in next(tmp_path.rglob('*.log')).read_text()


def test_a_list_of_somebody():
    model, held = nn.Linear(2, 1), nn.Linear(2, 2)
    features = held(torch.ones(1, 2)).exp()
    features.sum().backward()

    def step():
        loss = model(features).sum()
        loss.backward()

    with (
        pytest.raises(StaleGraphError, match='neither the model nor the b'),
        name_stale_graphs(model, None),
    ):
        step()


@MODELS.register_module(force=True)
class HoldingModel(toy.ToyModel):
    """Keeps what it has computed first, and does not use it."""

    def forward(self, inputs, mode='tensor', **kwargs):
        if not hasattr(self, 'kept'):
            self.kept = self.linear(torch.stack(list(inputs)).detach())
        return super().forward(inputs, mode=mode, **kwargs)


def test_what_the_loss_does_not_go_through_is_not_blamed(tmp_path):
    loader = toy.loader()
    loader['dataset']['type'] = 'EmbeddedDataset'
    with pytest.raises(StaleGraphError) as caught:
        toy.train(
            tmp_path,
            model=dict(type='HoldingModel'),
            train_dataloader=loader,
        )
    assert "batch['inputs'][0], from the data" in str(caught.value)
    assert "'kept'" not in str(caught.value)


def test_two_backwards_of_one_step_are_left_alone():
    """No earlier step has to do with it."""
    model = nn.Linear(2, 1)

    def step():
        loss = model(torch.ones(1, 2)).exp().sum()
        loss.backward()
        loss.backward()

    with (
        pytest.raises(RuntimeError, match='a second time') as caught,
        name_stale_graphs(model, None),
    ):
        step()
    assert type(caught.value) is RuntimeError


def test_values_that_an_optimizer_changed():
    """What ``retain_graph`` ends in, with a layer behind the embedding."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.kept = F.relu(model(torch.ones(1, 2)))
    model.kept.sum().backward(retain_graph=True)
    with torch.no_grad():
        model[1].weight.add_(1)
    with (
        pytest.raises(StaleGraphError, match="the attribute 'kept'"),
        name_stale_graphs(model, None),
    ):
        model(model.kept).sum().backward()


def locations(value):
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].value = value
    return {
        location: len(held) for location, held in kept_tensors(model).items()
    }


def graph():
    return torch.ones(2, requires_grad=True) * 2


def test_locations():
    assert locations(graph()) == {'0.value': 1}
    assert locations([graph(), {'a': (graph(),)}]) == {'0.value': 2}
    assert locations(SimpleNamespace(inner=graph())) == {'0.value': 1}


def test_a_circle_ends():
    value = [graph()]
    value.append(value)
    assert locations(value) == {'0.value': 1}
