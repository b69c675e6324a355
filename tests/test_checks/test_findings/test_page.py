"""Pages that need nothing but themselves."""

import base64
import hashlib
import re

from mmext.checks.findings.page import render

TEMPLATE = 'preflight.html.jinja'
PAGE = {
    'config': '<b>',
    'task': '',
    'trainable': 0,
    'verdict': 'fine',
    'worst': 'fine',
    'tiles': [],
    'not_done': ['\udcff'],
    'notes': [],
    'findings': [],
    'verdicts': [],
    'batches': [],
}


def page() -> str:
    return render('mmext.checks.preflight', TEMPLATE, page=PAGE).decode()


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
