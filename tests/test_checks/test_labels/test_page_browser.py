"""The page in a real browser: it loads nothing, sorts, filters, enlarges."""

import io
import re

import numpy as np
import pytest
from helpers.browser import browser, complaints, open_file, requests, resize
from helpers.label_page import (
    ALL,
    CARDS,
    PICTURES,
    ROWS,
    cards,
    choose,
    find,
    picture,
    rows,
    small_report,
    soon,
)
from helpers.label_report import finding, group, report_of, split_of
from PIL import Image

from mmext.checks.labels.page import report_html

BAD = (
    '<script>window.planted = 1; document.title = "planted"</script>',
    '</script><script>window.planted = 2</script>',
    '"><img src=x onerror="window.planted = 3; alert(1)">',
    '<svg onload="window.planted = 4">',
    'javascript:window.planted=5',
    '\u2028\nwindow.planted = 6',
)


@pytest.fixture(scope='module')
def driver():
    with browser() as started:
        yield started


@pytest.fixture
def page(driver, tmp_path):
    """Open pages; at the end, nothing was loaded and nothing complained."""
    complaints(driver)
    requests(driver)
    file = tmp_path / 'report.html'
    resize(driver, 1200, 900)

    def show(report, pictures=()):
        open_file(driver, report_html(report, pictures), file)
        return driver

    yield show
    assert complaints(driver) == []
    assert set(requests(driver)) <= {file.as_uri()}


def test_shown_as_it_is(page):
    driver = page(small_report(), PICTURES)
    assert driver.title == 'Label check: 2 errors, 1 warning, 1 note'
    assert rows(driver) == ALL
    assert cards(driver) == ['picture 0', 'picture 1', 'picture 3']
    loaded = 'return [...document.images].map((each) => each.naturalWidth)'
    assert driver.execute_script(loaded)[:3] == [40, 40, 40]
    shot = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
    assert shot.size == (1200, 900)
    assert len(np.unique(np.asarray(shot.convert('L')))) > 30


@pytest.mark.slow
def test_sorts_by_every_column(page):
    driver = page(small_report())
    headers = driver.find_elements('css selector', '#finding-table th button')
    wanted = {
        # Both clicks; numbers by size, and what is empty always last.
        'Severity': (
            ['DUP003', 'CLS001', 'SEG00110', 'SEG0019'],
            ALL,
        ),
        'Rule': (
            ['CLS001', 'DUP003', 'SEG00110', 'SEG0019'],
            ['SEG00110', 'SEG0019', 'DUP003', 'CLS001'],
        ),
        'Value': (
            ['SEG0019', 'SEG00110'],
            ['SEG00110', 'SEG0019'],
        ),
        'Splits': (
            ['SEG00110', 'CLS001', 'SEG0019', 'DUP003'],
            ['SEG0019', 'DUP003', 'SEG00110', 'CLS001'],
        ),
        'Files': (['SEG00110'], None),
        'Count': (['SEG0019', 'SEG00110'], None),
    }
    seen = set()
    for header in headers:
        cell = header.find_element('xpath', '..')
        for click in (0, 1):
            header.click()
            assert sorted(rows(driver)) == sorted(ALL)
            order = (wanted.get(header.text) or (None, None))[click]
            if order is not None:
                assert rows(driver)[: len(order)] == order, header.text
                seen.add(header.text)
            way = cell.get_attribute('aria-sort')
            assert way in ('ascending', 'descending')
            marked = driver.find_elements(
                'css selector', '#finding-table [aria-sort]'
            )
            assert marked == [cell]
    assert seen == set(wanted)


def test_sorts_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    driver = page(small_report())
    button = find(driver, '#finding-table th:nth-child(2) button')
    button.send_keys(Keys.ENTER)
    assert rows(driver)[0] == 'CLS001'
    button.send_keys(Keys.SPACE)
    assert rows(driver)[-1] == 'CLS001'
    assert driver.switch_to.active_element == button


def test_filters(page):
    driver = page(small_report(), PICTURES)
    form = '[data-for=finding-table]'
    choose(driver, 'finding-table', 'rule', 'SEG001')
    soon(driver, ROWS, ['SEG00110', 'SEG0019'])
    choose(driver, 'finding-table', 'split', 'val')
    soon(driver, ROWS, ['SEG0019'])
    assert find(driver, f'{form} .count').text == '1 of 4 shown'
    choose(driver, 'finding-table', 'rule', 'CLS001')
    soon(driver, ROWS, [])
    assert find(driver, '#findings .empty').is_displayed()
    find(driver, f'{form} [type=reset]').click()
    soon(driver, ROWS, ALL)
    assert not find(driver, '#findings .empty').is_displayed()
    choose(driver, 'finding-table', 'class', 'car')
    soon(driver, ROWS, ['CLS001'])
    find(driver, f'{form} [type=reset]').click()
    find(driver, f'{form} [value=error]').click()
    soon(driver, ROWS, ['CLS001', 'DUP003'])
    # Sorting keeps what is hidden hidden.
    find(driver, '#finding-table th:nth-child(2) button').click()
    soon(driver, ROWS, ['CLS001', 'DUP003'])
    assert cards(driver) == ['picture 0', 'picture 1', 'picture 3']


def test_filters_of_pictures(page):
    driver = page(small_report(), PICTURES)
    choose(driver, 'gallery', 'class', 'sky')
    soon(driver, CARDS, ['picture 0'])
    choose(driver, 'gallery', 'class', '')
    choose(driver, 'gallery', 'rule', 'DUP003')
    soon(driver, CARDS, ['picture 3'])
    # The second finding's own link shows its pictures alone.
    link = find(driver, '#finding-table tr:nth-child(2) .to-pictures')
    driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center'})", link
    )
    link.click()
    soon(driver, CARDS, ['picture 1'])
    choose(driver, 'gallery', 'split', '')
    choose(driver, 'gallery', 'split', 'train')
    soon(driver, CARDS, ['picture 0'])
    assert rows(driver) == ALL


def test_enlarges(page):
    from selenium.webdriver.common.keys import Keys

    driver = page(small_report(), PICTURES)
    buttons = driver.find_elements('css selector', 'button.picture')
    dialog = find(driver, '#enlarged')
    assert not dialog.is_displayed()
    buttons[0].click()
    assert dialog.is_displayed()
    large = dialog.find_element('css selector', 'img')
    assert large.get_attribute('src') == PICTURES[0].uri
    assert large.size['width'] > 500
    assert 'message 0' in dialog.text
    dialog.send_keys(Keys.ARROW_RIGHT)
    assert large.get_attribute('alt') == 'picture 1'
    dialog.send_keys(Keys.ARROW_LEFT)
    dialog.send_keys(Keys.ARROW_LEFT)
    assert large.get_attribute('alt') == 'picture 0'
    find(driver, '#enlarged .close').click()
    assert not dialog.is_displayed()
    assert driver.switch_to.active_element == buttons[0]


def test_nothing_planted_runs(page):
    fields = ('message', 'remedy', 'file', 'key', 'value', 'split')
    report = report_of(
        *(
            group(
                'DET006',
                finding('DET006', **dict.fromkeys(fields, word)),
                message=word,
                remedy=word,
                value=word,
            )
            for word in BAD
        ),
        splits=[split_of(BAD[0], [1] * len(BAD), BAD)],
    )
    pictures = [
        picture('DET006', index, word, file=word, value=word)
        for index, word in enumerate(BAD)
    ]
    driver = page(report, pictures)
    # Used, too: what filters and dialog do with the texts.
    for word in BAD[:2]:
        driver.execute_script(
            "const list = document.querySelector('[name=class]');"
            'list.value = arguments[0];'
            "list.dispatchEvent(new Event('input', {bubbles: true}));",
            word,
        )
    find(driver, 'button.picture').click()
    find(driver, '#enlarged .next').click()
    planted = 'return [typeof window.planted, document.title]'
    assert driver.execute_script(planted) == [
        'undefined',
        'Label check: 6 errors',
    ]
    assert BAD[1] in find(driver, '#enlarged').text
    own = 'return document.scripts.length'
    assert driver.execute_script(own) == 1


def test_the_policy_holds(driver, tmp_path):
    """What gets into the page all the same neither runs nor loads."""
    content = report_html(small_report())
    content = content.replace(
        b'<h1>',
        b'<script>window.planted = 1</script>'
        b'<img src="x.png" onerror="window.planted = 2">'
        b'<style>h1 { color: rgb(1, 2, 3) }</style><h1>',
    )
    complaints(driver)
    requests(driver)
    open_file(driver, content, tmp_path / 'x.html')
    assert driver.execute_script('return typeof planted') == 'undefined'
    assert rows(driver) == ALL
    colour = driver.execute_script(
        "return getComputedStyle(document.querySelector('h1')).color"
    )
    assert colour != 'rgb(1, 2, 3)'
    refused = ' '.join(complaints(driver))
    assert len(re.findall('Content Security Policy', refused)) >= 3
    assert requests(driver) == [(tmp_path / 'x.html').as_uri()]


@pytest.mark.parametrize('width', [400, 320, 800, 1600])
def test_fits_the_window(page, width):
    report = small_report()
    driver = page(report, PICTURES)
    resize(driver, width, 800)
    wide = 'return document.documentElement.scrollWidth'
    assert driver.execute_script(wide) <= width
    assert rows(driver) == ALL
    find(driver, '#finding-table th:nth-child(2) button').click()
    assert rows(driver)[0] == 'CLS001'


def test_without_javascript(driver, tmp_path):
    """All can be read; what needs a script is not there."""
    driver.execute_cdp_cmd(
        'Emulation.setScriptExecutionDisabled', {'value': True}
    )
    try:
        content = report_html(small_report(), PICTURES)
        open_file(driver, content, tmp_path / 'report.html')
        assert not driver.find_elements('css selector', 'button.sort')
        for selector in ('form[data-for=gallery]', 'form[role=search]'):
            assert not find(driver, selector).is_displayed()
        text = find(driver, 'body').text
        for word in ('b.png', 'mend it', '70.00 %', 'message 3', 'road'):
            assert word in text
        for image in driver.find_elements('css selector', '#gallery img'):
            assert image.is_displayed()
    finally:
        driver.execute_cdp_cmd(
            'Emulation.setScriptExecutionDisabled', {'value': False}
        )
