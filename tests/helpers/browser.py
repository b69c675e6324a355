"""A real browser without a window, for tests of pages."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    '--headless=new',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-dev-shm-usage',
    '--disable-background-networking',
    '--disable-component-update',
    '--no-first-run',
    '--hide-scrollbars',
)


@contextmanager
def browser(width: int = 1200, height: int = 900) -> Iterator[Any]:
    """Chromium, driven by Selenium; skips the test without them.

    Both programs are looked for here, as Selenium would download what it
    does not find.
    """
    webdriver = pytest.importorskip('selenium.webdriver')
    programs = [shutil.which(name) for name in ('chromium', 'chromedriver')]
    if None in programs:
        pytest.skip('needs the programs chromium and chromedriver')
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability(
        'goog:loggingPrefs', {'browser': 'ALL', 'performance': 'ALL'}
    )
    service = webdriver.ChromeService(programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    try:
        resize(driver, width, height)
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int) -> None:
    """Give the page another size, smaller than a window can be, too."""
    driver.execute_cdp_cmd(
        'Emulation.setDeviceMetricsOverride',
        {
            'width': width,
            'height': height,
            'deviceScaleFactor': 1,
            'mobile': False,
        },
    )


def requests(driver: Any) -> list[str]:
    """URLs that were loaded since the last call, without ``data:``."""
    messages = [
        json.loads(row['message'])['message']
        for row in driver.get_log('performance')
    ]
    # What the page's policy forbids is announced, and never sent.
    refused = {
        message['params']['requestId']
        for message in messages
        if message['method'] == 'Network.loadingFailed'
        and message['params'].get('blockedReason') == 'csp'
    }
    sent = [
        message['params']
        for message in messages
        if message['method'] == 'Network.requestWillBeSent'
    ]
    return [
        item['request']['url']
        for item in sent
        if item['requestId'] not in refused
        and not item['request']['url'].startswith('data:')
    ]


def complaints(driver: Any) -> list[str]:
    """What the browser has written to its console since the last call."""
    return [row['message'] for row in driver.get_log('browser')]


def open_file(driver: Any, content: bytes, path: Path) -> None:
    """Write a page, and open it as a file."""
    path.write_bytes(content)
    driver.get(path.as_uri())
