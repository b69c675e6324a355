"""The page in a real browser: it loads nothing, sorts, filters, enlarges."""

import io

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
    rows,
    small_report,
    soon,
)
from PIL import Image

from mmext.checks.labels.page import report_html


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
    find(driver, f'{form} [value=error]').click()
    soon(driver, ROWS, ['CLS001', 'DUP003'])
    # Sorting keeps what is hidden hidden.
    find(driver, '#finding-table th:nth-child(2) button').click()
    soon(driver, ROWS, ['CLS001', 'DUP003'])
    assert cards(driver) == ['picture 0', 'picture 1', 'picture 3']


def test_filters_of_pictures(page):
    driver = page(small_report(), PICTURES)
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
