"""Rows of weights go to the classes of their names, whatever the layout."""

import pytest
import torch
from helpers import toy_training as toy
from helpers.tiny_co_dino import build_tiny
from mmengine.registry import MODELS
from torch import nn

from mmext.engine.checkpoint.load import load_weights
from mmext.engine.class_rows import (
    ClassRows,
    class_rows,
)

OLD = ('cat', 'dog', 'cow', 'hen', 'pig')
NEW = ('hen', 'fox', 'cat')
# A value for each row: 100 * class + place, with class 9 for the background.
BACKGROUND = 900


class Heads(nn.Module):
    """One of each kind of layer that knows the classes."""

    def __init__(self, num_classes):
        super().__init__()
        self.fc_cls = nn.Linear(3, num_classes + 1)
        self.fc_reg = nn.Linear(3, 4 * num_classes)
        self.retina_cls = nn.Conv2d(2, 3 * num_classes, 1)
        self.ssd_cls = nn.Conv2d(2, 3 * (num_classes + 1), 1)
        self.embedding = nn.Embedding(num_classes, 2)
        self.transposed = nn.Parameter(torch.zeros(2, num_classes))
        self.register_buffer('class_weight', torch.full((num_classes,), 7.0))
        self.neck = nn.Linear(2, 2)


def numbered(num_classes):
    """Heads of which each row says what it is of."""
    model = Heads(num_classes)
    labels = 100.0 * torch.arange(num_classes)
    rest = torch.tensor([BACKGROUND])
    per_class = labels[:, None] + torch.arange(4)
    per_anchor = labels + torch.arange(3)[:, None]
    background = BACKGROUND + torch.arange(3)[:, None]
    rows = {
        'fc_cls': torch.cat((labels, rest)),
        'fc_reg': per_class.flatten(),
        'retina_cls': per_anchor.flatten(),
        'ssd_cls': torch.cat((per_anchor, background), 1).flatten(),
        'embedding': labels,
    }
    with torch.no_grad():
        for name, values in rows.items():
            layer = getattr(model, name)
            shape = (-1, *[1] * (layer.weight.ndim - 1))
            layer.weight.copy_(values.reshape(shape).expand_as(layer.weight))
            if hasattr(layer, 'bias'):
                layer.bias.copy_(values)
        model.transposed.copy_(labels.expand_as(model.transposed))
    return model


def test_every_layout():
    """A class has after it what it had before; new ones stay initialised."""
    model, before = numbered(3), Heads(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(-1)
    neck = numbered(5).neck.weight
    state = {**numbered(5).state_dict(), 'neck.weight': neck}
    report = load_weights(
        model,
        {'state_dict': state},
        'a.pth',
        rows=lambda weights: ClassRows(OLD, NEW),
    )
    hen, cat, new = 300.0, 0.0, [-1.0]
    expected = {
        'fc_cls': [hen, *new, cat, BACKGROUND],
        'fc_reg': [hen, 301, 302, 303, *new * 4, cat, 1, 2, 3],
        'retina_cls': [hen, *new, cat, 301, *new, 1, 302, *new, 2],
        'ssd_cls': [
            *(hen, *new, cat, 900),
            *(301, *new, 1, 901),
            *(302, *new, 2, 902),
        ],
        'embedding': [hen, *new, cat],
    }
    for name, values in expected.items():
        layer = getattr(model, name)
        rows = layer.weight.flatten(1)
        assert rows.eq(torch.tensor(values)[:, None]).all(), name
        if hasattr(layer, 'bias'):
            assert layer.bias.tolist() == values, name
    assert model.transposed.tolist() == [[hen, *new, cat]] * 2
    assert torch.equal(model.neck.weight, neck)
    assert torch.equal(model.class_weight, before.class_weight)
    assert report.rows.copied['fc_reg.bias'] == (8, 12)
    assert report.rows.copied['fc_cls.weight'] == (3, 4)
    assert len(report.rows.copied) == 10
    assert [name.split(':')[0] for name in report.mismatched] == [
        'class_weight'
    ]
    assert not report.is_exact
    assert not report.missing
    assert not report.unexpected
    assert str(report).startswith('12 of 13 entries of the model, 10 of them')
    table = report.table()
    # Without those that go on below.
    lines = [line for line in table.splitlines()[2:] if line[1] != ' ']
    assert [line.split()[:2] for line in lines] == [
        ['loaded', '2'],
        ['copied', '10'],
        ['initialised', '10'],
        ['left', '10'],
        ['initialised', '1'],
    ]
    assert 'rows of hen, cat: ' in lines[1]
    assert 'fc_cls.weight 3 of 4' in lines[1]
    assert lines[2].endswith('rows of fox')
    assert lines[3].endswith('rows of dog, cow, pig')


@pytest.mark.parametrize(
    ('value', 'own'),
    [
        ((5, 2), (3, 4)),  # two sizes differ
        ((5,), (3, 1)),
        ((8, 2), (2, 2)),  # 3 per class, and -7 more
        ((9, 2), (3, 2)),
        ((6, 2), (5, 2)),  # half a row per class
        ((3, 2), (5, 2)),  # fewer for more
    ],
)
def test_other_shapes_are_let_alone(value, own):
    rows = ClassRows(OLD, NEW)
    value = torch.ones(value)
    assert rows.adapt('a.weight', value, torch.zeros(own)) is value
    assert not rows.copied


@MODELS.register_module(force=True)
class Classifier(nn.Module):
    """A layer for the classes, and one of the same size that is not."""

    def __init__(self, num_classes=3, only=None):
        super().__init__()
        if only not in (None, num_classes):
            raise RuntimeError('made for other classes')
        self.other = nn.Linear(2, 3)
        self.cls = nn.Linear(2, num_classes)


def load(classes, weights, names, **options):
    cfg = {'type': 'mmengine.Classifier', 'num_classes': 3} | options
    model = Classifier(3)
    expected = {k: v.clone() for k, v in model.state_dict().items()}
    meta = {'dataset_meta': {'CLASSES': names}} if names else {}
    rows = class_rows(model, cfg, classes, meta, weights)
    load_weights(model, weights, 'a.pth', rows=lambda _: rows)
    return model.state_dict(), expected, rows


def test_as_many_others_in_another_order():
    """Shapes say nothing here; what depends on the classes is built."""
    weights = Classifier(3).state_dict()
    loaded, initial, rows = load(('c', 'x', 'a'), weights, ('a', 'b', 'c'))
    assert set(rows.copied) == {'cls.weight', 'cls.bias'}
    for name in ('cls.weight', 'cls.bias'):
        assert torch.equal(loaded[name][0], weights[name][2])
        assert torch.equal(loaded[name][1], initial[name][1])
        assert torch.equal(loaded[name][2], weights[name][0])
    for name in ('other.weight', 'other.bias'):
        assert torch.equal(loaded[name], weights[name])


@pytest.mark.parametrize(
    ('classes', 'names', 'options'),
    [
        (('a', 'b', 'c'), ('a', 'b', 'c'), {}),
        (('a', 'b', 'c'), None, {}),
        (None, ('a', 'b'), {}),
        (('a', 'b', 'c'), ('a', 'a', 'b'), {}),
        (('a', 'b', 'c'), 'a.txt', {}),
        (('a', 'b', 'c'), ('c', 'b', 'a'), {'only': 3}),
    ],
)
def test_where_nothing_is_known_all_is_loaded(classes, names, options):
    weights = Classifier(3).state_dict()
    loaded, _, rows = load(classes, weights, names, **options)
    assert rows is None
    for name, value in weights.items():
        assert torch.equal(loaded[name], value)


def test_a_model_that_does_not_say_its_classes(monkeypatch):
    """All is loaded as it is, and the log says so."""
    logged = []
    monkeypatch.setattr(
        'mmext.engine.class_rows.print_log',
        lambda text, level, **_: logged.append(text),
    )
    weights = Classifier(3).state_dict()
    meta = {'dataset_meta': {'classes': ('c', 'b', 'a')}}
    cfg = {'type': 'mmengine.Classifier'}
    assert not class_rows(Classifier(), cfg, ('a', 'b', 'c'), meta, weights)
    load(('a', 'b', 'c'), weights, ('c', 'b', 'a'), only=3)
    assert 'num_classes=3 is nowhere in the config' in logged[0]
    assert 'made for other classes' in logged[1]
    assert all('the first for the first' in text for text in logged)


def test_public_weights_know_the_classes_of_coco():
    """They do not say them; of 80 classes without names they are taken."""
    name = 'query_head.cls_branches.0.bias'
    weights = {name: torch.arange(80.0)}
    rows = class_rows(nn.Module(), {}, ('zebra', 'car', 'cell'), {}, weights)
    own = torch.full((3,), -1.0)
    # Numbers of the classes in mmdet's labels of COCO.
    assert rows.adapt(name, weights[name], own).tolist() == [22, 2, -1]
    weights = {name: torch.arange(365.0)}
    assert class_rows(nn.Module(), {}, ('car',), {}, weights) is None


@MODELS.register_module(force=True)
class ToyClassifier(toy.ToyModel):
    """With a layer for the classes, which no loss reaches."""

    def __init__(self, num_classes=2):
        super().__init__()
        self.cls = nn.Linear(2, num_classes)


@pytest.mark.parametrize('match_classes', [None, False])
def test_load_from(tmp_path, match_classes):
    """The names are those of the training data and of the checkpoint."""
    weights = ToyClassifier().state_dict()
    meta = {'dataset_meta': {'classes': ('b', 'a')}}
    path = tmp_path / 'a.pth'
    torch.save({'meta': meta, 'state_dict': weights}, path)
    changes = {} if match_classes is None else {'match_classes': match_classes}
    runner = toy.build(
        tmp_path / 'w',
        model=dict(type='ToyClassifier', num_classes=2),
        load_from=str(path),
        train_cfg=dict(by_epoch=True, max_epochs=1, val_interval=9),
        **changes,
    )
    runner.train()
    order = [0, 1] if match_classes is False else [1, 0]
    state = runner.model.state_dict()
    assert torch.equal(state['cls.weight'], weights['cls.weight'][order])
    assert torch.equal(state['cls.bias'], weights['cls.bias'][order])


@pytest.mark.slow
def test_public_names_of_co_detr():
    """Renamed while they are loaded, and then taken over by class."""
    weights = build_tiny(num_classes=80).state_dict()
    label = 'query_head.dn_generator.label_embedding.weight'
    old = weights.pop(label)
    # As the original project has it.
    weights['query_head.label_embedding.weight'] = old
    model = build_tiny(seed=1, num_classes=3)
    names = ('cell', 'zebra', 'person')
    report = load_weights(
        model,
        weights,
        'public.pth',
        rows=lambda w: class_rows(model, {}, names, {}, w),
    )
    state = model.state_dict()[label]
    assert torch.equal(state[1], old[22])
    assert torch.equal(state[2], old[0])
    assert report.rows.same == ['zebra', 'person']
    assert not report.mismatched
    assert not report.missing
