"""The page of a preflight in a real browser."""

import pytest
from helpers.browser import browser, complaints, open_file, requests, resize
from helpers.preflight_reports import sample_report

from mmext.checks.preflight.report import BatchReport, report_html

ROWS = '#finding-table tbody tr'


@pytest.fixture(scope='module')
def driver():
    with browser() as started:
        yield started


@pytest.fixture
def page(driver, tmp_path):
    """Open the page; at the end, nothing was loaded, nothing complained."""
    complaints(driver)
    requests(driver)
    file = tmp_path / 'report.html'
    open_file(driver, report_html(sample_report()), file)
    yield driver
    assert complaints(driver) == []
    assert set(requests(driver)) <= {file.as_uri()}


def shown(driver) -> list[str]:
    """Rules of the rows that can be seen, from above."""
    return [
        row.find_element('css selector', '.code').text
        for row in driver.find_elements('css selector', ROWS)
        if row.is_displayed()
    ]


def test_sorts_and_filters(page):
    assert page.title == 'Preflight: 1 error, 1 note'
    assert shown(page) == ['DDP001', 'KEY001']
    rule = page.find_elements('css selector', '#finding-table th button')[1]
    rule.click()
    rule.click()
    assert shown(page) == ['KEY001', 'DDP001']
    page.find_element('css selector', 'input[value=error]').click()
    wait = pytest.importorskip('selenium.webdriver.support.wait')
    wait.WebDriverWait(page, 10).until(lambda _: shown(page) == ['KEY001'])


def test_names_are_seen_and_no_script_runs(page):
    assert 'head.7.weight' in page.find_element('id', 'findings').text
    assert 'no gradient <script>' in page.find_element('id', 'findings').text
    assert page.execute_script('return document.scripts.length') == 1


@pytest.mark.parametrize('width', [400, 1200])
def test_losses_wrap(driver, tmp_path, width):
    losses = {f'd{n}.loss_of_a_long_name': 1.5 for n in range(40)}
    batch = BatchReport(kind='normal', steps=2, losses=losses, unused=0)
    content = report_html(sample_report(batches=(batch,)))
    resize(driver, width, 800)
    open_file(driver, content, tmp_path / 'report.html')
    wide = 'return document.documentElement.scrollWidth'
    assert driver.execute_script(wide) <= width
    table = driver.find_element('css selector', '#batches table')
    assert 300 < table.rect['width'] < width
    resize(driver, 1200, 900)
