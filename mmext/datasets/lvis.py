"""LVIS, read without the package of that name."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mmdet.datasets.lvis import LVISV1Dataset as HostLVISV1Dataset
from mmengine.fileio import get_local_path

from ..registry import DATASETS

_MAX_NAMED = 5


@DATASETS.register_module()
class LVISV1Dataset(HostLVISV1Dataset):
    """MMDetection's ``LVISV1Dataset`` without the package ``lvis``.

    The 1,203 classes have the names of the file, by rising id. Other
    ``metainfo['classes']`` are found by their names, in the given order.
    A picture is at ``file_name`` or, as in LVIS's files, at the path of its
    ``coco_url``, such as ``train2017/000000391895.jpg``; both are relative to
    ``data_prefix['img']``.

    Each sample has two more lists of labels, which a pipeline can pass on by
    ``meta_keys``: ``neg_labels``, classes that were looked for and are not
    there, and ``not_exhaustive_labels``, classes of which objects may lack
    an annotation. Nothing is known of the classes that are in neither list
    and have no object. ``metainfo`` gets ``cat_ids``, the category of each
    class, and ``frequency``, the ``'r'`` (in at most 10 pictures of the
    training set), ``'c'`` (in at most 100) or ``'f'`` of each, if the file
    has it.

    Raises:
        ValueError: If classes have no category in the file.
    """

    # As the file writes it, which MMDetection corrects.
    METAINFO = {
        **HostLVISV1Dataset.METAINFO,
        'classes': tuple(
            name.replace('(stereo_equipment)', '(stero_equipment)')
            for name in HostLVISV1Dataset.METAINFO['classes']
        ),
    }

    def load_data_list(self) -> list[dict]:
        """Read the annotation file; see the class for errors."""
        with get_local_path(
            self.ann_file, backend_args=self.backend_args
        ) as path:
            coco = self.COCOAPI(path)
        self.cat_ids = self._categories(coco.cats)
        self.cat2label = {own: i for i, own in enumerate(self.cat_ids)}
        # Also of a category without objects, which filter_data asks for.
        self.cat_img_map = {
            own: coco.catToImgs.get(own, []) for own in self.cat_ids
        }
        self._metainfo['cat_ids'] = tuple(self.cat_ids)
        kinds = [coco.cats[own].get('frequency') for own in self.cat_ids]
        if all(kinds):
            self._metainfo['frequency'] = tuple(kinds)
        return [
            self.parse_data_info(
                {
                    'raw_img_info': {**coco.imgs[own], 'img_id': own},
                    'raw_ann_info': coco.imgToAnns.get(own, []),
                }
            )
            for own in sorted(coco.imgs)
        ]

    def _categories(self, categories: Mapping[int, Mapping]) -> list[int]:
        """Category of each class, by its name."""
        classes: Sequence[str] = self._metainfo['classes']
        ids = {item['name']: own for own, item in categories.items()}
        missing = [name for name in classes if name not in ids]
        if not missing:
            return [ids[name] for name in classes]
        shown = ', '.join(missing[:_MAX_NAMED])
        raise ValueError(
            f"metainfo['classes'] must be categories of {self.ann_file!r}, "
            f'got {len(missing)} others of {len(classes)}: {shown}; set '
            'metainfo=dict(classes=...) to the names in the file, which has '
            f'{len(categories)}'
        )

    def parse_data_info(self, raw_data_info: dict) -> dict[str, Any]:
        """One sample, with the lists of the class."""
        image = raw_data_info['raw_img_info']
        if not image.get('file_name'):
            url = urlsplit(image['coco_url'])
            image = {**image, 'file_name': url.path.lstrip('/')}
        sample = super().parse_data_info(
            {**raw_data_info, 'raw_img_info': image}
        )
        for ours, theirs in (
            ('neg_labels', 'neg_category_ids'),
            ('not_exhaustive_labels', 'not_exhaustive_category_ids'),
        ):
            sample[ours] = [
                self.cat2label[own]
                for own in image.get(theirs) or ()
                if own in self.cat2label
            ]
        return sample
