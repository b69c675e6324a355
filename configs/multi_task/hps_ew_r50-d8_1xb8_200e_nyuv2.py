_base_ = [
    '../_base_/models/multi_task_r50_d8.py',
    '../_base_/datasets/nyuv2_multi_task.py',
    '../_base_/schedules/multi_task_200e.py',
    '../_base_/default_runtime_multi_task.py',
]
