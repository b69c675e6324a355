from mmext.preflight.proof._name_groups import by_module, count_of, in_words

NAMES = ['a.b.w', 'a.b.v', 'a.c', 'd.w', 'e']


def test_the_largest_module_that_holds_no_others():
    assert by_module(['a.b.w', 'a.b.v'], NAMES) == {'a.b': ['a.b.w', 'a.b.v']}
    assert by_module(['a.b.w', 'a.c'], NAMES) == {
        'a.b.w': ['a.b.w'],
        'a.c': ['a.c'],
    }
    assert list(by_module(NAMES, NAMES)) == ['a', 'd', 'e']


def test_words():
    assert in_words(NAMES, NAMES) == 'a (3), d (1), e'
    assert in_words(NAMES[:2], NAMES) == 'a.b'
    many = [f'm{i}.w' for i in range(9)]
    assert in_words(many, many).endswith('m5 (1), 3 more')


def test_counts():
    assert count_of(['x']) == '1 parameter'
    assert count_of([], 'module') == '0 modules'
