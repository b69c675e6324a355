"""A small CO-DINO that classifies by class embeddings."""

import torch

from helpers.tiny_co_dino import (
    NUM_CLASSES,
    build_tiny,
    flat_losses,
    total_loss,
    training_losses,
)

DIMS = 16
CLASSIFIER = {'class_embed_dims': DIMS}
AUXILIARY = {**CLASSIFIER, 'mode': 'auxiliary', 'loss_weight': 0.5}
OFF = {**CLASSIFIER, 'mode': 'auxiliary', 'loss_weight': 0}
MODES = {'classifier': CLASSIFIER, 'auxiliary': AUXILIARY, 'off': OFF}
OWN = {
    'class_embed': (32, DIMS),
    'class_embeddings': (NUM_CLASSES, DIMS),
    'class_log_temperature': (1,),
    'class_bias': (1,),
}


def build(head: dict, seed: int = 0, **overrides) -> torch.nn.Module:
    """Build and initialise it.

    Args:
        head: Arguments of the query head.
        seed: Of the weights.
        **overrides: Merged over the config, nested dicts included.
    """
    overrides['query_head'] = {
        'type': 'mmext.CoDINOClassEmbedHead',
        **head,
        **overrides.get('query_head', {}),
    }
    return build_tiny(seed, **overrides)


def step(model: torch.nn.Module, batch: dict, seed: int = 1) -> dict:
    """Losses of a batch, finite, after the backward pass."""
    torch.manual_seed(seed)
    model.zero_grad()
    losses = flat_losses(training_losses(model, batch))
    for name, value in losses.items():
        assert torch.isfinite(value).all(), name
    total_loss(losses).backward()
    return losses
