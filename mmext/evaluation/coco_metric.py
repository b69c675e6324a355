"""COCO's metrics, by the faster of two implementations that is installed."""

from importlib.util import find_spec
from numbers import Integral

from mmdet.evaluation import CocoMetric as HostCocoMetric
from mmdet.evaluation import FasterCocoMetric

from ..registry import METRICS


@METRICS.register_module()
class CocoMetric(HostCocoMetric):
    """MMDetection's ``CocoMetric``, in 0.3 of the time where it can be.

    With the package ``faster-coco-eval`` (``pip install
    'mmext[faster_coco_eval]'``), metrics are computed as MMDetection's
    ``FasterCocoMetric`` does, by compiled code; without it, with
    ``use_mp_eval``, and where an id is no whole number, as names of VOC's
    pictures are none, by pycocotools. Both give the same numbers.

    Takes all arguments of ``mmdet.CocoMetric``, and reads the same samples:
    without ``ann_file``, the ground truth is their ``instances``, where
    ``FasterCocoMetric`` wants ``gt_instances``, which pipelines of a
    validation change with the picture.
    """

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Figures by name, as ``mmdet.CocoMetric`` gives them."""
        ids = [item['img_id'] for item, _ in results]
        if self._coco_api is not None:
            ids += [*self._coco_api.cats, *self._coco_api.anns]
        if (
            self.use_mp_eval
            or find_spec('faster_coco_eval') is None
            or not all(isinstance(item, Integral) for item in ids)
        ):
            metrics = super().compute_metrics(results)
        else:
            metrics = FasterCocoMetric.compute_metrics(self, results)
        # `save_best='auto'` takes the first, which is not that of a class.
        names = sorted(metrics, key=lambda name: name.endswith('_precision'))
        return {name: metrics[name] for name in names}
