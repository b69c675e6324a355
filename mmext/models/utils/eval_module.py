"""Which head of a CO-DETR detects in evaluation."""

__all__ = ['EVAL_MODULES', 'check_eval_module']

EVAL_MODULES = ('detr', 'one-stage', 'two-stage')


def check_eval_module(
    eval_module: str,
    eval_index: int,
    *,
    num_roi_heads: int,
    num_bbox_heads: int,
    has_rpn: bool,
    has_test_classes: bool = False,
) -> None:
    """Refuse a head that is not there.

    Args:
        eval_module: ``'detr'``, ``'one-stage'`` or ``'two-stage'``.
        eval_index: Which of several auxiliary heads; unused for ``'detr'``.
        num_roi_heads: Two-stage heads of the detector.
        num_bbox_heads: One-stage heads of the detector.
        has_rpn: Whether the detector proposes for its two-stage heads.
        has_test_classes: Whether the query head is given other classes for
            evaluation, which no other head can predict.

    Raises:
        ValueError: If ``eval_module`` is unknown, ``eval_index`` names no
            head, a two-stage head has no proposals, or another head than the
            query head shall predict other classes than those of the training.
    """
    if eval_module not in EVAL_MODULES:
        raise ValueError(
            f'eval_module must be one of {EVAL_MODULES}, got {eval_module!r}'
        )
    if eval_module == 'detr':
        return
    if has_test_classes:
        raise ValueError(
            "eval_module must be 'detr' with test_cfg.query_head."
            f'class_embeddings, got {eval_module!r}; remove one of them'
        )
    one_stage = eval_module == 'one-stage'
    count = num_bbox_heads if one_stage else num_roi_heads
    if not 0 <= eval_index < count:
        name = 'bbox_head' if one_stage else 'roi_head'
        raise ValueError(
            f'eval_index must be one of the {count} {name}(s) for '
            f'eval_module={eval_module!r}, got {eval_index}'
        )
    if not one_stage and not has_rpn:
        raise ValueError(
            "rpn_head must be given for eval_module='two-stage', got None"
        )
