"""A report with pictures, and how a browser shows it."""

from contextlib import suppress

import numpy as np

from helpers.label_report import finding, group, report_of, split_of
from mmext.checks.findings.page import data_uri
from mmext.checks.labels.page import Picture
from mmext.checks.labels.report import Report


def picture(rule: str, index: int, **fields) -> Picture:
    """A grey picture, of the finding with that index."""
    pixels = np.full((30, 40, 3), 40 * (index + 1), np.uint8)
    fields = {'split': 'train', 'file': f'{index}.png'} | fields
    return Picture(
        finding=finding(rule, message=f'message {index}', **fields),
        group=index,
        width=40,
        height=30,
        uri=data_uri(pixels),
        alt=f'picture {index}',
    )


def small_report() -> Report:
    """Findings of four groups, in the order of ``ALL``."""
    return report_of(
        group(
            'SEG001',
            finding('SEG001', file='b.png', split='train'),
            value='10',
            count=70,
            num_files=2,
        ),
        group(
            'SEG001',
            finding('SEG001', file='a.png', split='val'),
            value='9',
            count=900,
            num_files=1,
        ),
        group('CLS001', finding('CLS001', value='1', split='train')),
        group('DUP003', finding('DUP003', file='c.jpg', split='val')),
        splits=(
            split_of('train', [70, 0, 30], ('road', 'car', 'sky')),
            split_of('val', [50, 40, 10], ('road', 'car', 'sky')),
        ),
    )


PICTURES = (
    picture('SEG001', 0),
    picture('SEG001', 1, split='val'),
    picture('DUP003', 3),
)
ROWS = """
return [...document.querySelectorAll('#finding-table tbody tr')]
  .filter((row) => row.checkVisibility())
  .map((row) => row.cells[1].textContent + row.cells[3].textContent);
"""
CARDS = """
return [...document.querySelectorAll('#gallery figure')]
  .filter((card) => card.checkVisibility())
  .map((card) => card.querySelector('img').alt);
"""
ALL = ['SEG00110', 'SEG0019', 'CLS001', 'DUP003']


def rows(driver) -> list[str]:
    """Rule and value of the findings that are shown."""
    return driver.execute_script(ROWS)


def cards(driver) -> list[str]:
    """Texts of the pictures that are shown."""
    return driver.execute_script(CARDS)


def find(driver, selector: str):
    """The first element of a selector."""
    return driver.find_element('css selector', selector)


def choose(driver, form: str, name: str, value: str) -> None:
    """Choose from a list of a filter."""
    options = f'form[data-for={form}] [name={name}] option[value="{value}"]'
    find(driver, options).click()


def soon(driver, script: str, wanted) -> None:
    """Texts are filtered a moment after the last key."""
    # Here, so that tests can be collected, and skipped, without Selenium.
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    def is_there(_) -> bool:
        return driver.execute_script(script) == wanted

    with suppress(TimeoutException):
        WebDriverWait(driver, 5, 0.02).until(is_there)
    assert driver.execute_script(script) == wanted
