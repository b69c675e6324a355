"""Translation of the public heads and of their train and test settings."""

from dataclasses import dataclass, field
from typing import Any

from ._codetr_transformer import translate_transformer
from ._section import Section, component, same, to_plain, with_host_prefix

__all__ = [
    'Slots',
    'split_slots',
    'translate_assigner',
    'translate_co_head',
    'translate_query_head',
    'translate_rpn_head',
]

_ONLY = 'mmext has no other kind'
_CDN = 'CdnQueryGenerator'


@dataclass(frozen=True)
class Slots:
    """Train or test settings by head, as they stand in the public config.

    Attributes:
        query_head: Settings of the DETR head, or None.
        rpn_head: Settings of the RPN, or None.
        rpn_proposal: How training proposals are picked, or None.
        roi_head: One entry per R-CNN head.
        bbox_head: One entry per ATSS head.
    """

    query_head: dict | None = None
    rpn_head: dict | None = None
    rpn_proposal: dict | None = None
    roi_head: list = field(default_factory=list)
    bbox_head: list = field(default_factory=list)


def split_slots(
    cfg: Any, name: str, *, num_roi: int, num_bbox: int, with_rpn: bool
) -> Slots:
    """Split a positional ``train_cfg`` or ``test_cfg`` by head.

    Args:
        cfg: The public list, or None.
        name: ``'train_cfg'`` or ``'test_cfg'``.
        num_roi: Number of R-CNN heads.
        num_bbox: Number of ATSS heads.
        with_rpn: Whether there is an RPN.

    Returns:
        The settings, copied.

    Raises:
        TypeError: If ``cfg`` is neither a list nor None, or an entry is not a
            dict.
        ValueError: If the entries do not fit the heads, or one has a key that
            no head reads.
    """
    place = f'model.{name}'
    if cfg is None:
        cfg = []
    if not isinstance(cfg, list | tuple):
        raise TypeError(
            f'{place} must be a list, as in the public code, got {cfg!r}'
        )
    if with_rpn and num_bbox and not num_roi and cfg:
        raise ValueError(
            f'{place} must have a slot of its own for the RPN, got an '
            'rpn_head without a roi_head, which the public code cannot '
            'address either; add a roi_head or remove the rpn_head'
        )
    first_bbox = 1 + max(num_roi, int(with_rpn and not num_bbox))
    needed = first_bbox + num_bbox
    slots = [to_plain(entry) for entry in cfg]
    if any(entry is not None for entry in slots[needed:]):
        raise ValueError(
            f'{place} must have {needed} entries for the heads of this '
            f'model, got {len(slots)}; remove those that nothing reads'
        )
    slots += [None] * (needed - len(slots))
    rpn, proposal = None, None
    roi = []
    for index, slot in enumerate(slots[1:first_bbox], 1):
        section = Section(slot or {}, f'{place}[{index}]')
        if index == 1 and with_rpn:
            rpn = section.take('rpn', None)
            proposal = section.take('rpn_proposal', None)
        if index <= num_roi:
            roi.append(section.take('rcnn', None))
        section.close()
    return Slots(slots[0], rpn, proposal, roi, slots[first_bbox:needed])


def translate_assigner(settings: dict | None) -> dict | None:
    """Give a query head's settings the newer form of Hungarian costs.

    mmdet 2.x had ``cls_cost``, ``reg_cost`` and ``iou_cost``; mmdet 3.x has
    the list ``match_costs``.

    Args:
        settings: ``train_cfg`` or ``test_cfg`` of the query head, or None.

    Returns:
        A copy without the old keys.

    Raises:
        ValueError: If old and new keys are mixed, or an old one is missing.

    Examples:
        >>> costs = {f'{name}_cost': {'type': 'C'} for name in
        ...          ('cls', 'reg', 'iou')}
        >>> translate_assigner({'assigner': {'type': 'H', **costs}})
        {'assigner': {'type': 'H', 'match_costs': [{'type': 'C'}, \
{'type': 'C'}, {'type': 'C'}]}}
    """
    if settings is None or 'assigner' not in settings:
        return settings
    assigner = Section(settings['assigner'], 'model.train_cfg[0].assigner')
    old = ('cls_cost', 'reg_cost', 'iou_cost')
    if not any(key in settings['assigner'] for key in old):
        return settings
    costs = [assigner.take(key) for key in old]
    plain = {'type': assigner.take('type'), 'match_costs': costs}
    assigner.close()
    return {**settings, 'assigner': plain}


def _drop_settings(section: Section, train: Any, test: Any) -> None:
    """Take a head's own settings, which must repeat the list's."""
    for key, listed in (('train_cfg', train), ('test_cfg', test)):
        own = section.take(key, None)
        if own is not None and not same(own, listed):
            raise ValueError(
                f'{section.place}.{key} must equal the entry of model.{key}, '
                f'which the public code uses, got {own!r} and {listed!r}; '
                'keep one of them'
            )


def translate_query_head(
    section: Section,
    *,
    train: dict | None,
    test: dict | None,
    num_co_heads: int,
    with_co_queries: bool,
    num_classes: dict[str, int],
) -> dict:
    """Translate ``model.query_head``.

    Args:
        section: The public ``CoDINOHead`` dict; all of it is taken.
        train: Its training settings from the list.
        test: Its test settings from the list.
        num_co_heads: Number of heads in ``roi_head`` and ``bbox_head``.
        with_co_queries: The detector's ``with_pos_coord``.
        num_classes: ``{place: number}``; the head's are added.

    Returns:
        Config of :class:`mmext.models.CoDINOHead`.

    Raises:
        TypeError: If a nested config is not a dict.
        ValueError: If something has no counterpart, or numbers that are
            repeated disagree.
    """
    place = section.place
    section.expect('type', ['CoDINOHead', 'mmdet.CoDINOHead'], remedy=_ONLY)
    _drop_settings(section, train, test)
    num_classes[f'{place}.num_classes'] = section.take('num_classes')
    num_queries = section.take('num_query', 900)
    transformer = translate_transformer(
        section.section('transformer'),
        num_queries=num_queries,
        num_co_heads=num_co_heads,
        with_co_queries=with_co_queries,
    )
    _check_query_head(section, transformer)
    head = {
        'type': 'mmext.CoDINOHead',
        'num_queries': num_queries,
        'max_co_queries': section.take('max_pos_coords', 300),
        'sync_cls_avg_factor': section.take('sync_cls_avg_factor', True),
        'transformer': transformer,
    }
    # A missing encoding has mmdet's temperature, not that of the configs.
    head['positional_encoding'] = component(
        section.take(
            'positional_encoding',
            {
                'type': 'SinePositionalEncoding',
                'num_feats': 128,
                'normalize': True,
            },
        ),
        f'{place}.positional_encoding',
    )
    head['dn_cfg'] = _translate_dn(
        section.section('dn_cfg'),
        num_queries,
        transformer['embed_dims'],
        num_classes,
    )
    for key in ('loss_cls', 'loss_bbox', 'loss_iou'):
        head[key] = component(section.take(key), f'{place}.{key}')
    section.close()
    return head


def _check_query_head(section: Section, transformer: dict) -> None:
    """Take what has only one meaning here."""
    for flag in ('as_two_stage', 'with_box_refine', 'mixed_selection'):
        section.expect(
            flag,
            [True],
            default=True,
            remedy='CO-DINO is defined with it; remove the key',
        )
    section.expect(
        'use_zero_padding',
        [False],
        default=False,
        remedy='mmext pads positives with negatives only',
    )
    section.expect(
        'lambda_1',
        [1, 1.0],
        default=1,
        remedy='mmext has no extra weight for the positive queries',
    )
    section.expect('num_reg_fcs', [2], default=2, remedy=_ONLY)
    section.expect(
        'share_pred_layer',
        [False],
        default=False,
        remedy='every decoder layer has branches of its own',
    )
    section.expect('init_cfg', [None], default=None, remedy=_ONLY)
    # Stored there and never read, whatever it is.
    section.take('in_channels', None)
    for key in ('num_feature_levels', 'embed_dims'):
        section.expect(
            key,
            [transformer[key]],
            default=transformer[key],
            remedy="it repeats the transformer's",
        )


def _translate_dn(
    section: Section,
    num_queries: int,
    embed_dims: int,
    num_classes: dict[str, int],
) -> dict:
    """Translate ``dn_cfg`` of either project."""
    section.expect('type', [_CDN, f'mmdet.{_CDN}'], default=_CDN, remedy=_ONLY)
    classes = section.take('num_classes', None)
    if classes is not None:
        num_classes[f'{section.place}.num_classes'] = classes
    repeated = {
        'num_matching_queries': num_queries,
        'num_queries': num_queries,
        'embed_dims': embed_dims,
        'hidden_dim': embed_dims,
    }
    for key, value in repeated.items():
        section.expect(
            key,
            [value],
            default=value,
            remedy='the head fills it in; remove the key',
        )
    scales = {
        'label_noise_scale': section.take('label_noise_scale', 0.5),
        'box_noise_scale': section.take('box_noise_scale', 1.0),
    }
    old = section.take('noise_scale', None)
    if old is not None:
        noise = Section(old, f'{section.place}.noise_scale')
        scales = {
            'label_noise_scale': noise.take('label'),
            'box_noise_scale': noise.take('box'),
        }
        noise.close()
    group_cfg = section.take('group_cfg')
    section.close()
    return {**scales, 'group_cfg': group_cfg}


def translate_rpn_head(
    section: Section, *, train: dict | None, test: dict | None
) -> dict:
    """Translate ``model.rpn_head``, which is mmdet's own.

    Args:
        section: The public dict; all of it is taken.
        train: Its training settings from the list.
        test: Its test settings from the list.

    Returns:
        The same with prefixed types and without settings.

    Raises:
        ValueError: If the type is not registered, or settings in the head
            differ from the list's.
    """
    _drop_settings(section, train, test)
    return component(section.rest(), section.place)


def translate_co_head(
    section: Section,
    *,
    kind: str,
    train: dict | None,
    test: dict | None,
    num_classes: dict[str, int],
) -> dict:
    """Translate one entry of ``roi_head`` or ``bbox_head``.

    Args:
        section: The public dict; all of it is taken.
        kind: ``'roi_head'`` or ``'bbox_head'``.
        train: Its training settings from the list.
        test: Its test settings from the list.
        num_classes: ``{place: number}``; the head's is added.

    Returns:
        Config of :class:`mmext.models.CoStandardRoIHead` or
        :class:`mmext.models.CoATSSHead`.

    Raises:
        TypeError: If a nested config is not a dict.
        ValueError: If the type or a key has no counterpart, or settings in
            the head differ from the list's.
    """
    name = 'CoStandardRoIHead' if kind == 'roi_head' else 'CoATSSHead'
    section.expect('type', [name, f'mmdet.{name}'], remedy=_ONLY)
    _drop_settings(section, train, test)
    head: dict[str, Any] = {'type': f'mmext.{name}'}
    classes_place = f'{section.place}.num_classes'
    if kind == 'bbox_head':
        num_classes[classes_place] = section.take('num_classes')
        return {**head, **with_host_prefix(section.rest())}
    inner = section.section('bbox_head')
    # 80 is what mmdet's box heads take for a missing number.
    num_classes[f'{inner.place}.num_classes'] = inner.take('num_classes', 80)
    head['bbox_roi_extractor'] = component(
        section.take('bbox_roi_extractor'),
        f'{section.place}.bbox_roi_extractor',
    )
    head['bbox_head'] = component(inner.rest(), inner.place)
    section.expect('init_cfg', [None], default=None, remedy=_ONLY)
    section.close()
    return head
