"""mmext.CoDETR: losses on hard batches, evaluation, settings, loading."""

import copy
from functools import partial
from operator import mul

import pytest
import torch
from helpers.device import needs_device
from helpers.tiny_co_dino import (
    BATCHES,
    NUM_CLASSES,
    build_tiny,
    flat_losses,
    make_batch,
    propose_nothing,
    tiny_model_cfg,
    total_loss,
    training_losses,
    without_gradient,
)
from helpers.torch_versions import cpu_autocast, half_on_cpu, needs_torch
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.registry import MODELS
from mmengine.structures import InstanceData

from mmext.checks import rehearse
from mmext.models.checkpointing.checkpoint import is_checkpointed
from mmext.models.co_dino import co_atss_head
from mmext.models.co_dino import losses as co_losses
from mmext.models.losses import LabelRangeError
from mmext.models.losses.label_range import set_current_batch
from mmext.utils.tensors import wide_type

# Base configs of the model.
BOXES, MASKS = '5scale_r50', '5scale_r50_instance'
VIT = '5scale_vit_l'


@pytest.mark.parametrize(
    ('case', 'base'),
    [(case, BOXES) for case in BATCHES]
    + [(case, MASKS) for case in ('all empty', 'no boxes, no proposals')]
    + [(case, VIT) for case in ('no boxes, no proposals', 'odd size')],
)
def test_every_parameter_learns_from_every_batch(case, base, device) -> None:
    num_boxes, sizes, proposes = BATCHES[case]
    model = build_tiny(base=base).to(device)
    if not proposes:
        propose_nothing(model)
    losses = training_losses(model, make_batch(num_boxes, sizes))
    for name, value in flat_losses(losses).items():
        assert torch.isfinite(value).all(), name
    total_loss(losses).backward()
    assert without_gradient(model) == []


def test_loss_names_are_those_of_the_public_port() -> None:
    losses = flat_losses(training_losses(build_tiny(), make_batch()))
    parts = ['loss_cls', 'loss_bbox', 'loss_iou']
    expected = [f'enc_{part}' for part in parts]
    for prefix in ('', 'd0.'):
        expected += [prefix + part for part in parts]
        expected += [f'{prefix}dn_{part}' for part in parts]
        expected += [
            f'{prefix}{part}_aux{i}' for part in parts for i in (0, 1)
        ]
    expected += ['loss_cls0', 'loss_bbox0', 'acc0']
    for level in range(6):
        expected += [f'loss_rpn_{part}[{level}]' for part in ('cls', 'bbox')]
        expected += [
            f'loss_{part}1[{level}]' for part in ('cls', 'bbox', 'centerness')
        ]
    assert sorted(losses) == sorted(expected)


def test_loss_does_not_change_the_batch() -> None:
    model = build_tiny(mask_policy='canvas')
    data = model.data_preprocessor(make_batch(), True)
    before = copy.deepcopy(data['data_samples'])
    model.train()
    model.loss(data['inputs'], data['data_samples'])
    for sample, old in zip(data['data_samples'], before):
        assert sample.metainfo == old.metainfo
        assert sorted(sample.keys()) == sorted(old.keys())
        torch.testing.assert_close(
            sample.gt_instances.bboxes, old.gt_instances.bboxes
        )
        assert torch.equal(sample.gt_instances.labels, old.gt_instances.labels)


def test_samples_without_a_canvas_are_refused() -> None:
    model = build_tiny(mask_policy='canvas')
    samples = make_batch()['data_samples']
    with pytest.raises(
        ValueError,
        match=r"must carry 'batch_input_shape' .*got metainfo keys "
        r"\['img_shape', .*use DetDataPreprocessor",
    ):
        model.loss(torch.zeros(2, 3, 96, 128), samples)


def test_config_is_not_edited() -> None:
    cfg = tiny_model_cfg()
    before = copy.deepcopy(cfg)
    MODELS.build(cfg)
    assert cfg == before


def test_checkpointed_layers_are_counted_and_logged(
    capsys: pytest.CaptureFixture,
) -> None:
    model = build_tiny(
        backbone={'with_cp': 3},
        query_head={'transformer': {'decoder': {'with_cp': 1}}},
    )
    assert model.checkpointed_layers() == {
        'backbone': (3, 8),
        'encoder': (0, 1),
        'decoder': (1, 2),
    }


def test_with_cp_of_a_backbone_of_ours_and_of_one_without_blocks() -> None:
    cfg = tiny_model_cfg()
    sizes = {'num_heads': 2, 'feedforward_channels': 32}
    cfg['backbone'] = {
        'type': 'mmext.MAEViT',
        'arch': {'embed_dims': 16, 'num_layers': 2, **sizes},
        'img_size': 64,
        'out_type': 'featmap',
        'with_cp': True,
    }
    model = MODELS.build(cfg)
    assert model.checkpointed_layers()['backbone'] == (2, 2)
    assert all(map(is_checkpointed, model.backbone.layers))
    cfg['backbone'] = {'type': 'mmdet.CSPDarknet', 'with_cp': True}
    with pytest.raises(ValueError, match='got True: CSPDarknet has no blocks'):
        MODELS.build(cfg)


@pytest.mark.parametrize('eval_module', ['detr', 'one-stage', 'two-stage'])
def test_detected_boxes_have_masks(eval_module: str) -> None:
    """Those of mmdet's head on them, in the original image."""
    model = build_tiny(base=MASKS, eval_module=eval_module).eval()
    size, scale = (48, 32), (4.0, 2.0)
    batch = make_batch()
    for sample in batch['data_samples']:
        sample.set_metainfo({'ori_shape': size, 'scale_factor': scale})
    data = model.data_preprocessor(batch, False)

    def predict(eval_masks, **more) -> list:
        model.eval_masks = eval_masks
        samples = copy.deepcopy(data['data_samples'])
        with torch.no_grad():
            predicted = model.predict(data['inputs'], samples, **more)
        return [sample.pred_instances for sample in predicted]

    boxes, predicted = predict(False), predict(True)
    for mine, plain in zip(predicted, boxes):
        assert 'masks' not in plain
        torch.testing.assert_close(mine.bboxes, plain.bboxes)
        assert torch.equal(mine.scores, plain.scores)
        assert torch.equal(mine.labels, plain.labels)
    feats = model.query_head.co_feats(
        model.encode(data['inputs'], data['data_samples'])
    )
    with torch.no_grad():
        expected = StandardRoIHead.predict_mask(
            model.roi_head[0],
            feats,
            [{'ori_shape': size, 'scale_factor': scale}] * 2,
            predict(False, rescale=False),
            rescale=True,
        )
    for mine, other in zip(predicted, expected):
        assert mine.masks.shape == (len(mine), *size)
        assert mine.masks.any()
        assert torch.equal(mine.masks, other.masks)


def test_no_detected_box_has_no_mask() -> None:
    model = build_tiny(base=MASKS).eval()
    model.query_head.test_cfg['score_thr'] = 1.0
    data = model.data_preprocessor(make_batch(), False)
    with torch.no_grad():
        predictions = model.predict(data['inputs'], data['data_samples'])
    assert [sample.pred_instances.masks.shape for sample in predictions] == [
        (0, 96, 128),
        (0, 80, 96),
    ]


@pytest.mark.parametrize('eval_module', ['detr', 'one-stage', 'two-stage'])
def test_rescale_gives_pixels_of_the_original_image(eval_module) -> None:
    model = build_tiny(eval_module=eval_module).eval()
    batch = make_batch()
    for sample in batch['data_samples']:
        sample.set_metainfo({'scale_factor': (2.0, 4.0)})
    data = model.data_preprocessor(batch, False)
    with torch.no_grad():
        small, large = (
            [
                sample.pred_instances.bboxes.clone()
                for sample in model.predict(
                    data['inputs'], data['data_samples'], rescale=rescale
                )
            ]
            for rescale in (True, False)
        )
    factor = torch.tensor([2.0, 4.0, 2.0, 4.0])
    for scaled, plain in zip(small, large):
        torch.testing.assert_close(scaled * factor, plain)
    # What the image was before does not matter to the model.
    for sample in data['data_samples']:
        sample.set_metainfo({'scale_factor': (1.0, 1.0)})
    with torch.no_grad():
        same = model.predict(data['inputs'], data['data_samples'])
    for sample, plain in zip(same, large):
        torch.testing.assert_close(sample.pred_instances.bboxes, plain)


@needs_torch(2, 4, why='checkpoints on the meta device')
def test_runs_on_the_meta_device() -> None:
    model = build_tiny().eval().to('meta')
    scores, boxes = model(torch.empty(2, 3, 800, 1333, device='meta'))
    assert scores.shape == (2, 2, 20, NUM_CLASSES)
    assert boxes.shape == (*scores.shape[:-1], 4)
    assert scores.is_meta


@pytest.mark.slow
@pytest.mark.parametrize(
    ('dtype', 'atol'),
    [
        (torch.float64, 1e-5),
        pytest.param(torch.float16, 0.02, marks=half_on_cpu),
        (torch.bfloat16, 0.1),
    ],
)
def test_predicts_in_other_types(dtype: torch.dtype, atol: float) -> None:
    changes = {'query_head': {'nms': None}}
    model = build_tiny(base=MASKS, test_cfg=changes).eval()
    batch = model.data_preprocessor(make_batch(), False)
    inputs, samples = batch['inputs'], batch['data_samples']
    with torch.no_grad():
        expected = model.encode(inputs, samples).memory
        model.to(dtype)
        memory = model.encode(inputs, samples).memory
        predictions = model.test_step(make_batch())
    assert memory.dtype == dtype
    torch.testing.assert_close(memory.float(), expected, atol=atol, rtol=0)
    for sample in predictions:
        instances = sample.pred_instances
        assert len(instances) > 0
        assert instances.scores.dtype == wide_type(memory)
        assert instances.bboxes.dtype == wide_type(memory)
        assert instances.bboxes.isfinite().all()
        assert instances.masks.any()


@half_on_cpu
@pytest.mark.parametrize('eval_module', ['one-stage', 'two-stage'])
def test_co_heads_predict_in_half_precision(eval_module: str) -> None:
    model = build_tiny(eval_module=eval_module).eval().half()
    with torch.no_grad():
        samples = model.test_step(make_batch())
    for sample in samples:
        assert len(sample.pred_instances) > 0
        assert sample.pred_instances.bboxes.isfinite().all()


def test_mask_policy_canvas_ignores_image_sizes() -> None:
    model = build_tiny(mask_policy='canvas').eval()
    data = model.data_preprocessor(make_batch(), False)
    with torch.no_grad():
        scores = model(data['inputs'], data['data_samples'], mode='tensor')
        whole = model(data['inputs'], mode='tensor')
        model.mask_policy = 'valid'
        valid = model(data['inputs'], data['data_samples'], mode='tensor')
    torch.testing.assert_close(scores, whole)
    assert not torch.allclose(valid[0], whole[0])


@pytest.mark.parametrize(
    ('changes', 'has_aux'),
    [
        ({'with_co_queries': False}, False),
        ({'query_head': {'transformer': {'with_coord_feat': True}}}, True),
    ],
)
def test_every_parameter_learns_with_other_queries(changes, has_aux) -> None:
    model = build_tiny(**changes)
    losses = training_losses(model, make_batch())
    assert any('aux' in name for name in losses) == has_aux
    total_loss(losses).backward()
    assert without_gradient(model) == []


def test_several_heads_of_one_kind() -> None:
    cfg = tiny_model_cfg()
    cfg['bbox_head'] = [cfg['bbox_head'], copy.deepcopy(cfg['bbox_head'])]
    model = MODELS.build(cfg)
    model.init_weights()
    losses = training_losses(model, make_batch())
    assert 'loss_centerness2' in losses
    assert 'loss_cls_aux2' in losses
    total_loss(losses).backward()
    assert without_gradient(model) == []


def test_heads_are_optional() -> None:
    cfg = tiny_model_cfg()
    for key in ('rpn_head', 'roi_head', 'bbox_head'):
        cfg.pop(key)
    for settings in ('train_cfg', 'test_cfg'):
        cfg[settings] = {'query_head': cfg[settings]['query_head']}
    model = MODELS.build(cfg)
    model.init_weights()
    losses = training_losses(model, make_batch())
    assert not any('rpn' in name or 'aux' in name for name in losses)
    total_loss(losses).backward()
    # Only auxiliary heads read the extra level.
    assert without_gradient(model) == []


def test_proposals_may_come_with_the_data() -> None:
    cfg = tiny_model_cfg()
    cfg.pop('rpn_head')
    model = MODELS.build(cfg)
    batch = make_batch()
    with pytest.raises(ValueError, match='must carry proposals'):
        training_losses(model, batch)
    for sample in batch['data_samples']:
        sample.proposals = InstanceData(
            bboxes=sample.gt_instances.bboxes + 2.0
        )
    assert 'loss_cls0' in training_losses(model, batch)


@pytest.mark.parametrize('wrapped', [False, True])
def test_loads_names_of_the_original_project(wrapped) -> None:
    state = build_tiny(seed=1).state_dict()
    renamed = dict(state)
    ours = 'query_head.dn_generator.label_embedding.weight'
    renamed['query_head.label_embedding.weight'] = renamed.pop(ours)
    other = target = build_tiny(seed=2)
    if wrapped:
        target = torch.nn.ModuleDict({'module': other})
        renamed = {f'module.{k}': v for k, v in renamed.items()}
    target.load_state_dict(renamed, strict=True)
    for name, value in other.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ('dtype', 'base'),
    [(torch.bfloat16, BOXES), (torch.float16, BOXES), (torch.bfloat16, VIT)],
)
def test_autocast_losses_are_finite_and_close(dtype, base) -> None:
    model = build_tiny(base=base)
    batch = make_batch((3, 0), ((128, 160), (96, 96)))
    totals = []
    for used in (torch.float32, dtype):
        model.zero_grad()
        torch.manual_seed(1)
        with cpu_autocast(used):
            losses = training_losses(model, batch)
        flat = flat_losses(losses)
        assert all(torch.isfinite(value).all() for value in flat.values())
        assert all(v.dtype == torch.float32 for v in flat.values())
        total = total_loss(losses)
        total.backward()
        totals.append(float(total.detach()))
    assert without_gradient(model) == []
    assert totals[1] == pytest.approx(totals[0], rel=0.1)


def test_autocast_gradients_of_one_pixel_maps_are_finite() -> None:
    model = build_tiny()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        losses = training_losses(model, make_batch(sizes=((64, 64),) * 2))
    total_loss(losses).backward()
    assert without_gradient(model) == []


def test_autocast_predicts_float32_boxes() -> None:
    for eval_module in ('detr', 'one-stage', 'two-stage'):
        model = build_tiny(base=MASKS, eval_module=eval_module).eval()
        data = model.data_preprocessor(make_batch(), False)
        with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):
            samples = model.predict(data['inputs'], data['data_samples'])
        assert all(
            sample.pred_instances.bboxes.dtype == torch.float32
            for sample in samples
        )


@needs_device
def test_the_host_waits_in_four_places() -> None:
    """NMS of proposals, RoIs per map, co-queries, costs of the matching."""
    done = rehearse(build_tiny(), make_batch())
    assert sorted(
        place.location.partition(':')[0] for place in done.reads.elements()
    ) == [
        'mmcv/ops/nms.py',
        'models/co_dino/co_roi_head.py',
        'models/co_dino/matching.py',
        'models/co_dino/positives.py',
    ]
    # 12 of the batch, 12 of anchors in the first step, 4 of mmdet's costs.
    assert sum(done.uploads.values()) <= 35, done.uploads


def test_a_label_of_no_class_is_named() -> None:
    # A training that failed in this process leaves the names of its files.
    set_current_batch()
    batch = make_batch()
    batch['data_samples'][1].gt_instances.labels[1] = NUM_CLASSES
    with pytest.raises(
        LabelRangeError,
        match=rf'(?s)gt_instances.*must be in \[0, {NUM_CLASSES - 1}\].*'
        rf'image 1 of the batch.*first {NUM_CLASSES} at \(1\)',
    ):
        training_losses(build_tiny(), batch)


def test_init_cfg_of_the_head_is_obeyed() -> None:
    model = build_tiny(
        query_head={
            'init_cfg': {
                'type': 'Constant',
                'val': 0.25,
                'override': {'name': 'reg_branches'},
            }
        }
    )
    for branch in model.query_head.reg_branches:
        assert (branch[-1].weight == 0.25).all()
    assert not (model.query_head.cls_branches[0].weight == 0.25).any()


def test_proposals_are_ranked_in_float32_under_autocast() -> None:
    """Many of bfloat16's scores are equal, and their order is chance."""
    model = build_tiny()
    data = model.data_preprocessor(make_batch(), False)
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):
        encoded = model.encode(data['inputs'], data['data_samples'])
        proposals = model.query_head.propose(encoded)
    assert proposals.scores.dtype == torch.float32
    best = proposals.scores.max(-1).values
    assert (best.diff(dim=1) <= 0).all()
    rounded = best.bfloat16()
    assert len(best.unique()) > len(rounded.unique())


def test_proposals_of_training_have_their_own_settings() -> None:
    model = build_tiny()
    model.train_cfg.rpn_proposal.max_per_img = 7
    assert model.rpn_head.test_cfg.max_per_img > 7
    data = model.data_preprocessor(make_batch(), True)
    samples = data['data_samples']
    feats = model.query_head.co_feats(model.encode(data['inputs'], samples))
    proposals, _ = model._propose(feats, samples)
    assert proposals.boxes.shape == (2, 7, 4)


@pytest.mark.parametrize('sync', [True, False])
def test_losses_are_divided_by_means_over_the_ranks(sync, monkeypatch) -> None:
    """As if other ranks had more boxes, three times as many on average."""
    results = {}
    for factor in (1, 3):
        for module in (co_losses, co_atss_head):
            monkeypatch.setattr(module, 'reduce_mean', partial(mul, factor))
        torch.manual_seed(0)
        model = build_tiny(query_head={'sync_cls_avg_factor': sync})
        torch.manual_seed(1)
        results[factor] = flat_losses(training_losses(model, make_batch()))
    kept = set()
    for name, value in results[1].items():
        if float(value.detach()) == 0:
            continue
        ratio = float(results[3][name].detach()) / float(value.detach())
        if ratio == pytest.approx(1, rel=1e-4):
            kept.add(name)
        else:
            assert ratio == pytest.approx(1 / 3, rel=1e-4), name
    # The heads of mmdet's kind divide by what the rank has.
    own = {name for name in results[1] if 'rpn' in name}
    own |= {'loss_cls0', 'loss_bbox0', 'acc0'}
    if not sync:
        own |= {
            name
            for name in results[1]
            if name.endswith(('loss_cls', '_aux0', '_aux1'))
            and 'loss_cls' in name
        }
    # A level without positives has 0 in both.
    some = {
        name for name, value in results[1].items() if float(value.detach())
    }
    assert kept == own & some
