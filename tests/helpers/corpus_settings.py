"""Wrong settings that a run ends with, where its message names no setting."""

from helpers.corpus_bases import parse_cases

# Written as those of corpus_detection; none of them was reported by a user.
_TEXT = r"""
== neck_of_another_depth retina own
~ set model\.neck\.in_channels=\[4, 8, 16, 32\]
model = dict(neck=dict(in_channels=[16, 32, 64, 128]))
--
model = dict(neck=dict(in_channels=[4, 8, 16, 32]))

== weights_of_mask2former mask2former own
~ set \S+class_weight=\[1\.0, 1\.0, 1\.0, 1\.0, 1\.0, 1\.0, 0\.1\]
model = dict(panoptic_head=dict(loss_cls=dict(class_weight=[1.0]*80+[0.1])))
--
model = dict(panoptic_head=dict(loss_cls=dict(class_weight=[1.0]*6+[0.1])))

== five_frozen_stages retina own
~ set model\.backbone\.frozen_stages=4
model = dict(backbone=dict(frozen_stages=5))
--
model = dict(backbone=dict(frozen_stages=4))

== keys_are_numbers retina own
~ set \S+custom_keys=\{'0':
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={0: dict(lr_mult=0.1)}))
--
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'0': dict(lr_mult=0.1)}))

== rate_is_text retina own
~ set optim_wrapper\.optimizer\.lr=0\.01
optim_wrapper = dict(optimizer=dict(lr='0.01'))
--
optim_wrapper = dict(optimizer=dict(lr=0.01))

== rate_is_a_tuple retina own
~ set optim_wrapper\.optimizer\.lr=0\.01
optim_wrapper = dict(optimizer=dict(lr=(0.01,)))
--
optim_wrapper = dict(optimizer=dict(lr=0.01))

== queries_are_text dino own
~ set model\.num_queries=60
model = dict(num_queries='60')
--
model = dict(num_queries=60)

== five_levels_of_four dino own
~ set model\.neck\.num_outs=4
model = dict(neck=dict(num_outs=5))
--
model = dict(neck=dict(num_outs=4))

== instances_without_masks rtmdet_ins own
~ set train_dataloader\S+\.with_mask=True
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== packed_by_another_host retina own
~ set train_dataloader\S+\.type='mmdet\.PackDetInputs'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='mmseg.PackSegInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== scale_of_another_name retina own
~ GradScaler takes no argument init.*rename it to init_scale
optim_wrapper = dict(type='AmpOptimWrapper', loss_scale=dict(init=512.))
--
optim_wrapper = dict(type='OptimWrapper')

== groups_do_not_divide retina own
~ set model\.bbox_head\.norm_cfg\.num_groups=[24]
model = dict(bbox_head=dict(
    conv_cfg=None, norm_cfg=dict(type='GN', num_groups=3)))
--
model = dict(bbox_head=dict(
    conv_cfg=None, norm_cfg=dict(type='GN', num_groups=4)))

== heads_do_not_divide dino own
~ set \S+self_attn_cfg\.num_heads=8
model = dict(encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_heads=7))))
--
model = dict(encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_heads=8))))

== stage_beyond_the_last retina own
~ correct model\.backbone\.out_indices
model = dict(backbone=dict(out_indices=(1, 2, 3, 4)))
--
model = dict(backbone=dict(out_indices=(0, 1, 2, 3)))

== map_beyond_the_last psp own
~ set model\.decode_head\.in_index=3
model = dict(decode_head=dict(in_index=4))
--
model = dict(decode_head=dict(in_index=3))

== one_map_for_several psp own
~ correct model\.decode_head\.in_channels
model = dict(decode_head=dict(
    input_transform='resize_concat', in_index=[2, 3]))
--
model = dict(decode_head=dict(in_index=3))

== depth_of_nothing retina own
~ set model\.backbone\.depth=18.*may be 18, 34, 50
model = dict(backbone=dict(depth=19))
--
model = dict(backbone=dict(depth=18))

== milestone_is_a_number retina own
~ set param_scheduler\[0\]\.milestones=\[8\]
param_scheduler = [dict(type='MultiStepLR', end=12, milestones=8, gamma=0.1)]
--
param_scheduler = [dict(type='MultiStepLR', end=12, milestones=[8], gamma=0.1)]

== one_beta_of_two retina own
~ set optim_wrapper\.optimizer\.betas=\(0\.9, 0\.999\)
optim_wrapper = dict(optimizer=dict(
    _delete_=True, type='AdamW', lr=1e-4, betas=0.9))
--
optim_wrapper = dict(optimizer=dict(
    _delete_=True, type='AdamW', lr=1e-4, betas=(0.9, 0.999)))

== ratio_is_a_number retina own
~ set \S+anchor_generator\.ratios=\[1\.0\]
model = dict(bbox_head=dict(anchor_generator=dict(ratios=1.0)))
--
model = dict(bbox_head=dict(anchor_generator=dict(ratios=[1.0])))

== three_deviations_of_four faster own
~ set \S+target_stds=\[0\.1, 0\.1, 0\.2, 0\.2\]
model = dict(rpn_head=dict(bbox_coder=dict(target_stds=[0.1, 0.1, 0.2])))
--
model = dict(rpn_head=dict(bbox_coder=dict(target_stds=[0.1, 0.1, 0.2, 0.2])))

== direction_of_nothing retina own
~ set train_dataloader\S+\.direction='horizontal'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5, direction='left'),
    dict(type='PackDetInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackDetInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== batch_is_text retina own
~ batch_size should be a positive integer
train_dataloader = dict(batch_size='2')
--
train_dataloader = dict(batch_size=2)

== epochs_are_text retina own
~ correct train_cfg\.max_epochs
train_cfg = dict(max_epochs='12')
--
train_cfg = dict(max_epochs=12)
"""

CASES = parse_cases(_TEXT)
