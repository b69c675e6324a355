"""Report the samples whose labels were passed over, from all processes."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.dist import all_gather_object, get_rank, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner

from ...checks.config import transforms_of
from ...models.losses import set_current_batch
from ...registry import HOOKS
from .label_range import LabelRangeHook

if TYPE_CHECKING:
    from ...datasets.transforms import LabelJournal, Tally

# In the log, for each report and process.
_MAX_FILES = 5
_PHRASES = {
    'skipped': 'skipped {times:,} sample(s)',
    'ignored': 'ignored {pixels:,} pixel(s) in {times:,} sample(s)',
    'warned': 'left {times:,} sample(s) as they are',
}


def _phrase(counts: Counter) -> str:
    """What was done how often; keys are ``(action, 'times' or 'pixels')``."""
    return ', '.join(
        text.format(
            times=counts[action, 'times'], pixels=counts[action, 'pixels']
        )
        for action, text in _PHRASES.items()
        if counts[action, 'times']
    )


@HOOKS.register_module()
class LabelReportHook(Hook):
    """List what :class:`mmext.ValidateLabels` has skipped or ignored.

    At the end of each epoch, each ``interval`` iterations of a training that
    is not by epochs, before each validation, and at the end, the numbers of
    all data loading processes on all ranks go into the log, with the first
    files. ``label_report.jsonl`` beside the log, on rank N
    ``label_report_rankN.jsonl``, lists each file with what is wrong.

    It also hands the transform the number of classes of its data set, and
    whether that is in test mode, and the losses that check their labels the
    files of each batch, which their errors name.

    Args:
        interval: In iterations.

    Raises:
        ValueError: If ``interval`` is less than 1.
    """

    def __init__(self, interval: int = 1000) -> None:
        if interval < 1:
            raise ValueError(f'interval must be at least 1, got {interval}')
        self.interval = interval
        self._journals: dict[str, list[LabelJournal]] = {}
        self._totals: dict[str, Counter] = {}

    def _prepare(self, split: str, dataloader: Any) -> None:
        """Find the checks of a data set, and hand the data set to them."""
        # The DDP wrapper of this package needs no MMCV.
        from ...datasets.transforms import ValidateLabels

        journals: dict[Path, LabelJournal] = {}
        for dataset, transform in transforms_of(dataloader.dataset):
            if isinstance(transform, ValidateLabels):
                transform.adopt(dataset)
                journals[transform.journal.path] = transform.journal
        self._journals[split] = list(journals.values())
        self._totals.setdefault(split, Counter())

    def before_train(self, runner: Runner) -> None:
        """Find the checks, before samples are loaded."""
        self._prepare('train', runner.train_dataloader)
        if runner.val_loop is not None:
            self._prepare('val', runner.val_dataloader)
        if not any(self._journals.values()):
            runner.logger.info(
                'LabelReportHook has nothing to report: no pipeline of the '
                'training has mmext.ValidateLabels'
            )

    # The losses find wrong labels where no ValidateLabels has looked.
    before_train_iter = LabelRangeHook.before_train_iter

    def before_val(self, runner: Runner) -> None:
        """Find the checks of a validation; report those of the training."""
        self._prepare('val', runner.val_dataloader)
        self._report(runner, 'train')

    def before_test(self, runner: Runner) -> None:
        """Find the checks of a test."""
        self._prepare('test', runner.test_dataloader)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Report where there are no epochs."""
        if isinstance(
            runner.train_loop, IterBasedTrainLoop
        ) and self.every_n_train_iters(runner, self.interval):
            self._report(runner, 'train')

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        self._report(runner, mode)

    def after_train(self, runner: Runner) -> None:
        """Report what is left."""
        self._report(runner, 'train')
        set_current_batch()

    def _report(self, runner: Runner, split: str) -> None:
        """Sum up over processes. All ranks come here at the same time."""
        journals = self._journals.get(split)
        if not journals:
            return
        from ...datasets.transforms import tally

        tallies = tally(
            entry for journal in journals for entry in journal.drain()
        )
        self._write(runner, split, tallies)
        counts: Counter = Counter()
        for (action, _), entry in tallies.items():
            counts[action, 'times'] += entry.times
            counts[action, 'pixels'] += entry.pixels
        examples = [
            f'  {action} {entry.times}x {file}: {entry.text}'
            for (action, file), entry in [*tallies.items()][:_MAX_FILES]
        ]
        everywhere: Counter = Counter()
        lines = []
        for others, theirs in all_gather_object((counts, examples)):
            everywhere.update(others)
            lines += theirs
        total = self._totals[split]
        total.update(everywhere)
        if everywhere and is_main_process():
            lines.insert(
                0,
                f'ValidateLabels, {split} data: {_phrase(everywhere)}; since '
                f'the start: {_phrase(total)}',
            )
            lines.append('  All are in label_report*.jsonl beside this log.')
            runner.logger.warning('\n'.join(lines))

    def _write(
        self,
        runner: Runner,
        split: str,
        tallies: 'dict[tuple[str, str], Tally]',
    ) -> None:
        if not tallies:
            return
        rank = get_rank()
        name = (
            f'label_report_rank{rank}.jsonl' if rank else 'label_report.jsonl'
        )
        folder = Path(runner.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {'split': split, 'epoch': runner.epoch, 'iter': runner.iter}
        with (folder / name).open('a', encoding='utf-8') as file:
            for (action, path), row in tallies.items():
                entry = {'action': action, 'file': path, **vars(row)}
                file.write(json.dumps(facts | entry) + '\n')
