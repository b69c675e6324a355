"""What plain DDP does, case by case: the two matrices, as data.

An outcome is 'ok', or what both ranks raise and in which step, counted from
0, or what each of them does. 'unfinished' comes one step late: it is the
forward of the next step that finds a gradient missing.

What is silent: 'diverged' are ranks with other gradients, hence weights, and
no error; 'untrained' are ranks that agree, on gradients that lack some.
"""

import itertools
from typing import Any, NamedTuple

from helpers.ddp_cases import Case
from helpers.ddp_parts import PARTS

UNFINISHED = 'unfinished@1'
TWICE = 'twice@0'
# Rank 1 takes no part in the reduction of step 1; rank 0 waits for it until
# rank 1 ends with its error, one step later.
LATE = 'lost@1/unfinished@2'

EMBED = ('class_embed',)
BLOCK = tuple(f'block.{i}.{n}' for i in (0, 2) for n in ('weight', 'bias'))
DECODER = tuple(name.replace('block', 'decoder') for name in BLOCK)
HEADS = ('heads.0.weight', 'heads.0.bias', 'heads.1.weight', 'heads.1.bias')
BOX = ('box.weight', 'box.bias')


class Expected(NamedTuple):
    """A case, what plain DDP does with it, and the parameters at fault."""

    case: Case
    outcome: str
    names: tuple[str, ...] = ()


class Row(NamedTuple):
    """Outcomes without a flag, with find_unused and with static_graph."""

    model: dict[str, Any]
    plain: str = 'ok'
    find_unused: str = 'ok'
    static: str = 'ok'
    names: tuple[str, ...] = ()
    data: dict[str, Any] = {}


# Checkpoint of the encoder, unused parameter -> outcomes without a flag, with
# find_unused, with static_graph and with both, of which PyTorch leaves
# find_unused out. A batch without objects on one rank changes none of them.
MATRIX_A = {
    ('none', 'no'): ('ok', 'ok', 'ok', 'ok'),
    ('none', 'param'): (UNFINISHED, 'ok', 'ok', 'ok'),
    ('reentrant', 'no'): ('ok', TWICE, 'ok', 'ok'),
    ('reentrant', 'param'): (UNFINISHED, TWICE, 'ok', 'ok'),
    ('ours', 'no'): ('ok', 'ok', 'ok', 'ok'),
    ('ours', 'param'): (UNFINISHED, 'ok', 'ok', 'ok'),
}


def matrix_a() -> dict[str, Expected]:
    """Checkpoint x unused parameter x flags x empty batch on one rank."""
    cases = {}
    flags = list(itertools.product((False, True), repeat=2))
    for (checkpoint, unused), outcomes in MATRIX_A.items():
        model = {'checkpoint': checkpoint, 'unused': unused, 'decoder': 3}
        for (static, find_unused), outcome in zip(flags, outcomes):
            names = {UNFINISHED: EMBED, TWICE: BLOCK}.get(outcome, ())
            for empty in (False, True):
                name = '-'.join(
                    [
                        checkpoint,
                        'unused' if unused == 'param' else 'all_used',
                        *['find_unused'] * find_unused,
                        *['static'] * static,
                        *['empty'] * empty,
                    ]
                )
                case = Case(name, model, find_unused, static, empty=empty)
                cases[name] = Expected(case, outcome, names)
    return cases


def _without_checkpoint() -> dict[str, Row]:
    """Unused parameters of each kind, and branches not taken."""
    rows = {'clean': Row({})}
    for kind in ('param', 'output', 'no_grad'):
        rows[f'unused_{kind}'] = Row({'unused': kind}, UNFINISHED, names=EMBED)
    # In the first step of a static graph the backward goes through all that
    # was returned, in the later ones only through the loss.
    rows['unused_logged'] = Row(
        {'unused': 'logged'}, UNFINISHED, static='unfinished@2', names=EMBED
    )
    rows['head_per_rank'] = Row(
        {'heads': 2}, UNFINISHED, names=HEADS, data={'head': 'rank'}
    )
    rows['head_per_step'] = Row(
        {'heads': 2},
        UNFINISHED,
        static='changed@1',
        names=HEADS[2:],
        data={'head': 'step'},
    )
    return rows


def _reentrant() -> dict[str, Row]:
    """A reentrant checkpoint hides its parameters, and may fire twice."""
    rows = {}

    def add(name: str, plain: str, *rest: str, **model: Any) -> None:
        rows[f'reentrant_{name}'] = Row(
            {'checkpoint': 'reentrant', **model}, plain, *rest, names=BLOCK
        )

    for stem in ('trainable', 'frozen', 'none'):
        # Nothing is pending after the first of the two nested backwards when
        # all else has its gradient: the reduction ends there, in silence.
        silent = TWICE if stem == 'trainable' else 'diverged'
        add(f'once-{stem}', 'ok', TWICE, stem=stem)
        add(f'series-{stem}', silent, TWICE, stem=stem, use='series')
        add(f'merged-{stem}', silent, TWICE, stem=stem, use='merged')
        add(f'views-{stem}', TWICE, TWICE, stem=stem, use='views')
    # An unused parameter is pending for ever, which makes it loud.
    add(
        'series-none-unused',
        TWICE,
        TWICE,
        stem='none',
        use='series',
        unused='param',
    )
    for use in ('once', 'series'):
        add(
            f'{use}-input_without_grad',
            UNFINISHED,
            'untrained',
            'untrained',
            stem='frozen',
            use=use,
            input_grad=False,
        )
    unused = {'checkpoint': 'reentrant', 'unused': 'param'}
    rows['reentrant_unused'] = Row(unused, UNFINISHED, TWICE, names=EMBED)
    decoder = {'decoder': 3, 'decoder_checkpoint': 'reentrant'}
    for stem in ('trainable', 'frozen'):
        rows[f'reentrant_decoder-{stem}'] = Row(
            {'stem': stem, **decoder}, TWICE, TWICE, names=DECODER
        )
    return rows


def _ours() -> dict[str, Row]:
    """Ours is an ordinary part of the graph."""
    models = {
        f'{use}-{stem}': {'use': use, 'stem': stem}
        for use in ('once', 'series', 'merged', 'views')
        for stem in ('trainable', 'none')
    }
    for use in ('once', 'series'):
        options = {'stem': 'frozen', 'use': use, 'input_grad': False}
        models[f'{use}-input_without_grad'] = options
    models['decoder'] = {'decoder': 3, 'decoder_checkpoint': 'ours'}
    rows = {
        f'ours_{name}': Row({'checkpoint': 'ours', **model})
        for name, model in models.items()
    }
    for stem, use in (('trainable', 'once'), ('none', 'series')):
        rows[f'ours_{use}-{stem}-unused'] = Row(
            {
                'checkpoint': 'ours',
                'stem': stem,
                'use': use,
                'unused': 'param',
            },
            UNFINISHED,
            names=EMBED,
        )
    return rows


def _empty() -> dict[str, Row]:
    """A batch without objects that leaves the box branch out."""
    skip = {'skip_empty': True}
    data = {'empty': True}
    rows = {
        f'{kind}_skips_when_empty': Row(
            {'checkpoint': kind, **skip},
            LATE,
            static=LATE,
            names=BOX,
            data=data,
        )
        for kind in ('none', 'ours')
    }
    rows['reentrant_skips_when_empty'] = Row(
        {'checkpoint': 'reentrant', **skip},
        LATE,
        TWICE,
        LATE,
        names=BOX,
        data=data,
    )
    return rows


def _fairscale() -> dict[str, Row]:
    """Its checkpoints are reentrant."""
    model = {'checkpoint': 'fairscale'}
    return {
        'fairscale': Row(model, 'ok', TWICE, names=BLOCK),
        'fairscale_unused': Row(
            {**model, 'unused': 'param'}, UNFINISHED, TWICE, names=EMBED
        ),
    }


def _parts() -> dict[str, Row]:
    """Undefined gradients, and hooks that change them or the weights."""
    return {
        f'part_{name}': Row({'part': name}, *part[1:])
        for name, part in PARTS.items()
    }


def matrix_b() -> dict[str, Expected]:
    """Kinds of use x (no flag, find_unused, static_graph)."""
    rows = {
        **_without_checkpoint(),
        **_reentrant(),
        **_ours(),
        **_empty(),
        **_fairscale(),
        **_parts(),
    }
    flags = {'plain': {}, 'find_unused': {'find_unused': True}}
    flags['static'] = {'static': True}
    cases = {}
    for kind, row in rows.items():
        for flag, options in flags.items():
            name, outcome = f'{kind}-{flag}', getattr(row, flag)
            names = row.names
            if outcome == TWICE and not {'decoder', 'part'} & row.model.keys():
                names = BLOCK
            case = Case(name, row.model, **options, **row.data)
            cases[name] = Expected(
                case, outcome, () if outcome == 'ok' else names
            )
    return cases


MATRIX = {**matrix_a(), **matrix_b()}


def ours_of(name: str) -> str:
    """Outcome of a case with our wrapper.

    The wrapper raises on both ranks, in the step that has the cause. A model
    that is not trained in one process either is left to the preflight, and an
    internal error of PyTorch stays, on both ranks, but for sparse embeddings.
    """
    outcome = MATRIX[name].outcome
    if name.startswith('part_none_of_sparse_table') and (
        outcome == 'unexpected@0' and not name.endswith('-static')
    ):
        return 'GradientSyncError@0'
    if outcome in ('ok', 'untrained', 'unexpected@0'):
        return outcome
    early = {UNFINISHED: 0, 'unfinished@2': 1, LATE: 1, 'diverged': 0}
    step = early[outcome] if outcome in early else outcome.partition('@')[2]
    return f'GradientSyncError@{step}'
