"""What is behind ``tools/``: training, testing, inference and pictures."""

from .class_embeddings import make_class_embeddings, save_class_embeddings
from .curves import plot_log
from .detector import load_detector
from .infer import (
    Detections,
    UnreadableImageError,
    infer_images,
    list_images,
)
from .prediction_files import InferReport, infer_to_folder, read_ground_truth
from .runs import prepare_test, prepare_training, run_test, run_training
from .task_pictures import infer_tasks_to_folder, read_task_samples
from .text_encoders import TextEncoder

__all__ = [
    'Detections',
    'InferReport',
    'TextEncoder',
    'UnreadableImageError',
    'infer_images',
    'infer_tasks_to_folder',
    'infer_to_folder',
    'list_images',
    'load_detector',
    'make_class_embeddings',
    'plot_log',
    'prepare_test',
    'prepare_training',
    'read_ground_truth',
    'read_task_samples',
    'run_test',
    'run_training',
    'save_class_embeddings',
]
