"""torchrun whose end is a line instead of a traceback.

Takes torchrun's arguments. After a signal, all processes having ended, the
exit code is 128 plus the signal; after a failure it is that of the process
that failed first. torchrun itself exits with 1 in both cases, and shows a
traceback of its own.
"""

import logging
import signal
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun; returns the exit code."""
    # It would say in other words what is said below.
    logging.getLogger('torch.distributed.elastic').setLevel(logging.CRITICAL)
    try:
        run(parse_args(argv))
    except SignalException as error:
        name = signal.Signals(error.sigval).name
        return _end(f'{name}: all processes have ended', 128 + error.sigval)
    except KeyboardInterrupt:
        return _end('SIGINT: ended before the start', 128 + signal.SIGINT)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            # One process got the signal, and all have stopped for it.
            name = signal.Signals(code - 128).name
            return _end(f'{name}: all processes have ended', code)
        how = f'ended with exit code {code}'
        if code < 0:
            name = signal.Signals(-code).name
            how, code = f'was killed by {name}', 128 - code
            if name == 'SIGKILL':
                how += ', as by kill -9 or for lack of memory'
        return _end(
            f'rank {rank} (pid {failure.pid}) was the first to fail, it {how}',
            code,
        )
    return 0


def _end(text: str, code: int) -> int:
    print(f'launcher: {text}', file=sys.stderr)
    return code


if __name__ == '__main__':
    sys.exit(main())
