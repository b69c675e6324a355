"""The page of a report in a real browser."""

import json
import re

import pytest
from helpers import recited
from helpers.browser import browser, complaints, requests, resize
from helpers.label_page import choose, find, soon
from helpers.toy_ranks import load_tool

pytestmark = pytest.mark.slow

PLANTED = '<script>window.planted = 1; document.title = "planted"</script>'
CLASSES = ('cat', PLANTED)
TRUTH = {
    '<svg onload="planted = 2">.png': [(1, 5, 5, 35, 35)],
    'two.png': [(0, 5, 5, 35, 35), (1, 60, 5, 90, 35)],
}
TOLD = {
    'two.png': [(1, 5, 5, 35, 35, 0.9), (0, 50, 50, 70, 70, 0.8)],
}
CARDS = """
return [...document.querySelectorAll('#gallery figure')]
  .filter((card) => card.checkVisibility())
  .map((card) => card.querySelector('.message').textContent);
"""
TWO = '1 classification, 1 background, 1 missed, 0 right'
ONE = '1 missed, 0 right'


@pytest.fixture(scope='module')
def driver():
    with browser() as started:
        yield started


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """What the tool writes, with markup in the names of class and file."""
    location = tmp_path_factory.mktemp('recited')
    config = recited.write_detection(location, TRUTH, TOLD, CLASSES)
    args = [str(config), str(recited.write_checkpoint(location))]
    args += [
        '--work-dir',
        str(location / 'w'),
        '--report',
        str(location / 'r'),
    ]
    assert load_tool('test').main(args) == 0
    return location / 'r'


@pytest.fixture
def page(driver, folder):
    """Open it; at the end, nothing was loaded and nothing complained."""
    complaints(driver)
    requests(driver)
    resize(driver, 1200, 900)
    file = folder / 'report.html'
    driver.get(file.as_uri())
    yield driver
    assert complaints(driver) == []
    assert set(requests(driver)) <= {file.as_uri()}


def test_names_are_shown_and_nothing_planted_runs(page):
    assert page.title == (
        'Evaluation: mAP 0.000, most AP50 lost to classification: 0.500'
    )
    planted = 'return [typeof window.planted, document.scripts.length]'
    assert page.execute_script(planted) == ['undefined', 1]
    for part in ('#class-table', '.matrix', '#curves', '#gallery'):
        assert PLANTED in find(page, part).text
    loaded = 'return [...document.images].map((image) => image.naturalWidth)'
    assert min(page.execute_script(loaded)[:2]) >= 120


def test_filters_sorts_and_enlarges_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    soon(page, CARDS, [TWO, ONE])
    choose(page, 'gallery', 'rule', 'classification')
    soon(page, CARDS, [TWO])
    find(page, '#gallery button.picture').send_keys(Keys.ENTER)
    dialog = find(page, '#enlarged')
    assert dialog.is_displayed()
    assert f'classification: {PLANTED} 0.90, is cat' in dialog.text
    dialog.send_keys(Keys.ESCAPE)
    assert not dialog.is_displayed()
    find(page, 'form [type=reset]').send_keys(Keys.SPACE)
    soon(page, CARDS, [TWO, ONE])
    objects = find(page, '#class-table th:nth-child(2) button')
    objects.send_keys(Keys.ENTER)
    first = '#class-table tbody tr:first-child'
    assert find(page, first).text.startswith(PLANTED)
    objects.send_keys(Keys.ENTER)
    assert find(page, first).text.startswith('cat')
    skip = find(page, '.skip')
    assert skip.get_attribute('textContent') == 'To the classes'


@pytest.mark.parametrize('width', [320, 768, 1200, 1600])
def test_fits_the_window(page, width):
    resize(page, width, 800)
    wide = 'return document.documentElement.scrollWidth'
    assert page.execute_script(wide) <= width
    plots = page.find_elements('css selector', '.plot svg')
    for plot in plots:
        assert 100 < plot.size['width'] <= width
    # Of three plots of curves, the others show the axes of the first.
    ticks = ['0.00', '0.25', '0.50', '0.75', '1.00']
    texts = plots[0].text.split()
    assert texts == [*ticks, 'recall', *ticks, 'precision']
    assert len(plots) == 4
    parts = '.plot .curve, .plot #axes, .plot [href="#axes"]'
    for part in page.find_elements('css selector', parts):
        assert part.rect['width'] > 50
    # All columns of classes without a bar to scroll.
    if width >= 1200:
        assert find(page, '#class-table').rect['width'] <= width - 48


def test_dark_and_light(page):
    """Text, curves and cells of the matrix are seen on both grounds."""
    script = """
    const style = (each, name) => getComputedStyle(
      document.querySelector(each))[name];
    return [style('body', 'backgroundColor'), style('body', 'color'),
      style('.curve', 'stroke'), style('.level-9', 'backgroundColor')];
    """
    seen = []
    for scheme in ('light', 'dark'):
        page.execute_cdp_cmd(
            'Emulation.setEmulatedMedia',
            {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]},
        )
        seen.append(page.execute_script(script))
    for (ground, text, curve, cell), is_dark in zip(seen, (False, True)):
        lights = [
            sum(map(int, re.findall(r'\d+', value)[:3]))
            for value in (ground, text, curve)
        ]
        assert (lights[0] < 150) == is_dark
        assert min(abs(lights[0] - value) for value in lights[1:]) > 300
        assert cell != ground
    assert seen[0][2] != seen[1][2]


def test_what_is_shown_is_what_the_file_holds(page, folder):
    report = json.loads((folder / 'report.json').read_text())
    rows = page.find_elements('css selector', '.matrix tbody tr')
    cells = [
        [
            int(cell.text or 0)
            for cell in row.find_elements('css selector', 'td')
        ]
        for row in rows
    ]
    assert cells == recited.matrix(report)
    assert cells == [[0, 1, 0], [0, 0, 2], [1, 0, 0]]
