"""The page as text: what is in it, and that nothing in it can act."""

from html.parser import HTMLParser

import pytest
from helpers.label_report import finding, group, report_of, split_of

from mmext.checks.labels.page import Picture, report_html
from mmext.checks.labels.report import Report
from mmext.checks.labels.rules import RULES

PLANTED = (
    '<script>alert(1)</script>',
    '</script><script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '{{ 7 * 191 }}',
    '<!--',
    '&lt;b&gt;',
)
VOID = {'br', 'img', 'input', 'link', 'meta', 'rect'}


class Page(HTMLParser):
    """Elements with their attributes, and the text of each kind."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(content.decode())
        assert self.open == [], 'elements that are not closed'

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f'{tag} {names}'
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else '', data))

    def all(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.elements if name == tag]

    def text(self) -> str:
        kept = [
            text for tag, text in self.texts if tag not in ('style', 'script')
        ]
        return ' '.join(kept)


def picture(rule: str = 'SEG001', **fields) -> Picture:
    own = {
        'group': 0,
        'uri': 'data:image/png;base64,AAAA',
        'width': 4,
        'height': 3,
        'alt': 'image',
    }
    own = {name: fields.pop(name, value) for name, value in own.items()}
    fields = {
        'split': 'train',
        'file': 'a.png',
        'key': 'y=1, x=2',
        'value': '7',
        'message': 'label 7 is out of range',
    } | fields
    return Picture(finding=finding(rule, **fields), **own)


def full_report() -> Report:
    return report_of(
        group(
            'SEG001',
            finding('SEG001', file='a.png', split='train', pixel=(1, 2)),
            finding('SEG001', file='b.png', split='val', value='8'),
            value='7',
            num_findings=1234,
            num_files=1200,
            count=5_000_000,
        ),
        group('CLS001', finding('CLS001', value='1', split='train')),
        group('DUP003', finding('DUP003', file='c.jpg')),
        splits=(
            split_of('train', [70, 0, 30], ('road', 'car', 'sky')),
            split_of('val', [50, 40, 10], ('road', 'car', 'sky')),
        ),
    )


def test_all_is_said():
    text = Page(report_html(full_report(), [picture()])).text()
    for words in (
        '1 error, 1 warning, 1 note',
        '20 samples of 2 splits',
        'in 1,234 locations',
        'mend it',
        'a.png',
        'y=1, x=2',
        '2 examples of 1,234',
        '5,000,000',
        'pixels',
        'road',
        '70.00 %',
        'label 7 is out of range',
        f'{len(RULES)} rules were applied; 3 found something',
        *(rule.title for rule in RULES.values()),
        *(rule.remedy for rule in RULES.values()),
    ):
        assert words in text, words


def test_filters_offer_what_there_is():
    content = report_html(
        full_report(),
        [
            picture(),
            picture('DUP003', split='', group=2),
        ],
    )
    values = [item.get('value') for item in Page(content).all('option')]
    assert values == [
        *['', 'CLS001', 'DUP003', 'SEG001'],
        *['', 'train', 'val'],
        *['', 'DUP003', 'SEG001'],
        *['', 'train', 'val'],
    ]


def test_nothing_found():
    page = Page(report_html(report_of(splits=[split_of('train', [1, 2])])))
    text = page.text()
    assert 'Nothing was found' in text
    assert 'Label check: nothing was found' in text
    assert not page.all('form')
    assert page.all('rect')


@pytest.mark.parametrize('planted', PLANTED)
def test_nothing_planted_is_an_element(planted):
    """Wherever a text from the data goes, it stays a text."""

    def page_of(word: str) -> Page:
        where = dict.fromkeys(('split', 'file', 'value'), word)
        own = finding('DET006', message=word, remedy=word, key=word, **where)
        report = report_of(
            group('DET006', own, message=word, remedy=word, value=word),
            splits=[split_of(word, [3, 4], (word, 'x'))],
        )
        shown = picture(
            'DET006',
            message=word,
            alt=word,
            key=word,
            **where,
        )
        return Page(report_html(report, [shown]))

    plain, page = page_of('plain'), page_of(planted)
    tags = [tag for tag, _ in page.elements]
    assert tags == [tag for tag, _ in plain.elements]
    names = [sorted(attrs) for _, attrs in page.elements]
    assert names == [sorted(attrs) for _, attrs in plain.elements]
    assert planted in page.text()
    scripts = [text for tag, text in page.texts if tag == 'script']
    assert scripts == [text for tag, text in plain.texts if tag == 'script']


def test_widths_are_of_one_scale_and_what_is_rare_is_seen():
    for counts, shares, widths in (
        (
            [750, 240, 10],
            ['75.00 %', '24.00 %', '1.00 %'],
            ['100.00', '32.00', '1.33'],
        ),
        (
            [10**9, 1, 0],
            ['100.00 %', '< 0.01 %', '0.00 %'],
            ['100.00', '0.40', '0.00'],
        ),
    ):
        report = report_of(splits=[split_of('train', counts)])
        page = Page(report_html(report))
        assert [bar['width'] for bar in page.all('rect')] == widths
        for share in shares:
            assert f'{share}, in ' in page.text()
