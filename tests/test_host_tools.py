"""Tools of the hosts, and mim, on configs of ours, as docs/ecosystem.md says.

Each is run as it ships, from a folder outside the checkout and in an
environment that has what an installation of mmext puts beside the package. No
tool imports mmext.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DETECTOR = """
_base_ = 'mmext::co_dino/co_dino_r18_shapes.py'
ops_backend = 'pytorch'
train_dataloader = dict(batch_size=2)
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""
SEGMENTOR = """
_base_ = 'mmext::pidnet/pidnet_small_shapes.py'
loader = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_iters=1, val_interval=1)
default_hooks = dict(checkpoint=dict(interval=1))
tta_model = dict(type='SegTTAModel')
flips = [dict(type='mmseg.RandomFlip', prob=prob) for prob in (0.0, 1.0)]
views = [flips, [dict(type='LoadAnnotations')], [dict(type='PackSegInputs')]]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='TestTimeAug', transforms=views),
]
"""
INFERENCER = """
from mmdet.apis import DetInferencer
detect = DetInferencer('det.py', 'det/epoch_1.pth', device='cpu')
print(len(detect('data/shapes/img_dir/val')['predictions']), 'pictures')
"""
# What is run, in this order, and what it prints at its end.
TOOLS = {
    'mmdet/train.py det.py --work-dir det': 'coco/bbox_mAP at 1 epoch',
    'mmdet/train.py det/det.py --work-dir det --resume': (
        'resumed epoch: 1, iter: 1'
    ),
    'mmdet/test.py det/det.py det/epoch_1.pth --work-dir test --tta': (
        'coco/bbox_mAP: '
    ),
    'mmdet/analysis_tools/browse_dataset.py det.py --output-dir browsed '
    '--not-show': '2/2',
    'mmdet/analysis_tools/analyze_logs.py plot_curve det/scalars.json '
    '--keys loss --style default --out curve.png': 'save curve to: curve.png',
    'mmdet/analysis_tools/get_flops.py det.py --num-images 1': 'Params: 5.',
    'mmdet/model_converters/publish_model.py det/epoch_1.pth public.pth': (
        'The published model is saved at public-'
    ),
    INFERENCER: '2 pictures',
    'mmseg/train.py seg.py --work-dir seg': 'mIoU at 1 iter is saved',
    'mmseg/test.py seg/seg.py seg/iter_1.pth --work-dir segtest --tta': (
        'mIoU: '
    ),
    'mmseg/analysis_tools/browse_dataset.py seg.py --output-dir segbrowsed '
    '--not-show': '2/2',
    '-m mim train onedl-mmdetection det.py --work-dir mimdet': (
        'Training finished successfully'
    ),
    '-m mim train mmext seg.py --work-dir mimseg': (
        'Training finished successfully'
    ),
}


@pytest.fixture(scope='module')
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment, a data set, and two configs."""
    folder = tmp_path_factory.mktemp('project')
    subprocess.run(
        [sys.executable, '-m', 'venv', '--without-pip', folder / 'venv'],
        check=True,
    )
    paths = {'base': str(folder / 'venv'), 'platbase': str(folder / 'venv')}
    own = Path(sysconfig.get_path('purelib', 'venv', vars=paths))
    heavy = {sysconfig.get_path(key) for key in ('purelib', 'platlib')}
    (own / 'all.pth').write_text('\n'.join([str(checkout), *sorted(heavy)]))
    # What tests/test_packaging.py finds in a wheel.
    shutil.copy(checkout / '_mmext_startup.py', own)
    (own / 'mmext.pth').write_text('import _mmext_startup\n')
    (folder / 'det.py').write_text(DETECTOR)
    (folder / 'seg.py').write_text(SEGMENTOR)
    made = start(
        folder,
        *(checkout / 'tools' / 'make_shapes_dataset.py', '--out'),
        *('data/shapes', '--num-train', '2', '--num-val', '2'),
        *('--image-size', '64'),
    )
    assert '2 pictures' in made
    return folder


def start(folder: Path, *command: str | Path) -> str:
    """Run Python of the environment; what it printed, or its error."""
    kept = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    done = subprocess.run(
        [folder / 'venv' / 'bin' / 'python', *command],
        cwd=folder,
        env={**kept, 'OMP_NUM_THREADS': '1', 'MPLBACKEND': 'Agg'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    'command',
    TOOLS,
    ids=lambda command: (
        'DetInferencer'
        if command == INFERENCER
        else command.removeprefix('-m ').partition('.py ')[0]
    ),
)
def test_tool(command: str, project: Path):
    """The first of each host trains what the others read."""
    words = command.split()
    if words[:2] == ['-m', 'mim'] and find_spec('mim') is None:
        pytest.skip('needs onedl-mim, which is not installed')
    if command == INFERENCER:
        words = ['-c', command]
    elif words[0] != '-m':
        host, _, name = words[0].partition('/')
        tools = Path(find_spec(host).origin).parent / '.mim' / 'tools'
        words[0] = str(tools / name)
    assert TOOLS[command] in start(project, *words)
    if command == next(iter(TOOLS)):
        (log,) = project.glob('det/*/vis_data/scalars.json')
        shutil.copy(log, project / 'det')
