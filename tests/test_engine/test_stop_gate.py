"""The agreement on where to stop, in all orders of events."""

import itertools
import random
import threading

import pytest
from torch import distributed as dist

from mmext.engine import LocalStore, StopGate

TRAIN, TO_VAL, VAL_BATCH, EVALUATE = range(4)
# Two steps, a validation of two batches, a step. Units end before the next
# one begins; batches of a validation need nobody else.
SCRIPT = [TRAIN, TRAIN, TO_VAL, VAL_BATCH, VAL_BATCH, EVALUATE, TRAIN]


class Rank:
    """Plays the script step by step, and blocks where a collective would.

    Args:
        gate: Its gate.
        world: All ranks, to look at their positions.
    """

    def __init__(self, gate, world):
        self.gate, self.world = gate, world
        self.at = 0  # next entry of the script
        self.begun = 0  # collectives entered
        self.stopped_at = None

    def can_move(self):
        """A collective ends when all have entered it."""
        if self.stopped_at is not None or self.at == len(SCRIPT):
            return False
        if SCRIPT[self.at] == VAL_BATCH:
            return True
        if self.begun == self.at:
            return True  # enters it
        return all(other.begun > self.at for other in self.world)

    def move(self):
        kind = SCRIPT[self.at]
        if kind == VAL_BATCH:
            self.at += 1
            self.begun = self.at
            last = SCRIPT[self.at] != VAL_BATCH
            if last:
                self.meet()
            elif self.gate.should_stop(begin=False):
                self.stopped_at = self.at
        elif self.begun == self.at:
            self.begun += 1
        else:
            self.at += 1
            self.gate.finish_unit()
            if self.gate.should_stop(begin=kind != TO_VAL):
                self.stopped_at = self.at

    def meet(self):
        """``StopGate.meet``, one look per move instead of waiting."""
        self.gate.store.add('arrived', 1)
        self.can_move = self.can_leave_meeting
        self.move = self.look

    def can_leave_meeting(self):
        return self.stopped_at is None

    def look(self):
        complete = self.gate.store.add('arrived', 0) == len(self.world)
        if self.gate.should_stop(begin=complete):
            self.stopped_at = self.at
        elif complete:
            del self.can_move, self.move


def play(seed, world_size):
    """Random order of moves; signals at random moments to random ranks."""
    draw = random.Random(seed)
    store = LocalStore()
    world = []
    for rank in range(world_size):
        world.append(Rank(StopGate(store, rank, world_size), world))
    signals = [draw.randrange(30) for _ in range(draw.choice([1, 1, 2, 3]))]
    for moment in itertools.count():
        if moment in signals:
            draw.choice(world).gate.request(15)
        able = [rank for rank in world if rank.can_move()]
        if not able:
            return world
        draw.choice(able).move()
        assert moment < 5000, 'goes round in circles'


@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_all_stop_after_the_same_unit_in_any_order(world_size):
    stops = set()
    for seed in range(1500):
        world = play(seed, world_size)
        # within the validation, which all of them leave, places differ
        ends = {
            3 if rank.stopped_at in (3, 4, 5) else rank.stopped_at
            for rank in world
        }
        assert len(ends) == 1, f'seed {seed}: {ends}'
        end = ends.pop()
        if end is None:
            assert all(rank.at == len(SCRIPT) for rank in world), (
                f'seed {seed} hangs'
            )
        stops.add(end)
    # With several ranks, the first to answer has begun the second step.
    first = set() if world_size > 1 else {1}
    assert {None, 2, 3, 6, 7} | first <= stops


def test_stops_within_two_units_after_the_one_of_the_signal():
    for seed in range(300):
        draw = random.Random(seed)
        store = LocalStore()
        gates = [StopGate(store, rank, 3) for rank in range(3)]
        gates[draw.randrange(3)].request(2)
        num_steps = 0
        answers = []
        while not any(answers):
            num_steps += 1
            order = draw.sample(gates, 3)
            answers = []
            for gate in order:
                gate.finish_unit()
                answers.append(gate.should_stop(begin=True))
        assert num_steps <= 3


def test_single_process_stops_at_once():
    gate = StopGate(LocalStore())
    gate.finish_unit()
    assert not gate.should_stop(begin=True)
    gate.request(2)
    assert gate.should_stop(begin=True)
    assert gate.signum == 2


def test_first_signal_is_remembered_everywhere():
    store = LocalStore()
    first, second = (StopGate(store, rank, 2) for rank in range(2))
    first.request(15)
    first.request(2)
    first.finish_unit()
    first.should_stop(begin=True)
    second.finish_unit()
    second.should_stop(begin=True)
    assert (first.signum, second.signum) == (15, 15)


def test_meet_waits_for_all():
    store = LocalStore()
    lock = threading.Lock()
    gates = [StopGate(store, rank, 2) for rank in range(2)]
    answers = {}

    def come(rank):
        answer = gates[rank].meet(10)
        with lock:
            answers[rank] = answer

    thread = threading.Thread(target=come, args=(0,))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    come(1)
    thread.join(10)
    assert answers == {0: False, 1: False}


def test_meet_ends_when_all_want_to_stop():
    store = LocalStore()
    late, early = (StopGate(store, rank, 2) for rank in range(2))
    late.request(15)
    assert not late.should_stop(begin=False)
    assert early.meet(10)
    assert late.should_stop(begin=False)


def test_meet_gives_up():
    gate = StopGate(LocalStore(), 0, 2)
    with pytest.raises(TimeoutError, match='only 1 of 2 processes came'):
        gate.meet(0.1)


def test_meet_gives_up_sooner_after_a_signal(monkeypatch):
    monkeypatch.setattr('mmext.engine.stop_gate._ANSWER_S', 0.1)
    gate = StopGate(LocalStore(), 0, 2)
    gate.request(15)
    with pytest.raises(TimeoutError, match='only 1 of 2 processes came'):
        gate.meet(600)


def test_works_with_the_store_of_torch():
    store = dist.TCPStore('127.0.0.1', 0, 1, True, wait_for_workers=False)
    first, second = (StopGate(store, rank, 2) for rank in range(2))
    assert not first.should_stop(begin=True)
    second.request(15)
    second.finish_unit()
    assert not second.should_stop(begin=True)
    first.finish_unit()
    assert not first.should_stop(begin=True)  # rank 1 has begun unit 2
    first.finish_unit()
    second.finish_unit()
    assert first.should_stop(begin=True)
    assert second.should_stop(begin=True)


def test_local_store():
    store = LocalStore()
    assert not store.check(['a'])
    assert store.compare_set('a', '', 'x') == b'x'
    assert store.compare_set('a', 'y', 'z') == b'x'
    assert store.compare_set('a', 'x', 'z') == b'z'
    assert (store.check(['a']), store.get('a')) == (True, b'z')
    assert [store.add('n', 2), store.add('n', 0)] == [2, 2]
