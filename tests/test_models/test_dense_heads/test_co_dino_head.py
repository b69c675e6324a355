"""mmext.CoDINOHead: one decoder pass, groups apart, settings."""

import copy
import math

import pytest
import torch
from mmdet.registry import MODELS
from tiny_co_dino import (
    NUM_CLASSES,
    build_tiny,
    make_batch,
    tiny_model_cfg,
    total_loss,
)

from mmext.models.dense_heads import co_dino_head as module
from mmext.models.dense_heads._co_dino_losses import co_head_losses
from mmext.models.utils.co_positives import make_co_queries


@pytest.fixture(scope='module')
def scene() -> dict:
    """A detector, its encoder output and its auxiliary heads' positives."""
    model = build_tiny().train()
    data = model.data_preprocessor(make_batch(), True)
    with torch.no_grad():
        encoded = model.encode(data['inputs'], data['data_samples'])
        _, positives = model._co_head_losses(
            model.query_head.co_feats(encoded), data['data_samples']
        )
    return {
        'model': model,
        'head': model.query_head,
        'encoded': encoded,
        'samples': data['data_samples'],
        'positives': positives,
    }


def _loss(scene: dict, positives, seed: int = 3) -> dict:
    torch.manual_seed(seed)
    return scene['head'].loss(scene['encoded'], scene['samples'], positives)


def test_one_pass_equals_one_pass_per_group(scene, monkeypatch) -> None:
    head, encoded = scene['head'], scene['encoded']
    made = []
    original = module.make_co_queries

    def remember(*args):
        made.append(original(*args))
        return made[-1]

    monkeypatch.setattr(module, 'make_co_queries', remember)
    fused = _loss(scene, scene['positives'])
    shapes = [sample.img_shape for sample in scene['samples']]
    for i, queries in enumerate(made):
        hidden, references = head.transformer.decode(
            encoded,
            head.transformer.co_queries(queries.boxes, queries.feats, i),
            queries.boxes,
            head.reg_branches,
        )
        layers = co_head_losses(
            head, *head(hidden, references), queries, shapes
        )
        for depth, layer in enumerate(layers):
            prefix = '' if depth == len(layers) - 1 else f'd{depth}.'
            for name, value in layer.items():
                torch.testing.assert_close(
                    fused[f'{prefix}{name}_aux{i}'],
                    value,
                    rtol=1e-5,
                    atol=1e-5,
                )
    assert len(made) == 2


def test_co_queries_do_not_touch_the_other_losses(scene, monkeypatch) -> None:
    def first_negatives(*args):
        # No draw from the generator, which denoising reads next.
        state = torch.get_rng_state()
        queries = make_co_queries(*args)
        torch.set_rng_state(state)
        return queries

    monkeypatch.setattr(module, 'make_co_queries', first_negatives)
    alone = _loss(scene, ())
    together = _loss(scene, scene['positives'])
    assert set(alone) < set(together)
    for name, value in alone.items():
        torch.testing.assert_close(
            together[name], value, rtol=1e-5, atol=1e-6, msg=name
        )


def test_the_decoder_runs_once(scene, monkeypatch) -> None:
    decoder = scene['head'].transformer.decoder
    calls = []
    plain = type(decoder).forward

    def counted(self, *args, **kwargs):
        calls.append(args[0].shape[1])
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(decoder), 'forward', counted)
    losses = _loss(scene, scene['positives'])
    assert len(calls) == 1
    assert calls[0] > 20 + 9 + 9
    assert len(losses) == 3 * (1 + 2 + 2 + 2 * 2)


def test_proposals_are_the_best_scored_tokens(scene) -> None:
    head, encoded = scene['head'], scene['encoded']
    with torch.no_grad():
        proposals = head.propose(encoded)
    best = proposals.scores.max(-1).values
    assert proposals.boxes.shape == (2, 20, 4)
    assert (best.diff(dim=1) <= 0).all()
    assert not proposals.references.requires_grad
    assert ((proposals.boxes >= 0) & (proposals.boxes <= 1)).all()


def test_forward_adds_the_offset_in_logit_space(scene) -> None:
    head = scene['head']
    hidden = torch.randn(2, 1, 3, 32)
    references = [torch.full((1, 3, 4), 0.3)] * 3
    with torch.no_grad():
        scores, boxes = head(hidden, references)
        offset = head.reg_branches[1](hidden[1])
        expected = (offset + math.log(0.3 / 0.7)).sigmoid()
        torch.testing.assert_close(boxes[1], expected)
        torch.testing.assert_close(scores[0], head.cls_branches[0](hidden[0]))


def test_co_feats_are_the_memory_and_a_coarser_level(scene) -> None:
    head, encoded = scene['head'], scene['encoded']
    maps = head.co_feats(encoded)
    assert len(maps) == 6
    assert [tuple(m.shape[-2:]) for m in maps[:5]] == encoded.shapes
    height, width = encoded.shapes[0]
    torch.testing.assert_close(
        maps[0][1, :, 2, 3], encoded.memory[1, 2 * width + 3]
    )
    assert all(m.is_contiguous() for m in maps[:5])
    assert height * width < encoded.memory.shape[1]


def test_label_embedding_learns_even_without_boxes(scene) -> None:
    model = scene['model']
    data = model.data_preprocessor(make_batch((0, 0)), True)
    encoded = model.encode(data['inputs'], data['data_samples'])
    losses = model.query_head.loss(encoded, data['data_samples'])
    model.zero_grad()
    total_loss(losses).backward()
    grad = model.query_head.dn_generator.label_embedding.weight.grad
    assert grad is not None
    assert float(grad.abs().sum()) == 0


def test_softmax_classification_trains_and_predicts() -> None:
    model = build_tiny(
        query_head={
            'loss_cls': {
                '_delete_': True,
                'type': 'mmdet.CrossEntropyLoss',
                'use_sigmoid': False,
            }
        },
        train_cfg={
            'query_head': {
                'assigner': {
                    'type': 'mmdet.HungarianAssigner',
                    'match_costs': [
                        {'type': 'mmdet.ClassificationCost', 'weight': 1.0}
                    ],
                }
            }
        },
    )
    data = model.train().data_preprocessor(make_batch(), True)
    losses = model.loss(data['inputs'], data['data_samples'])
    assert torch.isfinite(total_loss(losses))
    model.eval()
    with torch.no_grad():
        samples = model.predict(data['inputs'], data['data_samples'])
    assert samples[0].pred_instances.labels.max() < NUM_CLASSES


def test_arguments_are_not_edited() -> None:
    cfg = {
        k: v
        for k, v in tiny_model_cfg()['query_head'].items()
        if k != '_scope_'
    }
    cfg['num_classes'] = NUM_CLASSES
    before = copy.deepcopy(cfg)
    MODELS.build(cfg)
    assert cfg == before


@pytest.mark.parametrize('key', ['num_queries', 'num_co_heads'])
def test_rejects_a_number_that_the_head_sets(key: str) -> None:
    cfg = {**tiny_model_cfg()['query_head'], 'num_classes': NUM_CLASSES}
    cfg['transformer'] = {**cfg['transformer'], key: 3}
    with pytest.raises(ValueError, match=f'must not be given {key}'):
        MODELS.build(cfg)


def test_rejects_another_width_of_the_encoding() -> None:
    cfg = {**tiny_model_cfg()['query_head'], 'num_classes': NUM_CLASSES}
    cfg['positional_encoding'] = {**cfg['positional_encoding'], 'num_feats': 3}
    with pytest.raises(ValueError, match='must be 16, half of'):
        MODELS.build(cfg)
