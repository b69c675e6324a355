"""Range checks at once, later, and never with a wait."""

import copy
import pickle

import pytest
import torch

from mmext.models.losses.label_range import (
    BatchContext,
    LabelRangeError,
    LabelRangeMonitor,
    LabelReport,
    make_report,
    out_of_range,
    set_current_batch,
    valid_labels,
)

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
every_dtype = pytest.mark.parametrize('dtype', DTYPES)


@pytest.fixture(autouse=True)
def _no_batch():
    yield
    set_current_batch()


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of a small dtype, around 0 and the ends of a large one."""
    limits = torch.iinfo(dtype)
    if limits.bits <= 16:
        return torch.arange(limits.min, limits.max + 1).to(dtype)
    return torch.tensor([limits.min, *range(-300, 400), limits.max]).to(dtype)


@every_dtype
@pytest.mark.parametrize('num_classes', [1, 2, 19, 150, 256, 300])
@pytest.mark.parametrize('ignore', [None, 255, -100, -1, 0, 7, 300, 10**12])
def test_matches_python_numbers(dtype, num_classes, ignore):
    """No number wraps around in a comparison."""
    label = numbers(dtype)
    values = label.tolist()
    valid = [0 <= v < num_classes and v != ignore for v in values]
    bad = [not 0 <= v < num_classes and v != ignore for v in values]
    mask = valid_labels(label, num_classes, ignore)
    assert mask.tolist() == valid
    assert out_of_range(label, mask, ignore).tolist() == bad


@pytest.mark.parametrize('dtype', [torch.float32, torch.bool])
def test_rejects_dtypes(dtype):
    with pytest.raises(TypeError, match=r'integer dtype, got torch\.'):
        valid_labels(torch.zeros(3, dtype=dtype), 2, None)


def street(bad: int = 33) -> torch.Tensor:
    label = torch.randint(0, 19, (2, 6, 8), dtype=torch.uint8)
    label[0, 0, :4] = 255
    label[1, 2, 3:6] = bad
    return label


def test_cpu_raises_at_once():
    set_current_batch(4, ('a.png', 'b.png'), rank=1)
    monitor = LabelRangeMonitor(name='decode_head.loss_ce')
    with pytest.raises(LabelRangeError) as caught:
        monitor.check(street(), 19, 255)
    report = caught.value.report
    assert report.num_bad == 3
    assert report.values == ((33, 3),)
    assert report.images[0].first == (2, 3)
    text = str(caught.value)
    for part in (
        'decode_head.loss_ce: 3 pixels (3.12 %) in 1 of 2 images',
        '[iteration 5, rank 1]',
        'num_classes=19, ignore_index=255',
        'b.png: 3 pixels, first 33 at (y=2, x=3)',
        'labelTrainIds',
    ):
        assert part in text
    assert 'a.png' not in text


def test_background_is_a_label():
    label = torch.tensor([0, 3, 1])
    assert LabelRangeMonitor().check(label, 3, -100, background=True).all()
    with pytest.raises(LabelRangeError, match=r'must be in \[0, 3\]'):
        LabelRangeMonitor().check(label + 1, 3, -100, background=True)


def test_deferred_comes_with_the_next_check():
    set_current_batch(0, ('a.png', 'b.png'))
    monitor = LabelRangeMonitor(name='x')
    monitor.deferred = True
    label = street()
    valid = monitor.check(label, 19, 255)
    assert not valid[1, 2, 3:6].any()
    set_current_batch(1, ('c.png', 'd.png'))
    with pytest.raises(LabelRangeError, match=r'iteration 1, rank 0') as error:
        monitor.check(street(0), 19, 255)
    assert 'b.png' in str(error.value)
    # It is told once.
    monitor.check(street(0), 19, 255)
    monitor.poll(wait=True)


def test_hook_looks_instead_of_the_next_check():
    monitor = LabelRangeMonitor()
    monitor.deferred = monitor.has_hook = True
    for _ in range(2):
        monitor.check(street(), 19, 255)
    with pytest.raises(LabelRangeError):
        monitor.poll()


def test_tells_of_a_map_that_was_changed():
    monitor = LabelRangeMonitor()
    monitor.deferred = True
    label = street()
    monitor.check(label, 19, 255)
    label[0, 0, 0] = 77
    with pytest.raises(LabelRangeError, match='was changed after') as error:
        monitor.poll()
    assert dict(error.value.report.values) == {33: 3, 77: 1}


@pytest.mark.parametrize('deferred', [None, True])
def test_ignore_warns_once_and_counts(deferred, monkeypatch):
    said = []
    monkeypatch.setattr(
        'mmext.models.losses.label_range.print_log',
        lambda text, *_: said.append(text),
    )
    monitor = LabelRangeMonitor('ignore', 'some_loss')
    monitor.deferred = deferred
    for _ in range(3):
        valid = monitor.check(street(), 19, 255)
        monitor.poll()
    assert not valid[1, 2, 3:6].any()
    assert monitor.num_ignored == 9
    assert len(said) == 1
    assert 'some_loss: 3 pixels' in said[0]
    assert 'are left out of the loss' in said[0]


def test_queue_has_an_end_without_the_hook():
    """A training that was broken off leaves monitors that wait for it."""
    monitor = LabelRangeMonitor()
    monitor.deferred = monitor.has_hook = True
    for _ in range(200):
        monitor.check(street(255), 19, 255)
    assert len(monitor._queue) <= 64

    def train_on() -> None:
        for _ in range(64):
            monitor.check(street(255), 19, 255)

    monitor.check(street(), 19, 255)
    with pytest.raises(LabelRangeError):
        train_on()


class Event:
    """Of a device that is still busy."""

    is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.is_done = True


def test_poll_waits_for_the_device_only_if_asked_to():
    monitor = LabelRangeMonitor()
    monitor.deferred = monitor.has_hook = True
    for bad in (255, 33):
        monitor.check(street(bad), 19, 255)
    first, second = monitor._queue
    first.event, second.event = Event(), Event()
    monitor.poll()
    second.event.is_done = True
    monitor.poll()
    assert not first.event.is_done
    with pytest.raises(LabelRangeError):
        monitor.poll(wait=True)
    assert first.event.is_done


@pytest.mark.slow
@pytest.mark.parametrize('deferred', [None, True])
def test_graphs_are_not_compiled_anew_for_each_batch(deferred):
    monitor = LabelRangeMonitor(name='x')
    monitor.deferred = deferred
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(
        lambda label: monitor.check(label, 19, 255) & True, backend=backend
    )
    counts = []
    for iteration in range(12):
        set_current_batch(iteration, (f'{iteration}.png', 'b.png'))
        label = street(255)
        assert torch.equal(step(label), label != 255)
        counts.append(len(graphs))
    assert 0 < counts[2] == counts[-1]

    def wrong() -> None:
        step(street())
        monitor.poll(wait=True)

    with pytest.raises(LabelRangeError, match=r'iteration 12, rank 0'):
        wrong()


def test_soft_labels():
    monitor = LabelRangeMonitor(name='soft')
    target = torch.tensor([[0.25, 0.75], [255.0, 255.0]])
    ignored = (target == 255).all(1, keepdim=True)
    valid = monitor.check_soft(target, ignored)
    assert valid.tolist() == [[True, True], [False, False]]
    for wrong in (-0.1, 1.5, float('nan'), float('inf')):
        target[0, 0] = wrong
        with pytest.raises(LabelRangeError, match=r'must be in \[0, 1\]'):
            monitor.check_soft(target, ignored)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_soft_labels_may_miss_the_ends_by_rounding(dtype):
    """Resizing ones gives 1.0000002, mixing labels in half precision 1.01."""
    eps = torch.finfo(dtype).eps
    target = torch.tensor([1 + 2 * eps, -2 * eps], dtype=dtype)
    assert target[0] > 1
    none = torch.zeros(2, dtype=torch.bool)
    assert LabelRangeMonitor().check_soft(target, none).all()


def test_soft_report_leaves_ignored_ones_out():
    target = torch.tensor([[0.25, 1.75], [255.0, 255.0]])
    ignored = (target == 255).all(1, keepdim=True)
    with pytest.raises(LabelRangeError) as error:
        LabelRangeMonitor().check_soft(target, ignored)
    assert error.value.report.values == ((1.75, 1),)


def test_copies_begin_anew():
    monitor = LabelRangeMonitor(name='x')
    monitor.deferred = True
    monitor.check(street(), 19, 255)
    for copied in (
        copy.deepcopy(monitor),
        pickle.loads(pickle.dumps(monitor)),
    ):
        copied.poll(wait=True)
        assert copied.name == 'x'


def test_error_survives_pickling():
    with pytest.raises(LabelRangeError) as caught:
        LabelRangeMonitor().check(street(), 19, 255)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)
    assert copied.report == caught.value.report


def report(label: torch.Tensor, num_classes: int = 5, **kwargs) -> LabelReport:
    kwargs.setdefault('ignore_index', 255)
    facts = LabelReport(
        'loss', num_classes, last_label=num_classes - 1, **kwargs
    )
    return make_report(label, facts)


def test_counts_every_value_and_image():
    label = torch.zeros(3, 4, 5, dtype=torch.long)
    label[0, 3, 4] = 70000
    label[2, 1, 2:4] = -3
    label[2, 0, 0] = 255
    results = report(label, batch=BatchContext(0, ('a', 'b', 'c')))
    assert results.num_bad == 3
    assert results.values == ((-3, 2), (70000, 1))
    assert results.in_range == (0, 255)
    assert [(i.index, i.count, i.first, i.value) for i in results.images] == [
        (0, 1, (3, 4), 70000),
        (2, 2, (1, 2), -3),
    ]
    text = str(results)
    assert '3 pixels (5 %) in 2 of 3 images' in text
    assert 'values: -3 (2), 70000 (1)' in text
    assert 'a: 1 pixels, first 70000 at (y=3, x=4)' in text
    assert '  b:' not in text


def test_flat_labels_name_positions_and_the_batch():
    label = torch.tensor([0, 1, 8, 8])
    results = report(label, batch=BatchContext(2, ('a', 'b')))
    text = str(results)
    assert '2 labels (50 %) are out of range' in text
    assert 'position 2: 1 labels, first 8' in text
    assert 'images of this batch: a, b' in text


def test_long_lists_are_cut_and_say_so():
    label = torch.arange(10, 210).view(100, 1, 2)
    text = str(report(label))
    assert 'and 188 more values' in text
    assert 'and 92 more' in text
    assert text.count('\n') < 16
