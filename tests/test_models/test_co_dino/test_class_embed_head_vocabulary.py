"""Other classes in evaluation: in Python, by the config and by the tools."""

import json

import pytest
import torch
from helpers.reduce_config import reduce_model
from helpers.tiny_class_embed import AUXILIARY, CLASSIFIER, DIMS, build, step
from helpers.tiny_co_dino import NUM_CLASSES, build_tiny, make_batch
from helpers.toy_ranks import load_tool
from mmengine.config import Config

import mmext
from mmext.apis.runs import prepare_test, run_test
from mmext.datasets import ShapesSpec, write_shapes_dataset
from mmext.registry import MODELS

KEY = 'model.test_cfg.query_head.class_embeddings'
TRAINED = ('circle', 'square', 'triangle')
# In the order of the annotation file, by which its labels are numbered.
OTHERS = ('circle', 'star')


@pytest.fixture
def model():
    model = build(CLASSIFIER)
    with torch.no_grad():
        # Classes that differ clearly, so that none of the boxes ties.
        model.query_head.class_embed.mul_(3)
    return model.eval()


def detect(model):
    data = model.data_preprocessor(make_batch(), False)
    with torch.no_grad():
        return [
            sample.pred_instances
            for sample in model.predict(data['inputs'], data['data_samples'])
        ]


def raw_scores(model):
    """Of the last layer; all queries, as the proposals do not change."""
    with torch.no_grad():
        return model(torch.ones(1, 3, 64, 64), mode='tensor')[0][-1]


def test_reordered_classes_are_reordered_labels(model):
    expected = detect(model)
    order = [4, 2, 0, 1, 3]
    model.query_head.set_class_embeddings(
        model.query_head.class_embeddings[order]
    )
    for result, before in zip(detect(model), expected):
        torch.testing.assert_close(result.scores, before.scores)
        torch.testing.assert_close(result.bboxes, before.bboxes)
        labels = torch.tensor(order)[result.labels]
        assert torch.equal(labels, before.labels)
    model.query_head.set_class_embeddings(None)
    for result, before in zip(detect(model), expected):
        assert torch.equal(result.labels, before.labels)


def test_an_auxiliary_head_does_not_predict_other_classes(model):
    model.query_head.set_class_embeddings(torch.randn(2, DIMS), ['a', 'b'])
    model.eval_module = 'two-stage'
    with pytest.raises(ValueError, match="'detr' where set_class_embeddings"):
        detect(model)
    model.query_head.set_class_embeddings(None)
    assert len(detect(model)) == 2


@pytest.mark.parametrize('count', [1, 2, 9])
def test_any_number_of_classes(model, count):
    rows = torch.randn(count, DIMS)
    names = [str(i) for i in range(count)]
    model.query_head.set_class_embeddings(rows.numpy(), names)
    assert raw_scores(model).shape == (1, 20, count)
    for detection in detect(model):
        assert len(detection) > 0
        assert detection.labels.max() < count
    assert model.query_head.class_vocabulary(False).classes == tuple(names)
    assert model.query_head.class_vocabulary(True) is None
    # Training goes on as before, and a checkpoint is of the training.
    assert 'loss_cls' in step(model, make_batch())
    state = model.state_dict()
    assert not any('test_' in key for key in state)
    assert state['query_head.class_embeddings'].shape == (NUM_CLASSES, DIMS)
    again = build(CLASSIFIER, seed=5)
    again.load_state_dict(state, strict=True)
    assert raw_scores(model.eval()).shape[-1] == count
    assert raw_scores(again.eval()).shape[-1] == NUM_CLASSES


def test_losses_in_evaluation_mode_need_the_trained_classes(model):
    model.query_head.set_class_embeddings(torch.randn(2, DIMS))
    data = model.data_preprocessor(make_batch(), True)
    with pytest.raises(RuntimeError, match='got 2 others; call train'):
        model.loss(data['inputs'], data['data_samples'])
    model.query_head.set_class_embeddings(None)
    assert 'loss_cls' in model.loss(data['inputs'], data['data_samples'])


def test_rejects_other_embeddings(model, tmp_path):
    head = model.query_head
    with pytest.raises(ValueError, match='must have 16 dimensions, as in the'):
        head.set_class_embeddings(torch.ones(2, 8))
    with pytest.raises(ValueError, match='one name per row'):
        head.set_class_embeddings(torch.ones(2, DIMS), ['a'])
    with pytest.raises(FileNotFoundError):
        head.set_class_embeddings(tmp_path / 'a.npy')
    assert head.test_vocabulary is None
    auxiliary = build(AUXILIARY).query_head
    with pytest.raises(ValueError, match="only be replaced with mode='class"):
        auxiliary.set_class_embeddings(torch.ones(2, DIMS))


def test_a_checkpoint_of_the_auxiliary_mode_classifies():
    source = build(AUXILIARY)
    target = build(CLASSIFIER, seed=1)
    result = target.load_state_dict(source.state_dict(), strict=False)
    assert result.missing_keys == []
    assert all('cls_branches' in key for key in result.unexpected_keys)
    target.query_head.set_class_embeddings(torch.ones(1, DIMS))
    assert raw_scores(target.eval()).shape[-1] == 1


@pytest.mark.parametrize('eval_module', ['one-stage', 'two-stage'])
def test_only_the_query_head_predicts_other_classes(tmp_path, eval_module):
    torch.save(torch.randn(2, DIMS), tmp_path / 'a.pt')
    test_cfg = {'query_head': {'class_embeddings': str(tmp_path / 'a.pt')}}
    with pytest.raises(ValueError, match=f"be 'detr' with .*{eval_module}"):
        build(CLASSIFIER, test_cfg=test_cfg, eval_module=eval_module)
    head = build(CLASSIFIER, test_cfg=test_cfg).query_head
    assert head.test_class_embeddings.shape == (2, DIMS)


def test_the_plain_head_refuses_what_it_would_not_read():
    with pytest.raises(
        ValueError, match=r'of type mmext\.CoDINOClassEmbedHead reads it'
    ):
        build_tiny(test_cfg={'query_head': {'class_embeddings': 'a.pt'}})


@pytest.fixture(scope='module')
def data_folder(tmp_path_factory):
    """Two pictures, a config of three classes, a checkpoint, embeddings."""
    folder = tmp_path_factory.mktemp('vocabulary')
    write_shapes_dataset(
        folder / 'data',
        ShapesSpec(image_size=(64, 64), empty_fraction=0.0),
        num_train=1,
        num_val=2,
    )
    name = 'co_dino/co_dino_class_embed_r18_shapes.py'
    cfg = Config.fromfile(mmext.config_path(name)).to_dict()
    cfg['model'] = reduce_model(cfg['model'])
    cfg['model']['num_classes'] = len(TRAINED)
    cfg['model']['query_head']['class_embed_dims'] = DIMS
    cfg['data_root'] = f'{folder}/data/'
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        loader['dataset']['metainfo'] = {'classes': TRAINED}
    Config(cfg).dump(folder / 'cfg.py')
    torch.manual_seed(0)
    model = MODELS.build(cfg['model'])
    torch.save(
        {
            'state_dict': model.state_dict(),
            'meta': {
                'cfg': (folder / 'cfg.py').read_text(),
                'dataset_meta': {'classes': TRAINED},
            },
        },
        folder / 'a.pth',
    )
    content = {'class_embeddings': torch.randn(2, DIMS), 'classes': OTHERS}
    content['classes'] = list(OTHERS)
    torch.save(content, folder / 'others.pt')
    torch.save(content['class_embeddings'], folder / 'nameless.pt')
    return folder


def options(*texts):
    """As the command line of the tools reads them."""
    arguments = ['config', 'checkpoint', '--cfg-options', *texts]
    return load_tool('test').make_parser().parse_args(arguments).cfg_options


def evaluate(data_folder, tmp_path, *texts):
    cfg = prepare_test(
        str(data_folder / 'cfg.py'),
        str(data_folder / 'a.pth'),
        work_dir=str(tmp_path),
        cfg_options=options(*texts),
        device='cpu',
    )
    return run_test(cfg)


DATA = 'test_dataloader.dataset.metainfo.classes'


@pytest.mark.slow
def test_the_test_tool(data_folder, tmp_path):
    embeddings = f'{KEY}={data_folder}/others.pt'
    names = f'{DATA}=({",".join(OTHERS)})'
    metrics = evaluate(data_folder, tmp_path / '1', embeddings, names)
    assert 0 <= metrics['coco/bbox_mAP'] <= 1
    nameless = f'{KEY}={data_folder}/nameless.pt'
    assert metrics == evaluate(data_folder, tmp_path / '2', nameless, names)
    with pytest.raises(
        ValueError, match=r'got 2 in .*others\.pt and 3 in the data'
    ):
        evaluate(data_folder, tmp_path / '3', embeddings)
    another = f'{DATA}=({OTHERS[0]},ring)'
    with pytest.raises(ValueError, match=r"got 'star' in .*'ring' in the dat"):
        evaluate(data_folder, tmp_path / '4', embeddings, another)


def infer(data_folder, out, *texts):
    """Exit code and labels by name."""
    code = load_tool('infer').main(
        [
            str(data_folder / 'data' / 'img_dir' / 'val'),
            *('--checkpoint', str(data_folder / 'a.pth'), '--out', str(out)),
            *('--score-thr', '0', '--device', 'cpu'),
            *(('--cfg-options', *texts) if texts else ()),
        ]
    )
    return code, json.loads((out / 'predictions.json').read_text())


def test_the_infer_tool(data_folder, tmp_path, capsys):
    code, run = infer(
        data_folder, tmp_path / '1', f'{KEY}={data_folder}/others.pt'
    )
    assert code == 0
    assert OTHERS[1] in json.dumps(run)
    assert 'triangle' not in json.dumps(run)
    code, run = infer(data_folder, tmp_path / '2')
    assert code == 0
    assert 'star' not in json.dumps(run)
    with pytest.raises(SystemExit) as stop:
        infer(data_folder, tmp_path / '3', f'{KEY}={data_folder}/nameless.pt')
    assert stop.value.code == 2
    assert 'must have names, got 3 in test_dataloader' in (
        capsys.readouterr().err
    )
    code, run = infer(
        data_folder,
        tmp_path / '4',
        f'{KEY}={data_folder}/nameless.pt',
        f'{DATA}=(moon,sun)',
    )
    assert code == 0
    assert 'moon' in json.dumps(run)
