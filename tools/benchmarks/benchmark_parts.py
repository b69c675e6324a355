"""What benchmarks of whole training steps share: a model, a batch, a clock."""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median

import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData
from torch import nn


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'must be at least 1, got {text}')
    return number


def build_model(config: str, device: torch.device) -> nn.Module:
    """The detector of a config, in training mode, with random weights."""
    cfg = Config.fromfile(config)
    if 'model' not in cfg:
        raise ValueError(f'config must have a model, got none in {config!r}')
    init_default_scope('mmdet')
    torch.manual_seed(0)
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model)
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('WARNING')  # else a line for each parameter
    model.init_weights()
    logger.setLevel(level)
    return model.to(device).train()


def random_batch(
    size: int, num_boxes: int, num_classes: int, seed: int = 0
) -> dict:
    """One image of noise with boxes, as a data loader gives it."""
    random = torch.Generator().manual_seed(seed)
    start = torch.rand(num_boxes, 2, generator=random) * 0.5
    extent = 0.1 + torch.rand(num_boxes, 2, generator=random) * 0.4
    labels = torch.randint(num_classes, (num_boxes,), generator=random)
    image = torch.randint(0, 256, (3, size, size), generator=random)
    shape = (size, size)
    sample = DetDataSample(
        metainfo={
            'img_shape': shape,
            'ori_shape': shape,
            'scale_factor': (1.0, 1.0),
        }
    )
    sample.gt_instances = InstanceData(
        bboxes=torch.cat((start, start + extent), 1) * size, labels=labels
    )
    sample.ignored_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    return {'inputs': [image.to(torch.uint8)], 'data_samples': [sample]}


def median_seconds(
    runs: Sequence[Callable[[], object]],
    repeats: int,
    device: torch.device,
    *,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median duration of each run, all of them in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, record in zip(runs, times):
            before()
            synchronize(device)
            start = clock()
            run()
            synchronize(device)
            record.append(clock() - start)
    return [median(record) for record in times]


def synchronize(device: torch.device) -> None:
    """Wait for what runs on a device."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def cuda_waits(run: Callable[[], object]) -> list[str]:
    """File and line of each place where the host waits for CUDA in a run."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode('warn')
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            run()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return [
        f'{item.filename}:{item.lineno}'
        for item in caught
        if 'synchroniz' in str(item.message)
    ]
