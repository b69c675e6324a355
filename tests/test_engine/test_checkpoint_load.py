from collections import OrderedDict

import pytest
import torch
from mmengine.model import BaseTTAModel
from torch import nn

from mmext.engine import check_complete, check_fits, load_weights


def model(classes=4, width=3):
    return nn.Sequential(
        OrderedDict(
            backbone=nn.Sequential(
                nn.Linear(2, width),
                nn.BatchNorm1d(width),
                nn.Linear(width, width),
            ),
            head=nn.Linear(width, classes),
        )
    )


def checkpoint(module, prefix=''):
    return dict(
        state_dict=OrderedDict(
            (prefix + name, value + 1 if value.is_floating_point() else value)
            for name, value in module.state_dict().items()
        )
    )


def test_exact():
    source, target = checkpoint(model()), model()
    names = list(source['state_dict'])
    report = load_weights(target, source, 'a.pth')
    assert report.is_exact
    assert str(report) == '10 of 10 entries of the model'
    check_fits(report, 'a.pth')
    for name, value in target.state_dict().items():
        assert torch.equal(value, source['state_dict'][name])
    assert list(source['state_dict']) == names  # not changed


def test_agrees_with_torch_on_names():
    source, target = checkpoint(model()), model()
    weights = source['state_dict']
    weights.pop('backbone.0.bias')
    weights['backbone.2.extra'] = weights['neck.0.weight'] = torch.zeros(1)
    expected = model().load_state_dict(weights, strict=False)
    report = load_weights(target, source, 'a.pth')
    assert list(report.missing) == expected.missing_keys
    assert sorted(report.unexpected) == sorted(expected.unexpected_keys)


def test_bare_weights_and_wrapper_prefix():
    bare = checkpoint(model())['state_dict']
    assert load_weights(model(), bare, 'a.pth').is_exact
    wrapped = checkpoint(model(), 'module.')
    assert load_weights(model(), wrapped, 'a.pth').is_exact


def test_own_revise_keys():
    source = checkpoint(model(), 'student.')
    report = load_weights(
        model(), source, 'a.pth', revise_keys=[(r'^student\.', '')]
    )
    assert report.is_exact


def test_other_number_of_classes_is_a_readable_summary():
    target = model(classes=7)
    before = target.head.weight.clone()
    report = load_weights(target, checkpoint(model()), 'a.pth')
    assert str(report) == (
        '8 of 10 entries of the model; 2 have another shape (head.weight: '
        'torch.Size([4, 3]) in the checkpoint, torch.Size([7, 3]) in the '
        'model, head.bias: torch.Size([4]) in the checkpoint, '
        'torch.Size([7]) in the model)'
    )
    assert torch.equal(target.head.weight, before)
    with pytest.raises(ValueError, match='must be of the same model to resu'):
        check_fits(report, 'a.pth')


def test_backbone_alone_is_fine():
    weights = checkpoint(model())
    weights['state_dict'].pop('head.weight')
    weights['state_dict'].pop('head.bias')
    report = load_weights(model(), weights, 'a.pth')
    assert list(report.missing) == ['head.weight', 'head.bias']


def test_complete_minds_the_model_only():
    weights = checkpoint(model())
    weights['state_dict']['neck.weight'] = torch.zeros(1)
    check_complete(load_weights(model(), weights, 'a.pth'), 'a.pth')
    with pytest.raises(ValueError, match='must hold all weights of the mode'):
        check_complete(
            load_weights(model(), checkpoint(model(classes=3)), 'a.pth'),
            'a.pth',
        )
    weights['state_dict'].pop('head.bias')
    with pytest.raises(ValueError, match=r'not in the checkpoint \(head.bias'):
        check_complete(load_weights(model(), weights, 'a.pth'), 'a.pth')


def test_few_weights_all_of_which_are_used_are_fine():
    target = nn.ModuleList([nn.Linear(1, 1) for _ in range(20)])
    source = {'0.weight': torch.ones(1, 1)}
    assert load_weights(target, source, 'a.pth').num_loaded == 1


def test_many_names_are_cut_short():
    target = nn.ModuleList([nn.Linear(1, 1) for _ in range(8)])
    source = {f'{i}.weight': torch.ones(1, 1) for i in range(8)}
    assert '8 of the model are not in the checkpoint (0.bias, 1.bias, ' in (
        str(load_weights(target, source, 'a.pth'))
    )
    assert str(load_weights(target, source, 'a.pth')).endswith('4.bias, ...)')


def test_batch_counters_do_not_count():
    source = checkpoint(model())
    source['state_dict'].pop('backbone.1.num_batches_tracked')
    assert load_weights(model(), source, 'a.pth').is_exact


def test_aliases_of_a_pre_hook_count_as_loaded():
    target = model()

    def rename(module, state_dict, prefix, *_):
        for name in list(state_dict):
            if name.startswith('old_head.'):
                state_dict[name[4:]] = state_dict.pop(name)

    target.register_load_state_dict_pre_hook(rename)
    source = checkpoint(model())
    weights = source['state_dict']
    for name in ('weight', 'bias'):
        weights[f'old_head.{name}'] = weights.pop(f'head.{name}')
    assert load_weights(target, source, 'a.pth').is_exact
    assert 'old_head.weight' in weights


def test_post_hooks_can_forgive():
    target = model()
    target.register_load_state_dict_post_hook(
        lambda module, keys: keys.missing_keys.clear()
    )
    source = checkpoint(model())
    source['state_dict'].pop('head.bias')
    assert load_weights(target, source, 'a.pth').is_exact


def test_test_time_augmentation_model():
    class Tta(BaseTTAModel):
        def merge_preds(self, data_samples_list):
            return data_samples_list

    inner = model()
    inner.test_step = None
    assert load_weights(Tta(inner), checkpoint(model()), 'a').is_exact


@pytest.mark.parametrize(
    'other',
    [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)),
        # the same names, other shapes
        model(width=50),
    ],
)
def test_rejects_another_model(other):
    with pytest.raises(
        ValueError, match=r"'a.pth' is not of this model: load.* of 10"
    ):
        load_weights(model(classes=9), checkpoint(other), 'a.pth')


def test_rejects_empty_checkpoint():
    with pytest.raises(ValueError, match='loaded 0 of 10'):
        load_weights(model(), dict(state_dict={}), 'a.pth')
