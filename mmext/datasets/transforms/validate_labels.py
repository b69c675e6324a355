"""Check the labels of each sample in the pipeline that loads it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.logging import print_log
from msgspec.structs import replace
from torch.utils.data import get_worker_info

from ...checks.config import transforms_of
from ...registry import TRANSFORMS
from .. import box_limits
from ._label_checks import (
    box_problems,
    mask_problems,
    out_of_range,
    seg_map_keys,
    seg_map_problems,
)
from .label_problem import (
    JournalEntry,
    LabelError,
    LabelJournal,
    LabelProblem,
    SampleSpec,
    describe,
    file_of,
)

ACTIONS = ('raise', 'warn', 'ignore_pixels', 'skip_sample')
_BOX_KEYS = ('gt_bboxes', 'gt_bboxes_labels', 'gt_masks')
# Of the other tasks of a sample that has no classes.
_OTHER_KEYS = ('gt_depth', 'gt_normal')
_MAX_LOGGED = 5


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f'{name} must be in [{low:g}, {high:g}], got {value}')


@TRANSFORMS.register_module()
class ValidateLabels(BaseTransform):
    """Refuse labels that the training cannot use, and say which and why.

    For pipelines of mmdet and of mmseg, anywhere between the loading of the
    annotations and the packing of the inputs; also twice, before and after
    augmentation. It checks what a sample has:

    * label maps: integers, one per pixel, as large as the image, each a class
      or ``ignore_index``;
    * boxes: finite, not degenerate, inside of the image; labels in range; as
      many labels, flags and masks as boxes;
    * masks: as large as the image, not empty, the box around each mask
      agreeing with its box; ignored instances are left out.

    A sample of several tasks may have depth or normals and none of these.
    Labels that a pipeline loads after it has resized the image, as those for
    evaluation do, are held against the image as it was. Of boxes that are
    marked to be ignored, only that they are finite is checked.

    The message names the file, each value with its count, the first pixel,
    the allowed range and the likely cause; and the rule of
    ``tools/validate_labels.py`` that finds the same before the training,
    with the same limits.

    Args:
        num_classes: Of boxes and of pixels. None to take it from
            ``metainfo['classes']`` of the data set; processes of a data
            loader find that themselves, a data loader without processes
            needs :class:`mmext.LabelReportHook` for it.
        num_seg_classes: Of pixels, where it is another number than of boxes.
            Needed beside boxes; panoptic data sets tell both.
        ignore_index: Value of pixels without a class, as the loss has it;
            None if each pixel must have a class.
        action: What to do about a sample with problems:
            ``'raise'`` an error;
            ``'warn'`` and go on with the sample as it is;
            ``'ignore_pixels'`` sets pixels out of range to ``ignore_index``
            in a copy of the map; any other problem is an error;
            ``'skip_sample'`` lets the data set take another sample; in test
            mode, where none may be missing, it is an error.
            Each process logs the first five samples that it passes over;
            all are counted, for :class:`mmext.LabelReportHook`.
        box_tolerance: Pixels by which a box may reach out of the image; one
            that shares no pixel with the image is wrong with any, but for
            infinity, which leaves both unchecked.
        min_size: Width and height of boxes must be at least this, in pixels,
            and always over 0. Loaders drop boxes under a pixel, and
            transforms make small ones, so that it is 0 by default.
        mask_box_iou: A box that is off the box around its mask by more than
            2 pixels, or twice the factor by which the image was enlarged, is
            right where the two overlap by at least this. Rotations and crops
            make boxes loose, 0.5 suits them; 0 to check for empty masks only.

    Raises:
        LabelError: See ``action``; a ``ValueError``.
        ValueError: If an argument is out of its range; on a sample, if
            there is nothing to check, or the number of classes is unknown.

    Note:
        The check of a map of 2048 x 1024 bytes takes a fiftieth of the time
        to decode it. Masks are read once or twice.

    Examples:
        >>> label_map = np.array([[0, 255], [1, 7]], np.uint8)
        >>> sample = {'gt_seg_map': label_map, 'seg_map_path': 'a.png'}
        >>> try:
        ...     ValidateLabels(num_classes=2)(sample)
        ... except LabelError as error:
        ...     print(error.problems[0].message.split('; ')[1:])
        ['values: 7 (1)', 'first 7 at (y=1, x=1)']
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        num_seg_classes: int | None = None,
        ignore_index: int | None = 255,
        action: str = 'raise',
        box_tolerance: float = box_limits.BORDER_TOLERANCE,
        min_size: float = 0.0,
        mask_box_iou: float = 1.0,
    ) -> None:
        if action not in ACTIONS:
            raise ValueError(f'action must be one of {ACTIONS}, got {action}')
        if action == 'ignore_pixels' and ignore_index is None:
            raise ValueError(
                "action='ignore_pixels' needs an ignore_index, got None"
            )
        for name, value in (
            ('num_classes', num_classes),
            ('num_seg_classes', num_seg_classes),
        ):
            if value is not None:
                _check_number(name, value, 1, float('inf'))
        _check_number('box_tolerance', box_tolerance, 0, float('inf'))
        _check_number('min_size', min_size, 0, float('inf'))
        _check_number('mask_box_iou', mask_box_iou, 0, 1)
        self.action = action
        self.spec = SampleSpec(
            num_classes=num_classes or 0,
            num_seg_classes=num_seg_classes or 0,
            ignore_index=ignore_index,
            box_tolerance=box_tolerance,
            min_size=min_size,
            mask_box_iou=mask_box_iou,
        )
        self.test_mode = False
        self.journal = LabelJournal()
        self._num_logged = 0
        self._adopted = False
        self._classes = self._seg_classes = 0

    def __repr__(self) -> str:
        return f'{type(self).__name__}(action={self.action!r}, {self.spec})'

    def adopt(self, dataset: Any) -> None:
        """Take from a data set what was not given: numbers of classes, mode.

        Args:
            dataset: With ``metainfo``, and ``test_mode`` if it has one.
        """
        metainfo = getattr(dataset, 'metainfo', None) or {}
        classes = metainfo.get('classes') or ()
        things = metainfo.get('thing_classes') or classes
        self._classes, self._seg_classes = len(things), len(classes)
        self.test_mode = bool(getattr(dataset, 'test_mode', False))
        self._adopted = True

    def _adopt_from_worker(self) -> None:
        """In a process of a data loader, find the data set of this one."""
        info = get_worker_info()
        if self._adopted or info is None:
            return
        for dataset, transform in transforms_of(info.dataset):
            if transform is self:
                self.adopt(dataset)
                return

    def _spec_for(self, results: Mapping[str, Any]) -> SampleSpec:
        self._adopt_from_worker()
        maps = seg_map_keys(results)
        boxes = [key for key in _BOX_KEYS if results.get(key) is not None]
        if not maps and not boxes:
            raise ValueError(
                'ValidateLabels must come after LoadAnnotations and before '
                'the packing of inputs; it got a sample without labels, '
                f'{file_of(results)}, with {sorted(results)}'
            )
        ignored = results.get('ignore_index', self.spec.ignore_index)
        if maps and ignored != self.spec.ignore_index:
            raise ValueError(
                f'ignore_index of ValidateLabels is {self.spec.ignore_index}, '
                f'that of LoadAnnotations {ignored}; set both to what the '
                'loss ignores'
            )
        count = self.spec.num_classes or self._classes
        seg_count = self.spec.num_seg_classes
        if not seg_count and results.get('segments_info') is not None:
            seg_count = self._seg_classes or self.spec.num_classes
        elif not seg_count and not boxes:
            seg_count = self.spec.num_classes or self._seg_classes
        if (boxes and not count) or (maps and not boxes and not seg_count):
            raise ValueError(
                'num_classes of ValidateLabels is not known; set it, or add '
                'mmext.LabelReportHook to custom_hooks, which takes it from '
                'the classes of the data set'
            )
        if maps and not seg_count:
            raise ValueError(
                'num_seg_classes of ValidateLabels is not known; set it: a '
                'label map beside boxes may have other classes than these'
            )
        return replace(self.spec, num_classes=count, num_seg_classes=seg_count)

    def transform(self, results: dict) -> dict | None:
        """Check a sample.

        Args:
            results: The sample. It is not changed, but for
                ``'ignore_pixels'``, which puts a new map into it.

        Returns:
            The sample; None to skip it.
        """
        with_labels = {*seg_map_keys(results), *_BOX_KEYS} & results.keys()
        if not with_labels and any(key in results for key in _OTHER_KEYS):
            return results
        spec = self._spec_for(results)
        problems = [
            *seg_map_problems(results, spec),
            *box_problems(results, spec),
            *mask_problems(results, spec),
        ]
        if not problems:
            return results
        if self.action == 'raise':
            raise LabelError(describe(results, problems), problems)
        if self.action == 'ignore_pixels':
            return self._ignore(results, problems, spec)
        if self.action == 'warn':
            self._note(
                'warned', results, problems, 'They are left as they are'
            )
            return results
        if self.test_mode:
            raise LabelError(
                f'{describe(results, problems)}\n  In test mode no sample '
                "can be skipped, as action='skip_sample' asks for",
                problems,
            )
        self._note('skipped', results, problems, 'The sample is skipped')
        return None

    def _ignore(
        self,
        results: dict,
        problems: Sequence[LabelProblem],
        spec: SampleSpec,
    ) -> dict:
        others = [problem for problem in problems if problem.rule != 'SEG001']
        if others:
            raise LabelError(
                f'{describe(results, others)}\n  '
                "action='ignore_pixels' is for values of label maps only",
                problems,
            )
        for problem in problems:
            label_map = results[problem.field].copy()
            limits = np.iinfo(label_map.dtype)
            if not limits.min <= spec.ignore_index <= limits.max:
                raise LabelError(
                    f'{describe(results, problems)}\n  They cannot be set '
                    f'to ignore_index={spec.ignore_index}, which '
                    f'{label_map.dtype} does not hold',
                    problems,
                )
            label_map[
                out_of_range(
                    label_map, spec.num_seg_classes, spec.ignore_index
                )
            ] = spec.ignore_index
            results[problem.field] = label_map
        self._note(
            'ignored',
            results,
            problems,
            f'These pixels are set to {spec.ignore_index}',
        )
        return results

    def _note(
        self,
        action: str,
        results: Mapping[str, Any],
        problems: Sequence[LabelProblem],
        what: str,
    ) -> None:
        """Count a sample, and log the first ones of this process."""
        pixels = 0
        if action == 'ignored':
            pixels = sum(problem.count for problem in problems)
        text = '; '.join(
            f'{problem.field}: {problem.message}' for problem in problems
        )
        self.journal.append(
            JournalEntry(
                action, file_of(results, problems[0].field), pixels, text
            )
        )
        self._num_logged += 1
        if self._num_logged > _MAX_LOGGED:
            return
        text = f'{describe(results, problems)}\n  {what}.'
        if self._num_logged == _MAX_LOGGED:
            text += ' Further ones of this process are counted, not shown.'
        print_log(text, 'current', logging.WARNING)
