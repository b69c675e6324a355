"""Memory of training steps as rehearsed, beside what the hosts published.

A step of each config is rehearsed with the batch size and pictures of its
training, 90 objects in each, and the buckets of DDP. Given are MiB:

- alive: tensors and copies of convolutions at the peak; to: a quarter more,
- published: of the metafile of MMDetection or MMSegmentation, measured on
  V100 GPUs by the versions of that time; in GiB with one digit,
- ratio: of what is published to what is alive,
- s: seconds of the rehearsal; own: MiB of this process at its peak.

Configs of ``--set tried`` were looked at while the forecast was made, those
of ``--set held-out`` afterwards. Nothing is downloaded.
"""

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import yaml
from rich.console import Console
from rich.table import Table

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.checks.config import read_config
from mmext.checks.preflight.dry_run.rehearsal import rehearse_config
from mmext.utils.cli import report_errors, run_tool

MIB = 2**20
SETS = {
    'tried': """
retinanet_r50_fpn_1x_coco retinanet_r18_fpn_1x_coco
faster-rcnn_r50_fpn_1x_coco faster-rcnn_r50_fpn_amp-1x_coco
fcos_r50-caffe_fpn_gn-head_1x_coco atss_r50_fpn_1x_coco
cascade-rcnn_r50_fpn_1x_coco mask-rcnn_r50_fpn_1x_coco
detr_r50_8xb2-150e_coco fcn_r50-d8_4xb2-40k_cityscapes-512x1024
pspnet_r50-d8_4xb2-40k_cityscapes-512x1024
deeplabv3_r50-d8_4xb2-40k_cityscapes-512x1024
upernet_r50_4xb2-40k_cityscapes-512x1024
""",
    'held-out': """
cascade-mask-rcnn_r50_fpn_1x_coco retinanet_r101_fpn_1x_coco
faster-rcnn_r101_fpn_1x_coco mask-rcnn_r101_fpn_1x_coco
retinanet_r50_fpn_amp-1x_coco mask-rcnn_r50_fpn_amp-1x_coco
libra-faster-rcnn_r50_fpn_1x_coco
grid-rcnn_r50_fpn_gn-head_2x_coco dh-faster-rcnn_r50_fpn_1x_coco
deeplabv3plus_r50-d8_4xb2-40k_cityscapes-512x1024
danet_r50-d8_4xb2-40k_cityscapes-512x1024
ccnet_r50-d8_4xb2-40k_cityscapes-512x1024
fpn_r50_4xb2-80k_cityscapes-512x1024
fcn_r101-d8_4xb2-40k_cityscapes-512x1024
pspnet_r101-d8_4xb2-40k_cityscapes-512x1024
""",
}
# (name, alive, most, published, seconds, own)
Row = tuple[str, int, int, float, float, float]


def published() -> dict[str, tuple[str, float]]:
    """Name of a config -> where it is, and its memory in GiB."""
    entries = {}
    for host in ('mmdet', 'mmseg'):
        folder = Path(find_spec(host).origin).parent / '.mim'
        for file in sorted(folder.glob('configs/*/metafile.y*ml')):
            content = yaml.safe_load(file.read_text('utf-8'))
            models = content['Models'] if isinstance(content, dict) else []
            for model in models or ():
                facts = model.get('Metadata') or {}
                for key in ('Training Memory (GB)', 'Memory (GB)'):
                    if key in facts and 'Config' in model:
                        name = model['Config'].removeprefix('configs/')
                        entry = f'{host}::{name}', float(facts[key])
                        entries.setdefault(Path(name).stem, entry)
    return entries


def measure(name: str, config: str, memory: float) -> Row:
    """Rehearse a step, in a process of its own."""
    start = time.perf_counter()
    step = rehearse_config(
        read_config(config),
        image_size=None,
        batch_size=0,
        world=2,
        gpu_memory=None,
        progress=lambda text: None,
    )
    if step.failure is not None:
        raise step.failure
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - start
    forecast = step.done.memory
    return name, forecast.peak, forecast.most, memory, seconds, own


def make_table(rows: Sequence[Row]) -> Table:
    """All rows, and how many of the published figures are in the range."""
    table = Table(box=None)
    table.add_column('config', no_wrap=True)
    columns = 'alive', 'to', 'published', 'ratio', 'in', 's', 'own'
    for column in columns:
        table.add_column(column, justify='right')
    inside, distances = 0, []
    for name, alive, most, memory, seconds, own in rows:
        known = memory * 1024 * MIB
        # The last digit of what is published was rounded.
        slack = 0.05 * 1024 * MIB
        fits = alive - slack <= known <= most + slack
        inside += fits
        distances.append(abs(2 * known / (alive + most) - 1))
        cells = alive / MIB, most / MIB, known / MIB
        table.add_row(
            name,
            *(f'{cell:,.0f}' for cell in cells),
            f'{known / alive:.2f}',
            'yes' if fits else 'no',
            f'{seconds:.0f}',
            f'{own:,.0f}',
        )
    table.add_row(
        f'{inside} of {len(rows)} in the range, median distance from its '
        f'middle {median(distances):.1%}'
    )
    return table


def run_all(options: argparse.Namespace) -> None:
    """Measure what is asked for, and print the table."""
    known = published()
    names = options.config or SETS[options.set].split()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            'configs must be names whose memory is published, such as '
            f'retinanet_r50_fpn_1x_coco, got {", ".join(unknown)}'
        )
    rows = []
    for name in names:
        context = get_context('spawn')
        with context.Pool(1) as pool:
            rows.append(pool.apply(measure, (name, *known[name])))
        print(f'{len(rows)} of {len(names)}: {name}', file=sys.stderr)
    Console(width=120).print(make_table(rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('config', nargs='*', help='names, without .py')
    parser.add_argument('--set', choices=SETS, default='tried')
    options = parser.parse_args(argv)
    return report_errors(parser, partial(run_all, options))


if __name__ == '__main__':
    run_tool(main)
