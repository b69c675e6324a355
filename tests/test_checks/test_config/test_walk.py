"""Keys of a config as text and as steps."""

import pytest

from mmext.checks.config.walk import join_key, option_key, split_key


@pytest.mark.parametrize('key', ['a.b[0][-1].c', 'a.b.0.-1.c', 'a.b[0].-1.c'])
def test_keys_are_read_in_both_forms(key):
    assert split_key(key) == ('a', 'b', 0, -1, 'c')
    assert option_key(key) == 'a.b.0.-1.c'
    assert join_key(split_key(key)) == 'a.b[0][-1].c'
