"""mmext.CoDINOClassEmbedHead: settings, files, loading and copying."""

import pytest
import torch
from helpers.tiny_class_embed import (
    AUXILIARY,
    CLASSIFIER,
    DIMS,
    OWN,
    build,
    step,
)
from helpers.tiny_co_dino import (
    NUM_CLASSES,
    build_tiny,
    make_batch,
    tiny_model_cfg,
    without_gradient,
)
from mmdet.registry import MODELS
from torch.nn.functional import normalize

from mmext.engine import load_weights
from mmext.models.co_dino import class_embeddings as class_vocabulary


@pytest.fixture
def file(tmp_path):
    """Embeddings of the training's classes."""
    path = tmp_path / 'embeddings.pt'
    content = {
        'class_embeddings': torch.randn(NUM_CLASSES, DIMS),
        'classes': list('abcde'),
    }
    torch.save(content, path)
    return str(path)


@pytest.fixture
def told(monkeypatch):
    """Lines that loading logs."""
    lines = []
    monkeypatch.setattr(
        class_vocabulary, 'print_log', lambda text, **_: lines.append(text)
    )
    return lines


def test_file_gives_classes_and_dimensions(file):
    model = build({'class_embeddings': file})
    head = model.query_head
    expected = torch.load(file)['class_embeddings']
    torch.testing.assert_close(
        head.class_embeddings, normalize(expected, dim=1)
    )
    assert 'class_embeddings' in dict(head.named_buffers())
    assert head.class_embed.shape == (32, DIMS)
    assert 'query_head.class_embeddings' in model.state_dict()
    assert head.class_vocabulary(True).classes == tuple('abcde')
    before = head.class_embeddings.clone()
    head.init_weights()
    step(model, make_batch())
    assert without_gradient(model) == []
    assert torch.equal(head.class_embeddings, before)


@pytest.mark.parametrize(
    ('head', 'match'),
    [
        ({'mode': 'both'}, "mode must be one of .* got 'both'"),
        ({'loss_weight': 0.5}, "is for mode='auxiliary', got 0.5"),
        ({'mode': 'auxiliary', 'loss_weight': -1}, 'at least 0, got -1'),
        (
            {'mode': 'auxiliary', 'loss_weight': float('nan')},
            'at least 0, got nan',
        ),
        ({'class_embed_dims': 0}, 'class_embed_dims must be at least 1'),
        (
            {
                'loss_cls': {
                    '_delete_': True,
                    'type': 'mmdet.CrossEntropyLoss',
                    'use_sigmoid': False,
                }
            },
            'loss_cls must have use_sigmoid=True',
        ),
    ],
)
def test_rejects_settings(head, match):
    with pytest.raises(ValueError, match=match):
        build(head)


def test_rejects_a_file_that_does_not_fit(file, tmp_path):
    with pytest.raises(ValueError, match='num_classes=4 rows, got 5'):
        build({'class_embeddings': file}, num_classes=4)
    with pytest.raises(ValueError, match='must be 16, the dimensions of'):
        build({'class_embeddings': file, 'class_embed_dims': 512})
    with pytest.raises(FileNotFoundError, match=r'got .*none\.npy'):
        build({'class_embeddings': str(tmp_path / 'none.npy')})


def test_initial_values_without_init_weights():
    """Never uninitialised memory, and what the class documents."""
    torch.manual_seed(0)
    cfg = tiny_model_cfg(
        query_head={'type': 'mmext.CoDINOClassEmbedHead', 'mode': 'auxiliary'}
    )
    head = MODELS.build(cfg).query_head
    for name, value in head.state_dict().items():
        assert value.isfinite().all(), name
    assert head.class_embed.shape == (32, 512)
    assert float(head.class_log_temperature.exp()) == pytest.approx(1 / 0.07)
    assert float(head.class_bias.sigmoid()) == pytest.approx(0.01)


def test_a_plain_checkpoint_loads_and_the_log_says_what_did_not():
    plain = build_tiny()
    weights = {'state_dict': plain.state_dict()}
    model = build(CLASSIFIER, seed=3)
    before = {
        name: model.query_head.get_parameter(name).clone() for name in OWN
    }
    report = load_weights(model, weights, 'plain.pth')
    assert sorted(report.missing) == sorted(f'query_head.{n}' for n in OWN)
    assert sorted(report.unexpected) == sorted(
        f'query_head.cls_branches.{i}.{name}'
        for i in range(3)
        for name in ('weight', 'bias')
    )
    text = str(report)
    for name in OWN:
        assert f'query_head.{name}' in text
        assert torch.equal(model.query_head.get_parameter(name), before[name])
    assert '6 of the checkpoint are not in the model (query_head.cls_' in text
    auxiliary = load_weights(build(AUXILIARY), weights, 'plain.pth')
    assert auxiliary.missing == report.missing
    assert list(auxiliary.unexpected) == []


def test_state_dict_round_trip(file, told):
    learned = build(CLASSIFIER, seed=1)
    given = build({'class_embeddings': file}, seed=1)
    for source in (learned, given):
        state = source.state_dict()
        # A checkpoint holds its embeddings: no file is needed to use it.
        target = build(CLASSIFIER, seed=2)
        target.load_state_dict(state, strict=True)
        for name, value in target.state_dict().items():
            assert torch.equal(value, state[name]), name
    build({'class_embeddings': file}).load_state_dict(given.state_dict())
    assert told == []
    ruled = build({'class_embeddings': file}, seed=2)
    ruled.load_state_dict(learned.state_dict(), strict=True)
    assert torch.equal(
        ruled.query_head.class_embeddings, given.query_head.class_embeddings
    )
    assert len(told) == 1
    assert f'the config names {file}' in told[0]


def test_a_file_rules_over_a_checkpoint_with_other_classes(file, told):
    other = build({'class_embed_dims': DIMS}, num_classes=3)
    model = build({'class_embeddings': file})
    report = load_weights(model, {'state_dict': other.state_dict()}, 'x.pth')
    # What else depends on the number of classes is listed as ever.
    assert not any('class_embed' in line for line in report.mismatched)
    assert report.mismatched
    assert '(5, 16)' in told[0]
    assert '(3, 16)' in told[0]
