"""Error messages of libraries that are installed and broken.

The libraries are made in a folder; each test starts Python anew.
"""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from helpers.toy_ranks import TOOLS, process_environ

from mmext.datasets import ShapesSpec, write_shapes_dataset

CONFIGS = TOOLS.parent / 'configs'
CONFIG = CONFIGS / 'retinanet' / 'retinanet_r50_fpn_cp_8xb2_1x_coco.py'
NMS = "raise RuntimeError('operator torchvision::nms does not exist')"
# A torchvision for another torch, which timm imports.
TORCHVISION = {
    'timm': ('', 'import torchvision'),
    'torchvision': ('torch', NMS),
}
EXPECTED = (
    'torchvision 7.8.9 was built for another torch than {0}, and mmseg '
    'imports it through timm (RuntimeError: operator torchvision::nms does '
    'not exist); install the torchvision that was built for torch {0}, from '
    'the index that torch was installed from; or uninstall torchvision, if '
    'nothing else needs it'
)


@pytest.fixture
def run(tmp_path):
    """Run Python beside libraries: name -> (requirement, code)."""

    def run(libraries, *args):
        for name, (requirement, code) in libraries.items():
            package = tmp_path / 'site' / name
            package.mkdir(parents=True)
            (package / '__init__.py').write_text(code)
            info = tmp_path / 'site' / f'{name}-7.8.9.dist-info'
            info.mkdir()
            text = f'Metadata-Version: 2.1\nName: {name}\nVersion: 7.8.9\n'
            if requirement:
                text += f'Requires-Dist: {requirement}\n'
            (info / 'METADATA').write_text(text)
            (info / 'top_level.txt').write_text(name)
        environ = process_environ()
        environ['PYTHONPATH'] = f'{tmp_path / "site"}:{environ["PYTHONPATH"]}'
        return subprocess.run(
            [sys.executable, '-W', 'ignore', *map(str, args)],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
            timeout=240,
        )

    return run


def expected_text():
    return EXPECTED.format(version('torch'))


@pytest.mark.parametrize('tool', ['preflight', 'train'])
@pytest.mark.slow
def test_a_tool_names_it_on_one_line(run, tool, tmp_path):
    """For a config of MMSegmentation, which imports it."""
    write_shapes_dataset(
        tmp_path / 'data', ShapesSpec(), num_train=2, num_val=2
    )
    config = tmp_path / 'mine.py'
    base = 'mmext::pidnet/pidnet_small_shapes.py'
    config.write_text(f"_base_ = '{base}'\ndata_root = 'data/'\n")
    done = run(TORCHVISION, TOOLS / f'{tool}.py', config)
    assert done.stderr.endswith(f'{tool}.py: error: {expected_text()}\n')
    assert done.returncode == 2


def test_registering_all_modules_names_it(run):
    done = run(
        TORCHVISION,
        '-c',
        'from mmext.utils import register_all_modules\nregister_all_modules()',
    )
    assert done.stderr.splitlines()[-1].endswith(f'Error: {expected_text()}')


@pytest.mark.slow
def test_a_test_of_the_user_names_it(run, tmp_path):
    (tmp_path / 'test_mine.py').write_text(
        'from mmext.models import decode_heads\n\ndef test(): pass\n'
    )
    done = run(
        TORCHVISION, '-m', 'pytest', '-p', 'no:cacheprovider', 'test_mine.py'
    )
    assert f'BrokenLibraryError: {expected_text()}' in done.stdout


def raises(kind, text):
    return f'raise {kind}({text!r})'


NO_FILE = 'libGL.so.1: cannot open shared object file: No such file'


@pytest.mark.parametrize(
    ('library', 'text'),
    [
        # Hosts take an ImportError for a library that is not installed.
        ({'timm': ('', raises('ImportError', 'undefined symbol'))}, 'done$'),
        ({'timm': ('', 'import none.such')}, 'done$'),
        (
            {'cv2': ('', raises('ImportError', NO_FILE))},
            r'cv2 7\.8\.9 lacks libGL\.so\.1, and \w+ imports it \(.*\); '
            r'install the system package that contains libGL\.so\.1$',
        ),
        (
            {
                'pycocotools': (
                    'numpy',
                    raises('ValueError', 'numpy.dtype size changed'),
                )
            },
            r'pycocotools 7\.8\.9 was built for another numpy than .*; '
            r'install a pycocotools that was built for this numpy$',
        ),
        (
            {'timm': ('', '1 / 0')},
            r'timm 7\.8\.9 cannot be imported, and mmseg imports it '
            r'\(ZeroDivisionError: division by zero\); reinstall it: pip '
            'install --force-reinstall timm$',
        ),
    ],
    ids=['symbol', 'absent', 'libGL', 'numpy', 'other'],
)
@pytest.mark.slow
def test_what_it_says(run, library, text):
    done = run(
        library,
        '-c',
        'import mmext, mmdet.datasets, mmseg.models\nprint("done")',
    )
    assert re.search(text, (done.stdout + done.stderr).strip()), done


@pytest.mark.slow
def test_weights_that_a_broken_torchvision_looks_up(run):
    done = run(
        {'torchvision': TORCHVISION['torchvision']},
        *(TOOLS / 'preflight.py', CONFIG),
    )
    assert re.search(
        r'CKPT006 .*torchvision://resnet50 is looked up by the package '
        r'torchvision, which is broken: torchvision 7\.8\.9 was built for',
        done.stdout,
    ), done


@pytest.mark.slow
def test_errors_of_a_module_of_the_config_stay_as_they_are(run, tmp_path):
    (tmp_path / 'config.py').write_text(
        "custom_imports = dict(imports=['shop'])\n"
    )
    done = run(
        {'shop': ('torch', NMS)}, TOOLS / 'train.py', tmp_path / 'config.py'
    )
    assert 'built for another torch' not in done.stderr
    assert 'operator torchvision::nms does not exist' in done.stderr
