_base_ = [
    '../_base_/models/multi_task_r18_small.py',
    '../_base_/datasets/scenes_multi_task.py',
    '../_base_/schedules/multi_task_8e.py',
    '../_base_/default_runtime_multi_task.py',
]
