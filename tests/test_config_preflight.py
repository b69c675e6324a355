"""Every config of ours is sound on several devices, by its own preflight."""

from pathlib import Path

import pytest
from helpers import reduce_config, reduce_semantic_config
from helpers.device import assert_trained, take_first_step
from mmengine import Config

from mmext.checks import check_config
from mmext.checks.findings import Severity

FOLDER = Path(__file__).resolve().parents[1] / 'configs'
NAMES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.glob('*/*.py')
    # Those of several tasks: test_multi_task_configs.py.
    if path.parent.name not in ('_base_', 'multi_task')
)
# Times that the host waits for a GPU in a step, where a head of mmdet makes it
# more than two; they may only shrink.
READS = {
    'mae/mae_vit_mini_retinanet_shapes.py': 43,
    'retinanet/retinanet_r50_fpn_cp_8xb2_1x_coco.py': 43,
}
# Models that differ from another one in numbers alone.
ALIKE = {
    'co_deformable_detr/co_deformable_detr_swin_b_8xb2_1x_coco.py',
    'co_deformable_detr/co_deformable_detr_swin_l_8xb2_1x_coco.py',
    'co_deformable_detr/co_deformable_detr_swin_s_8xb2_1x_coco.py',
    'co_deformable_detr/co_deformable_detr_swin_t_8xb2_1x_coco.py',
    'co_dino/co_dino_5scale_r50_8xb2_1x_coco.py',
    'co_dino/co_dino_5scale_r50_8xb2_3x_coco.py',
    'co_dino/co_dino_5scale_r50_bccd.py',
    'co_dino/co_dino_5scale_r50_lsj_8xb2_1x_coco.py',
    'co_dino/co_dino_5scale_swin_l_16xb1_1x_coco.py',
    'co_dino/co_dino_5scale_swin_l_lsj_16xb1_1x_coco.py',
    'co_dino/co_dino_5scale_swin_t_8xb2_1x_coco.py',
    'co_dino/co_dino_class_embed_r18_bccd.py',
    'co_dino/co_dino_r18_bccd.py',
    'pidnet/pidnet_l_2xb6_120k_cityscapes.py',
    'pidnet/pidnet_m_2xb6_120k_cityscapes.py',
}
DRY_RUN = [name for name in NAMES if name not in ALIKE]
QUICK = ('mae/mae_vit_mini_shapes.py', 'pidnet/pidnet_small_shapes.py')
# Takes a minute and a half; others have the same parts in other combinations.
EXHAUSTIVE = (
    'co_dino/co_dino_5scale_r50_lsj_8xb2_1x_lvis.py',
    'co_dino/co_dino_5scale_swin_l_16xb1_16e_o365tococo.py',
    'co_dino/co_dino_5scale_swin_l_lsj_16xb1_16e_o365tolvis.py',
    'co_dino/co_dino_5scale_swin_l_lsj_16xb1_3x_coco.py',
    'co_dino/co_dino_5scale_swin_l_lsj_16xb1_3x_lvis.py',
    'co_dino/co_dino_5scale_vit_l_16xb1_1x_coco.py',
    'co_dino/co_dino_5scale_vit_l_instance_16xb1_1x_coco.py',
    'co_dino/co_dino_5scale_vit_l_lsj_16xb1_16e_lvis.py',
)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """What keeps the dry run of a config out of the default tests."""
    marks = [] if name in QUICK else [pytest.mark.slow]
    if name in EXHAUSTIVE:
        marks.append(pytest.mark.exhaustive)
    return marks


def reduced(name: str) -> Config:
    """The config with a small model of the same structure."""
    cfg = Config.fromfile(FOLDER / name)
    if name.startswith('retinanet/'):
        cfg.model.backbone.update(depth=18, base_channels=8, stem_channels=8)
        cfg.model.neck.in_channels = [8, 16, 32, 64]
        return cfg
    if name.startswith('mae/'):
        return reduced_mae(cfg)
    part = reduce_semantic_config
    if name.startswith(('co_dino/', 'co_deformable_detr/')):
        part = reduce_config
    cfg.model = part.reduce_model(cfg.to_dict()['model'])
    if part is reduce_config:
        # Masks of a thousand objects take long.
        cfg.model.test_cfg.query_head.max_per_img = 20
    return cfg


def reduced_mae(cfg: Config) -> Config:
    """The same pre-training, or what follows it, of a small encoder."""
    cfg.model.backbone.arch = 'mini'
    cfg.model.backbone.pop('init_cfg', None)
    if cfg.model.type == 'mmext.MAE':
        cfg.model.neck.update(
            embed_dim=96, decoder_embed_dim=48, decoder_num_heads=3
        )
    elif 'base' in cfg.filename:
        cfg.model = reduce_semantic_config.reduce_model(cfg.to_dict()['model'])
        cfg.model.neck.update(embed_dim=96, norm_cfg=dict(type='BN'))
    return cfg


@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=marks_of(name)) for name in DRY_RUN]
)
def test_is_clean(name):
    report = check_config(
        reduced(name),
        batches=('normal', 'empty'),
        image_size=(96, 96),
        labels=False,
    )
    # The reduced models load no weights, freeze layers, and pad to 96 pixels.
    errors = {f.rule for f in report.findings if f.severity == Severity.ERROR}
    assert errors <= {'CKPT010', 'NORM003'}
    assert any('in small: two iterations' in note for note in report.notes)
    kinds = {batch.kind: batch.steps for batch in report.batches}
    if report.task == 'pretraining':
        assert kinds == {'normal': 2}
    else:
        assert kinds == {'normal': 2, 'empty': 1}
    (row,) = [row for row in report.verdicts.rows if row.current]
    assert row.works


@pytest.mark.parametrize(
    'name', [name for name in NAMES if name.startswith(('mae/', 'retinanet/'))]
)
def test_trains_a_step(name):
    """On a device that does not mix with the host, where there is one."""
    done = take_first_step(reduced(name), (96, 96))
    assert_trained(done, READS.get(name, 2), most_loss=100)


def test_all_are_there():
    assert len(NAMES) >= 26
    assert {*QUICK, *EXHAUSTIVE} <= set(DRY_RUN)
    tried = {
        name: reduce_config.settings_of(
            Config.fromfile(FOLDER / name).to_dict()['model']
        )
        for name in NAMES
    }
    others = [tried[name] for name in DRY_RUN]
    assert [n for n in sorted(ALIKE) if tried[n] not in others] == []
