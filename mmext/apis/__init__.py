"""What is behind ``tools/``: training, testing, inference and pictures."""

from .class_embeddings import make_class_embeddings, save_class_embeddings
from .class_names import read_config_classes
from .curves import plot_log
from .detector import load_detector
from .images import list_images
from .infer import Detections, UnreadableImageError, infer_images
from .infer_to_folder import InferReport, infer_to_folder
from .samples import read_ground_truth
from .scalars import read_scalars
from .test import prepare_test, run_test
from .text_encoders import TextEncoder, build_text_encoder
from .train import prepare_training, run_training

__all__ = [
    'Detections',
    'InferReport',
    'TextEncoder',
    'UnreadableImageError',
    'build_text_encoder',
    'infer_images',
    'infer_to_folder',
    'list_images',
    'load_detector',
    'make_class_embeddings',
    'plot_log',
    'prepare_test',
    'prepare_training',
    'read_config_classes',
    'read_ground_truth',
    'read_scalars',
    'run_test',
    'run_training',
    'save_class_embeddings',
]
