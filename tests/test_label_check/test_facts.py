"""Facts survive the store: bytes and back, defaults left out."""

import msgspec

from mmext.label_check.facts import (
    BoxFacts,
    ImageFacts,
    MaskFacts,
    Sample,
    SampleFacts,
)


def test_round_trip():
    facts = SampleFacts(
        split='train',
        sample=Sample(
            index=3,
            image='a.jpg',
            mask='a.png',
            boxes=(BoxFacts(box=(1.0, 2.0, float('inf'), 4.0), label=2),),
        ),
        image=ImageFacts(width=4, height=3, digest='ab', fingerprint=2**63),
        mask=MaskFacts(width=4, height=3, mode='L', values=((0, 12),)),
    )
    content = msgspec.msgpack.encode(facts)
    assert msgspec.msgpack.decode(content, type=SampleFacts) == facts


def test_defaults_take_no_space():
    assert msgspec.json.encode(MaskFacts()) == b'{}'
    assert msgspec.json.encode(Sample(index=0)) == b'{"index":0}'
