"""Pages that need nothing but themselves."""

import base64
import hashlib
import re

from mmext.checks.ddp import SyncSettings
from mmext.checks.preflight import PreflightReport
from mmext.checks.preflight.report import report_html


def page() -> str:
    report = PreflightReport(
        config='<b>',
        task='',
        trainable=0,
        values=0,
        settings=SyncSettings(),
        batches=(),
        not_done=('\udcff',),
    )
    return report_html(report).decode()


def test_the_policy_knows_style_and_script():
    text = page().replace('&#39;', "'")
    for tag, key in (('style', 'style-src'), ('script', 'script-src')):
        (content,) = re.findall(f'<{tag}>(.*?)</{tag}>', text, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        wanted = base64.b64encode(digest).decode()
        assert f"{key} 'sha256-{wanted}'" in text


def test_data_is_escaped():
    assert '&lt;b&gt;' in page()
    # Half a character of a file name is no reason to fail.
    assert r'\xff' in page()
