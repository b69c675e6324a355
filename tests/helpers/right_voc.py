"""Right sets in Pascal VOC's format, as several programs write it."""

from pathlib import Path

from helpers.right_sets import SIZE, Right, picture, right_set

_BOX = (
    '<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax>'
    '<ymax>{3}</ymax></bndbox>'
)


def _xml(name: str, objects: str, head: str = '', end: str = '') -> str:
    return (
        f'<annotation>{head}<filename>{name}</filename><size>'
        f'<width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth>'
        f'</size>{end}{objects}</annotation>'
    )


def _original(name: str) -> str:
    """As Pascal VOC's own: parts of persons, points, actions."""
    part = f'<part><name>head</name>{_BOX.format(5, 6, 12, 14)}</part>'
    objects = (
        f'<object><name>person</name><pose>Left</pose><truncated>1</truncated>'
        f'<difficult>0</difficult>{_BOX.format(1, 1, 40, 48)}{part}'
        '<actions><jumping>0</jumping></actions></object>'
        f'<object><name>dog</name>{_BOX.format(30, 9, 64, 40)}'
        '<difficult>1</difficult><pose>Unspecified</pose>'
        '<point><x>31</x><y>20</y></point></object>'
    )
    return _xml(
        name,
        objects,
        '<folder>VOC2012</folder>',
        '<segmented>0</segmented>',
    )


def _labelimg(name: str) -> str:
    objects = ''.join(
        f'<object>\n\t\t<name>{kind}</name><pose>Unspecified</pose>'
        '<truncated>0</truncated><difficult>0</difficult>'
        f'{_BOX.format(3 + 9 * i, 4, 40 + 9 * i, 44)}</object>'
        for i, kind in enumerate(('dog', 'cat'))
    )
    return _xml(
        name,
        objects,
        '<folder>images</folder>',
        f'<path>C:\\Users\\me\\images\\{name}</path>',
    )


def _cvat(name: str) -> str:
    """Numbers with fractions, attributes, order of its own."""
    objects = ''.join(
        f'<object><name>{kind}</name><truncated>0</truncated>'
        '<occluded>0</occluded><difficult>0</difficult>'
        f'{_BOX.format(3.29, 4.5 + i, 40.71, 44.06)}'
        '<attributes><attribute><name>rotation</name><value>0.0</value>'
        '</attribute></attributes></object>'
        for i, kind in enumerate(('dog', 'cat'))
    )
    return _xml(
        name,
        objects,
        '<folder></folder>',
        '<source><database>Unknown</database></source>'
        '<segmented>0</segmented>',
    )


def _roboflow(name: str) -> str:
    """Sides in another order; no database of its own."""
    box = (
        '<bndbox><xmin>3</xmin><xmax>20</xmax><ymin>4</ymin><ymax>40</ymax>'
        '</bndbox>'
    )
    objects = (
        '<object><name>dog</name><pose>Unspecified</pose>'
        '<truncated>0</truncated><difficult>0</difficult>'
        f'<occluded>0</occluded>{box}</object>'
        '<object><name>cat</name><pose>Unspecified</pose>'
        '<truncated>0</truncated><difficult>0</difficult>'
        f'<occluded>0</occluded>{box.replace(">20<", ">21<")}</object>'
    )
    return _xml(
        name,
        objects,
        '<folder></folder>',
        f'<path>{name}</path><source><database>roboflow.com</database>'
        '</source><segmented>0</segmented>',
    )


def _voc_years(root: Path, write) -> None:
    lists = {
        'VOC2007': {'trainval': range(3), 'test': range(5, 7)},
        'VOC2012': {'trainval': range(10, 13)},
    }
    for year, splits in lists.items():
        for split, ids in splits.items():
            names = [f'{year[3:]}_{i:06d}' for i in ids]
            for name in names:
                picture(root / year / f'JPEGImages/{name}.jpg')
                path = root / year / f'Annotations/{name}.xml'
                path.parent.mkdir(exist_ok=True)
                path.write_text(write(f'{name}.jpg'))
            path = root / year / f'ImageSets/Main/{split}.txt'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(''.join(f'{name}\n' for name in names))
            rows = ''.join(f'{name} -1\n' for name in names)
            path.with_stem(f'dog_{split}').write_text(rows)


def _voc(root: Path, write) -> Right:
    _voc_years(root, write)
    return Right(
        ['mmdet::pascal_voc/faster-rcnn_r50_fpn_1x_voc0712.py'],
        bare=[{'voc': root / 'VOC2007'}],
    )


@right_set
def voc_original(root: Path) -> Right:
    """VOC2007 and VOC2012, three times, inside of ConcatDataset."""
    return _voc(root, _original)


@right_set
def voc_labelimg(root: Path) -> Right:
    """Annotations that labelImg has written."""
    return _voc(root, _labelimg)


@right_set
def voc_cvat(root: Path) -> Right:
    """Annotations that CVAT has written."""
    return _voc(root, _cvat)


@right_set
def voc_roboflow(root: Path) -> Right:
    """Roboflow puts pictures and annotations into one folder."""
    for number in range(3):
        name = f'IMG_{number}_jpg.rf.0f2{number}.jpg'
        picture(root / f'train/{name}')
        path = root / f'train/{Path(name).stem}.xml'
        path.write_text(_roboflow(name))
    return Right(bare=[{'voc': root / 'train'}])


@right_set
def wider_face(root: Path) -> Right:
    """VOC's format, pictures by event; tiny faces are left to be ignored."""
    for split in ('train', 'val'):
        names = [f'0_Parade_{split}_{i}' for i in range(2)]
        folder = root / f'WIDER_{split}'
        for name in names:
            picture(folder / f'0--Parade/{name}.jpg')
            objects = ''.join(
                f'<object><name>face</name>{_BOX.format(*box)}</object>'
                for box in ((0, 0, 20, 30), (40, 5, 44, 9))
            )
            path = folder / f'Annotations/{name}.xml'
            path.parent.mkdir(exist_ok=True)
            head = '<folder>0--Parade</folder>'
            path.write_text(_xml(f'{name}.jpg', objects, head))
        (root / f'{split}.txt').write_text('\n'.join(names))
    return Right(['mmdet::wider_face/ssd300_8xb32-24e_widerface.py'])
