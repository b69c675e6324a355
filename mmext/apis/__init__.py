"""What is behind ``tools/``: training, testing, inference and pictures.

Names are imported when they are asked for: a picture of the curves needs no
detector, and a training no text encoder.
"""

from typing import TYPE_CHECKING

from ..utils import lazy_names, names_for_type_checkers

if TYPE_CHECKING:
    from .class_embeddings import TextEncoder as TextEncoder
    from .class_embeddings import (
        make_class_embeddings as make_class_embeddings,
    )
    from .class_embeddings import (
        save_class_embeddings as save_class_embeddings,
    )
    from .curves import plot_log as plot_log
    from .data_configs import NewConfig as NewConfig
    from .data_configs import new_config as new_config
    from .detector import load_detector as load_detector
    from .drawing import read_ground_truth as read_ground_truth
    from .drawing import read_task_samples as read_task_samples
    from .export.export import ExportReport as ExportReport
    from .export.export import export_model as export_model
    from .export.exported_models import ExportError as ExportError
    from .export.onnx_inference import run_onnx as run_onnx
    from .infer import Detections as Detections
    from .infer import Reconstruction as Reconstruction
    from .infer import Segmentation as Segmentation
    from .infer import TaskPredictions as TaskPredictions
    from .infer import UnreadableImageError as UnreadableImageError
    from .infer import infer_images as infer_images
    from .infer import list_images as list_images
    from .prediction_files import InferReport as InferReport
    from .prediction_files import infer_to_folder as infer_to_folder
    from .pretrained import Predictor as Predictor
    from .pretrained import from_pretrained as from_pretrained
    from .pretrained import save_pretrained as save_pretrained
    from .report.metric import ReportMetric as ReportMetric
    from .report.metric import write_report as write_report
    from .runs import prepare_test as prepare_test
    from .runs import prepare_training as prepare_training
    from .runs import run_test as run_test
    from .runs import run_training as run_training
    from .views import add_views as add_views

_HOMES = names_for_type_checkers(__file__)
__all__ = [*_HOMES]
__getattr__ = lazy_names(__name__, _HOMES)
