"""Settings by name: what nobody would read is refused, with a remedy."""

import copy

import pytest
from mmengine.config import Config, ConfigDict

from mmext.compat import translate_codetr_config
from mmext.models import CoDINOClassEmbedHead
from mmext.models.utils.named_cfg import (
    TEST_CFG_KEYS,
    TRAIN_CFG_KEYS,
    check_named_cfg,
    per_head,
    with_head_keys,
)
from mmext.preflight.misplaced_keys import RIGHT_PLACES, find_misplaced_keys

TRAIN = {
    'query_head': {'assigner': {'type': 'mmdet.HungarianAssigner'}},
    'rpn_head': {'assigner': {}, 'sampler': {}, 'allowed_border': -1},
    'rpn_proposal': {'nms_pre': 4000, 'nms': {'type': 'nms'}},
    'roi_head': [{'assigner': {}}, {'sampler': {}, 'pos_weight': -1}],
    'bbox_head': {'assigner': {}},
}


def check_train(cfg):
    return check_named_cfg(cfg, TRAIN_CFG_KEYS, 'train_cfg')


def test_good_settings_pass_unchanged():
    checked = check_train(TRAIN)
    assert checked == TRAIN
    assert isinstance(checked, ConfigDict)
    assert checked.rpn_proposal.nms.type == 'nms'
    assert checked.roi_head[1].pos_weight == -1


@pytest.mark.parametrize('convert', [dict, ConfigDict, lambda c: Config(c)])
def test_result_shares_nothing_with_the_input(convert):
    """Heads may edit what they are given; the config must not notice."""
    cfg = convert({'train_cfg': copy.deepcopy(TRAIN)})['train_cfg']
    checked = check_train(cfg)
    checked.rpn_proposal.nms['type'] = 'soft_nms'
    checked.roi_head[0]['assigner'] = None
    checked.query_head.clear()
    assert cfg == TRAIN


@pytest.mark.parametrize('empty', [None, {}])
def test_limit_no_settings(empty):
    assert check_train(empty) == {}
    assert check_train({'roi_head': [], 'bbox_head': None}) == {
        'roi_head': [],
        'bbox_head': None,
    }
    assert check_train({'roi_head': [None, {}]}) == {'roi_head': [None, {}]}


@pytest.mark.parametrize('cfg', [[{}, {}], ({},), 'roi_head', 5])
def test_rejects_positional_settings(cfg):
    kind = type(cfg).__name__
    with pytest.raises(
        TypeError,
        match=rf'train_cfg must be a dict keyed by head, got {kind}; .*'
        r'translate_codetr_config',
    ):
        check_train(cfg)
    assert translate_codetr_config.__module__.startswith('mmext.compat')


@pytest.mark.parametrize('value', [3, 'x', [3], [{}, 'x'], True])
def test_rejects_settings_that_are_no_dict(value):
    with pytest.raises(
        TypeError, match=r'train_cfg\.roi_head must be a dict or a list of'
    ):
        check_train({'roi_head': value})


@pytest.mark.parametrize('head', ['query_head', 'rpn_head', 'rpn_proposal'])
def test_rejects_a_list_for_what_there_is_one_of(head: str):
    with pytest.raises(
        TypeError, match=rf'train_cfg\.{head} must be a dict, got \['
    ):
        check_train({head: [{}]})


@pytest.mark.parametrize(
    ('cfg', 'message'),
    [
        ({'rcnn': {}}, r"train_cfg must have keys in .*got 'rcnn'; remove it"),
        ({'roi_heads': {}}, r"got 'roi_heads'; did you mean 'roi_head'\?"),
        ({0: {}}, r'train_cfg must have keys in .*got 0; remove it'),
        (
            {'query_head': {'asigner': {}}},
            r"train_cfg\.query_head must have .*; did you mean 'assigner'\?",
        ),
        (
            {'roi_head': [{}, {'nms_pre': 3}]},
            r"train_cfg\.roi_head must have .*got 'nms_pre'; remove it",
        ),
        (
            {'find_unused_parameters': True},
            r"got 'find_unused_parameters'; it belongs at the top level",
        ),
        ({'static_graph': True}, r'it belongs in .*model_wrapper_cfg'),
        (
            {'bbox_head': {'with_cp': False}},
            r"train_cfg\.bbox_head .*got 'with_cp'; it belongs in model\.back",
        ),
    ],
)
def test_rejects_what_nobody_reads(cfg: dict, message: str):
    with pytest.raises(ValueError, match=message):
        check_train(cfg)


@pytest.mark.parametrize('key', RIGHT_PLACES)
def test_names_the_place_that_the_check_of_the_config_names(key: str):
    place = RIGHT_PLACES[key]
    with pytest.raises(ValueError, match=f"got '{key}'; it belongs {place}$"):
        check_train({'bbox_head': {key: True}})
    (found,) = find_misplaced_keys({'model': {'train_cfg': {key: True}}})
    assert found.read_at == place


@pytest.mark.parametrize(
    ('known', 'name'),
    [(TRAIN_CFG_KEYS, 'train_cfg'), (TEST_CFG_KEYS, 'test_cfg')],
)
def test_every_known_setting_passes(known: dict, name: str):
    full = {head: dict.fromkeys(keys, 1) for head, keys in known.items()}
    assert check_named_cfg(full, known, name) == full
    for head, keys in known.items():
        assert not any(key == key.upper() for key in keys), head


def test_one_setting_serves_all_heads():
    settings = {'assigner': 1}
    assert per_head(settings, 3, 'train_cfg.roi_head') == [settings] * 3
    assert per_head(None, 2, 'train_cfg.roi_head') == [None, None]
    assert per_head(settings, 0, 'train_cfg.roi_head') == []


def test_a_list_has_one_for_each_head():
    given = [{'assigner': 1}, {'assigner': 2}]
    result = per_head(given, 2, 'train_cfg.roi_head')
    assert result == given
    assert result is not given
    assert per_head(tuple(given), 2, 'train_cfg.roi_head') == given


@pytest.mark.parametrize('settings', [[], [{}], [{}, {}, {}]])
def test_rejects_a_list_of_another_length(settings: list):
    with pytest.raises(
        ValueError,
        match=rf'train_cfg\.roi_head must hold one dict per head \(2\), got '
        rf'{len(settings)}',
    ):
        per_head(settings, 2, 'train_cfg.roi_head')


def test_a_kind_of_head_may_read_more():
    plain = {'type': 'mmext.CoDINOHead'}
    embeds = {'type': 'mmext.CoDINOClassEmbedHead'}
    cfg = {'query_head': {'class_embeddings': 'a.npy'}}
    for head in (embeds, {'type': CoDINOClassEmbedHead}):
        known = with_head_keys(TEST_CFG_KEYS, head, 'test_cfg_keys')
        assert check_named_cfg(cfg, known, 'test_cfg') == cfg
        assert known['roi_head'] == TEST_CFG_KEYS['roi_head']
    for head in (plain, {}):
        known = with_head_keys(TEST_CFG_KEYS, head, 'test_cfg_keys')
        assert known == TEST_CFG_KEYS
        with pytest.raises(ValueError, match='ClassEmbedHead reads it, in te'):
            check_named_cfg(cfg, known, 'test_cfg')
