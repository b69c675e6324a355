"""What is behind ``tools/``: training, testing, inference and pictures.

Names are imported when they are asked for: a picture of the curves needs no
detector, and a training no text encoder.
"""

from typing import TYPE_CHECKING

from ..utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from .class_embeddings import make_class_embeddings, save_class_embeddings
    from .curves import plot_log
    from .data_configs import NewConfig, new_config
    from .detector import load_detector
    from .export import ExportReport, export_model
    from .exported_models import ExportError
    from .ground_truth import read_ground_truth
    from .infer import (
        Detections,
        Segmentation,
        UnreadableImageError,
        infer_images,
        list_images,
    )
    from .onnx_inference import run_onnx
    from .prediction_files import InferReport, infer_to_folder
    from .pretrained import from_pretrained, save_pretrained
    from .report import ReportMetric, write_report
    from .runs import prepare_test, prepare_training, run_test, run_training
    from .task_pictures import infer_tasks_to_folder, read_task_samples
    from .text_encoders import TextEncoder
    from .views import add_views

__all__ = [
    'Detections',
    'ExportError',
    'ExportReport',
    'InferReport',
    'NewConfig',
    'ReportMetric',
    'Segmentation',
    'TextEncoder',
    'UnreadableImageError',
    'add_views',
    'export_model',
    'from_pretrained',
    'infer_images',
    'infer_tasks_to_folder',
    'infer_to_folder',
    'list_images',
    'load_detector',
    'make_class_embeddings',
    'new_config',
    'plot_log',
    'prepare_test',
    'prepare_training',
    'read_ground_truth',
    'read_task_samples',
    'run_onnx',
    'run_test',
    'run_training',
    'save_class_embeddings',
    'save_pretrained',
    'write_report',
]

__getattr__ = lazy_names(
    __name__,
    {
        'make_class_embeddings': '.class_embeddings',
        'save_class_embeddings': '.class_embeddings',
        'plot_log': '.curves',
        'load_detector': '.detector',
        'ExportReport': '.export',
        'export_model': '.export',
        'ExportError': '.exported_models',
        'Detections': '.infer',
        'Segmentation': '.infer',
        'UnreadableImageError': '.infer',
        'infer_images': '.infer',
        'list_images': '.infer',
        'NewConfig': '.data_configs',
        'new_config': '.data_configs',
        'run_onnx': '.onnx_inference',
        'InferReport': '.prediction_files',
        'infer_to_folder': '.prediction_files',
        'read_ground_truth': '.ground_truth',
        'ReportMetric': '.report',
        'write_report': '.report',
        'from_pretrained': '.pretrained',
        'save_pretrained': '.pretrained',
        'prepare_test': '.runs',
        'prepare_training': '.runs',
        'run_test': '.runs',
        'run_training': '.runs',
        'infer_tasks_to_folder': '.task_pictures',
        'read_task_samples': '.task_pictures',
        'TextEncoder': '.text_encoders',
        'add_views': '.views',
    },
)
