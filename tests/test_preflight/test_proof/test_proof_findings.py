from mmengine.optim import build_optim_wrapper
from preflight_models import batches, build

from mmext.preflight import SyncSettings
from mmext.preflight.proof import proof_findings, prove


def test_the_worst_come_first():
    section = {
        'optimizer': {'type': 'SGD', 'lr': 0.1},
        'paramwise_cfg': {'custom_keys': {'hed': {}, 'stem': {'lr_mult': 0}}},
    }
    model = build('extra memory for nobody')
    cfg = {'optim_wrapper': section}
    wrapper = build_optim_wrapper(model, section)
    proof = prove(model, batches(), optim_wrapper=wrapper, cfg=cfg)
    found = proof_findings(proof, SyncSettings())
    assert [each.rule for each in found] == ['DDP001', 'OPT003', 'OPT004']


def test_nothing_ran():
    model = build('crash')
    proof = prove(model, batches(('empty',)))
    (found,) = proof_findings(proof, SyncSettings(True))
    assert found.rule == 'STEP001'
