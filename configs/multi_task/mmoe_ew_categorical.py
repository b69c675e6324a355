_base_ = [
    '../_base_/models/multi_task_categorical.py',
    '../_base_/datasets/generated_categorical.py',
    '../_base_/schedules/multi_task_8e.py',
    '../_base_/default_runtime_multi_task.py',
]
