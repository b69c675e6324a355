_base_ = [
    '../_base_/models/segformer_mit_b0.py',
    '../_base_/datasets/ade20k_semantic.py',
    '../_base_/schedules/semantic_adamw_160k.py',
    '../_base_/default_runtime_semantic.py',
]

train_dataloader = dict(batch_size=2)
