"""Hooks in the wrong form, or twice."""

import pytest
from helpers.lint_findings import lint

EMA = {'type': 'EMAHook'}


@pytest.mark.parametrize(
    ('changes', 'key'),
    [
        ({'default_hooks': [EMA]}, 'default_hooks'),
        ({'default_hooks.logger': {'interval': 3}}, 'default_hooks.logger'),
        ({'default_hooks.logger': 'LoggerHook'}, 'default_hooks.logger'),
        ({'custom_hooks': EMA}, 'custom_hooks'),
        ({'custom_hooks': [{'interval': 3}]}, 'custom_hooks[0]'),
        ({'custom_hooks': [EMA, 'EMAHook']}, 'custom_hooks[1]'),
    ],
)
def test_wrong_form(changes, key):
    (found,) = lint(changes, 'HOOK001')
    assert found.key == key


def test_right_form():
    assert lint({'custom_hooks': [EMA]}, 'HOOK') == []
    assert lint({'default_hooks': None}, 'HOOK') == []


def test_twice():
    hook = {'type': 'mmext.CheckpointHook', 'interval': 2}
    (found,) = lint({'custom_hooks': [hook]}, 'HOOK002')
    assert 'CheckpointHook is there 2 times' in found.message
    assert lint({'custom_hooks': [{'type': 'MyHook'}] * 2}, 'HOOK002') == []


@pytest.mark.parametrize(
    ('settings', 'text'),
    [
        (dict(begin_epoch=13), 'ends at 12 epochs'),
        (dict(begin_epoch=3, begin_iter=5), 'one may be set'),
    ],
)
def test_average_that_never_begins(settings, text):
    hook = {**EMA, **settings}
    (found,) = lint({'custom_hooks': [hook]}, 'HOOK003')
    assert text in found.message


@pytest.mark.parametrize(
    'settings', [{}, dict(begin_epoch=12), dict(begin_iter=9000)]
)
def test_average_that_begins(settings):
    assert lint({'custom_hooks': [{**EMA, **settings}]}, 'HOOK') == []
