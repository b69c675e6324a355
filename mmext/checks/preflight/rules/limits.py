"""Numbers of objects that a model can output, and that it is to output."""

from collections.abc import Iterator, Mapping, Sequence

from ...config import ConfigNode, Steps, join_key
from ...findings import Finding, Severity
from .registry import HEAD, new_finding
from .subject import Subject, as_mapping, change

# Queries of a model, and predictions of an image that are kept.
_QUERIES = ('num_queries', 'num_proposals')
_KEPT = ('max_per_img', 'max_per_image')
# Part of the objects that a limit may cost without being wrong.
_FEW = 0.01

HEAD009 = HEAD.declare(
    'HEAD009',
    title='images have more objects than the model can output',
    severity=Severity.WARNING,
    remedy='set the limit above the most objects of an image',
    scope='part',
)


def object_findings(
    subject: Subject, counts: Mapping[str, Sequence[int]]
) -> Iterator[Finding]:
    """Limits of the model that images of the data exceed.

    ``counts`` are the objects of each image of a split, as far as known.
    """
    for path, limit in _limits(subject):
        splits = ['val']
        if counts.get('test') != counts.get('val'):
            splits.append('test')
        if path[-1] in _QUERIES:
            # A query is matched with at most one object.
            splits.insert(0, 'train')
        texts, lost = [], 0.0
        for split in splits:
            own = counts.get(split, ())
            more = [count for count in own if count > limit]
            if more:
                over = sum(more) - limit * len(more)
                lost = max(lost, over / sum(own))
                texts.append(
                    f'{len(more)} of {len(own)} images of {split}_dataloader '
                    f'have more objects, up to {max(more)}'
                )
        if texts:
            yield HEAD009.finding(
                f'{path[-1]} is {limit}, and {"; ".join(texts)}: at least '
                f'{lost:.1%} of the objects are missed',
                key=join_key(path),
                severity=Severity.WARNING if lost >= _FEW else Severity.INFO,
            )


def _limits(subject: Subject) -> Iterator[tuple[Steps, int]]:
    """Keys that limit how many objects an image can have, and the limits."""
    for section in subject.below('model'):
        path, keys = section.path, _QUERIES
        if 'test_cfg' in path:
            keys = _KEPT
            at = path[path.index('test_cfg') + 1 :]
            heads = as_mapping(subject.at(path[: len(path) - len(at)]))
            if 'query_head' in heads and at[:1] != ('query_head',):
                # CO-DETR's other heads do not predict.
                continue
        for key in keys:
            limit = section.cfg.get(key)
            if isinstance(limit, int) and limit > 0:
                yield (*path, key), limit


@HEAD.rule(
    'HEAD007',
    symptoms=('selected index k out of range',),
    title='more objects are asked for than the queries can give',
    severity=Severity.ERROR,
    remedy='set a smaller max_per_img in test_cfg of the model, or a larger '
    'num_queries',
    fix='set max_per_img to what there is',
)
def too_many_objects(subject: Subject) -> Iterator[Finding]:
    """``topk`` of the heads of DETR, in the first validation."""
    for section in subject.below('model'):
        node = ConfigNode(
            (*section.path, 'bbox_head'),
            as_mapping(section.cfg.get('bbox_head')),
            section.scope,
        )
        kind = subject.component(node)
        method = getattr(kind, '_predict_by_feat_single', None)
        test_cfg = as_mapping(section.cfg.get('test_cfg'))
        most = test_cfg.get('max_per_img')
        queries = section.cfg.get('num_queries')
        classes = subject.setting(node, 'num_classes')
        if getattr(
            method, '__qualname__', ''
        ) != 'DETRHead._predict_by_feat_single' or not all(
            isinstance(number, int) for number in (most, queries, classes)
        ):
            continue
        loss = as_mapping(subject.setting(node, 'loss_cls'))
        sigmoid = loss.get('use_sigmoid', False)
        given = queries * classes if sigmoid else queries
        if most > given:
            path = (*section.path, 'test_cfg', 'max_per_img')
            times = f' times num_classes={classes}' if sigmoid else ''
            yield new_finding(
                f'max_per_img is {most}, and num_queries={queries}{times} '
                f'gives {given}: topk ends the first validation',
                path=path,
                options=change(path, given),
            )
