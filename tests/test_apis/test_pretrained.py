"""A model that is shared predicts the same, and runs nothing."""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers import reduce_semantic_config as semantic
from helpers.hostile import Hostile
from helpers.tiny_co_dino import build_tiny, make_batch, tiny_model_cfg
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from mmseg.structures import SegDataSample
from safetensors.torch import load_file

import mmext
from mmext.apis import load_detector

CLASSES = ('a', 'b', 'c', 'd', '<script>e')
PALETTE = [(i, 2 * i, 255) for i in range(5)]


def detector_config(**changes):
    step = {'type': 'mmdet.Resize', 'scale': (128, 96), 'keep_ratio': True}
    cfg = {
        'default_scope': 'mmdet',
        'work_dir': 'somewhere',
        'model': tiny_model_cfg(),
        'param_scheduler': {'end': float('inf')},
        'test_dataloader': {
            'dataset': {
                'type': 'mmdet.CocoDataset',
                'data_root': 'data/cells/',
                'pipeline': [{'type': 'LoadImageFromFile'}, step],
            }
        },
    }
    cfg.update(changes)
    return cfg


def write_checkpoint(path, model, cfg, **meta):
    """A checkpoint as a training writes it, with what sharing leaves out."""
    info = {'classes': CLASSES, 'palette': PALETTE}
    content = {
        'meta': {'cfg': cfg, 'dataset_meta': info, **meta},
        'state_dict': {f'module.{k}': v for k, v in model.items()},
        'optimizer': {'state': torch.zeros(3)},
        'message_hub': {'log_scalars': {}},
    }
    torch.save(content, path)
    return path


@pytest.fixture(scope='module')
def detector(tmp_path_factory):
    """A checkpoint of a small CO-DINO, and the folder made of it."""
    folder = tmp_path_factory.mktemp('detector')
    weights = build_tiny().state_dict()
    path = write_checkpoint(folder / 'a.pth', weights, detector_config())
    shared = mmext.save_pretrained(path, folder / 'ce*l*s')
    return SimpleNamespace(checkpoint=path, folder=shared)


@pytest.fixture
def copied(detector, tmp_path):
    """A copy of the folder, to be spoilt."""
    return Path(shutil.copytree(detector.folder, tmp_path / 'copy'))


def predict(model):
    batch = model.data_preprocessor(make_batch(), False)
    with torch.no_grad():
        samples = model.predict(batch['inputs'], batch['data_samples'])
    return [sample.pred_instances for sample in samples]


def test_a_detector_predicts_the_same(detector):
    before = load_detector(None, detector.checkpoint, device='cpu')
    after = mmext.from_pretrained(detector.folder, device='cpu').model
    assert after.dataset_meta == {'classes': CLASSES, 'palette': PALETTE}
    assert not after.training
    for one, other in zip(predict(before), predict(after), strict=True):
        assert len(one) > 0
        for key in ('bboxes', 'scores', 'labels'):
            assert torch.equal(one[key], other[key])
    expected = before.cfg.to_dict()
    del expected['work_dir']
    # Tuples, and the numbers that JSON lacks, included.
    assert repr(after.cfg.to_dict()) == repr(expected)


def test_files_are_what_their_formats_say(detector):
    assert sorted(os.listdir(detector.folder)) == [
        'README.md',
        'config.json',
        'model.safetensors',
    ]
    content = json.loads((detector.folder / 'config.json').read_text())
    assert content['dataset_meta']['classes'] == list(CLASSES)
    assert content['config']['param_scheduler'] == {
        'end': {'__float__': 'inf'}
    }
    model = load_detector(None, detector.checkpoint, device='cpu')
    weights = load_file(detector.folder / 'model.safetensors')
    assert weights.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert weights[name].dtype == value.dtype
        assert torch.equal(weights[name], value)


@pytest.mark.slow
def test_a_segmentor_predicts_the_same(checkout, tmp_path):
    cfg = Config.fromfile(checkout / 'configs/pidnet/pidnet_small_shapes.py')
    cfg.model = semantic.reduce_model(cfg.to_dict()['model'])
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg.to_dict()['model'])
    names = ('ground', *'abcdef')
    path = tmp_path / 'a.pth'
    meta = {'cfg': cfg.to_dict(), 'dataset_meta': {'classes': names}}
    torch.save({'meta': meta, 'state_dict': model.state_dict()}, path)
    mmext.save_pretrained(path, tmp_path / 'shared')
    image = {'inputs': [torch.randint(0, 255, (3, 56, 88)).byte()]}
    logits = []
    for value in (
        load_detector(None, path, device='cpu'),
        mmext.from_pretrained(tmp_path / 'shared', device='cpu').model,
    ):
        meta = {'img_shape': (56, 88), 'ori_shape': (56, 88)}
        sample = SegDataSample(metainfo=meta)
        (result,) = value.test_step({**image, 'data_samples': [sample]})
        logits.append(result.seg_logits.data)
        assert value.dataset_meta['classes'] == names
    assert torch.equal(*logits)
    head = front_matter(tmp_path / 'shared')
    assert head['pipeline_tag'] == 'image-segmentation'


def front_matter(folder):
    text = (folder / 'README.md').read_text()
    assert text.startswith('---\n')
    return yaml.safe_load(text[4:].split('\n---\n')[0])


def test_card(detector):
    assert front_matter(detector.folder) == {
        'library_name': 'mmext',
        'pipeline_tag': 'object-detection',
        'tags': ['mmext', 'mmext.CoDETR'],
    }
    text = (detector.folder / 'README.md').read_text()
    assert '# ce\\*l\\*s\n' in text
    assert "mmext.from_pretrained('ce*l*s')" in text
    assert '<script>' not in text
    assert '4. &lt;script&gt;e' in text


def test_warns_of_paths_of_this_machine(detector, tmp_path, monkeypatch):
    logged = []
    monkeypatch.setattr(
        'mmext.apis.pretrained.print_log',
        lambda text, level, **_: logged.append(text),
    )
    options = {'data_root': str(tmp_path)}
    config = Config(detector_config(**options))
    mmext.save_pretrained(detector.checkpoint, tmp_path / 'a', config=config)
    (text,) = logged
    assert f'paths of this machine: {tmp_path};' in text


# What cannot be shared ---------------------------------------------------


@MODELS.register_module(force=True)
class OnesOwnModel(BaseModel):
    """Of a module that others do not have."""

    num_classes = 1

    def forward(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'a': {'b': [len]}}, r'a\.b\[0\] is <built-in function len>, which'),
        ({'a': {'b': lambda x: x}}, r'a\.b is <function <lambda>'),
        ({'a': torch.nn.ReLU}, "a is <class 'torch.nn.modules.activation.R"),
        (
            {'custom_imports': {'imports': ['json', 'mmext.models']}},
            "custom_imports names 'json', which is code of yours",
        ),
        (
            {'model': {'type': 'mmengine.OnesOwnModel'}},
            r'model.type is .mmengine.OnesOwnModel. of the module .*test_pre',
        ),
    ],
)
def test_refuses_a_config_that_is_no_data(
    detector, tmp_path, changes, message
):
    config = Config(detector_config(**changes))
    with pytest.raises(ValueError, match=message):
        mmext.save_pretrained(
            detector.checkpoint, tmp_path / 'new', config=config
        )
    assert not (tmp_path / 'new').exists()


def test_refuses_files_of_ones_own_and_keeps_what_is_there(
    detector, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path('embeddings.npy').write_text('')
    config = Config(detector_config())
    config.model.backbone.note = 'embeddings.npy'
    with pytest.raises(ValueError, match='note of the config names'):
        mmext.save_pretrained(detector.checkpoint, 'new', config=config)
    with pytest.raises(FileExistsError, match='new or an empty one'):
        mmext.save_pretrained(detector.checkpoint, tmp_path)
    assert os.listdir(tmp_path) == ['embeddings.npy']


# What is not loaded ------------------------------------------------------


def edit(folder, function):
    path = folder / 'config.json'
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def set_config(**changes):
    return lambda folder, trap: edit(
        folder, lambda content: content['config'].update(changes)
    )


def set_model(**changes):
    return lambda folder, trap: edit(
        folder, lambda content: content['config']['model'].update(changes)
    )


def set_text(text):
    return lambda folder, trap: (folder / 'config.json').write_text(
        text.format(trap=str(trap))
    )


def pickled_weights(folder, trap):
    torch.save({'a': Hostile(trap)}, folder / 'model.safetensors')


def old_pickle(folder, trap):
    data = pickle.dumps(Hostile(trap), protocol=0)
    (folder / 'model.safetensors').write_bytes(data)


def only_a_pickle(folder, trap):
    os.remove(folder / 'model.safetensors')
    torch.save({'a': Hostile(trap)}, folder / 'pytorch_model.bin')


def cut_off(folder, trap):
    with open(folder / 'model.safetensors', 'r+b') as file:
        file.truncate(1000)


def resize_type(folder, trap):
    step = {'type': 'RandomChoiceResize', 'resize_type': 'os.mkdir'}
    data = {'dataset': {'type': 'mmdet.CocoDataset', 'pipeline': [step]}}
    set_config(test_dataloader=data)(folder, trap)


HOSTILE = {
    'a pickle as weights': (pickled_weights, 'pickle by another name'),
    'an old pickle': (old_pickle, 'pickle by another name'),
    'only a pickle': (
        only_a_pickle,
        r'must hold model.safetensors, got .*bin',
    ),
    'cut off': (cut_off, 'must be a file of safetensors'),
    'python': (set_text('import os\nos.mkdir({trap!r})'), 'cannot be used'),
    'yaml': (
        set_text('!!python/object/apply:os.mkdir ["{trap}"]'),
        'config.json cannot be used',
    ),
    'yaml in quotes': (
        set_text('"!!python/object/apply:os.mkdir [{trap}]"'),
        'it holds str, and no dict',
    ),
    'deep': (set_text('[' * 99999), 'cannot be used'),
    'format': (set_text('{{"format": 7}}'), 'format must be 1, got 7'),
    'base': (set_config(_base_='/trap_config.py'), 'has the key config._base'),
    'a hidden base': (
        set_config(a={'__items__': [['_base_', 1], [1, 1]]}),
        'has the key config.a._base',
    ),
    'remote code': (
        set_model(neck={'trust_remote_code': True}),
        'has the key config.model.neck.trust_remote_code',
    ),
    'custom imports': (
        set_config(custom_imports={'imports': ['trap_module']}),
        "custom_imports names the module 'trap_module'",
    ),
    'a type': (set_model(neck={'type': 'os.mkdir'}), "type is 'os.mkdir'"),
    'a module': (set_model(type='trap_module'), 'is not registered'),
    'a type of a transform': (resize_type, "resize_type is 'os.mkdir'"),
    'scope': (set_config(default_scope='trap_scope'), "is 'trap_scope', no"),
    'a scope': (set_model(_scope_='trap_scope'), "_scope_ is 'trap_scope'"),
    'classes': (
        lambda folder, trap: edit(
            folder, lambda c: c['dataset_meta'].update(classes='/etc/names')
        ),
        'classes must be a list of names',
    ),
}


@pytest.mark.parametrize('way', HOSTILE)
def test_a_hostile_folder_runs_nothing(copied, tmp_path, monkeypatch, way):
    trap = tmp_path / 'trap'
    code = f'import os\nos.mkdir({str(trap)!r})\n'
    (tmp_path / 'trap_module.py').write_text(code)
    (tmp_path / 'trap_scope').mkdir()
    for name in ('__init__.py', 'registry.py'):
        (tmp_path / 'trap_scope' / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    spoil, message = HOSTILE[way]
    spoil(copied, trap)
    with pytest.raises((OSError, ValueError), match=message):
        mmext.from_pretrained(copied, device='cpu')
    assert not trap.exists()


@MODELS.register_module(force=True)
class ReadsPickles(BaseModel):
    """Of a host that reads a file when it is built, as timm does."""

    def __init__(self, path, **kwargs):
        super().__init__()
        torch.load(path, weights_only=False)

    def forward(self, inputs):
        return inputs


def test_a_model_that_reads_a_pickle_runs_nothing(copied, tmp_path):
    trap = tmp_path / 'trap'
    torch.save({'a': Hostile(trap)}, tmp_path / 'a.pth')
    path = str(tmp_path / 'a.pth')
    set_model(type='mmengine.ReadsPickles', path=path)(copied, trap)
    with pytest.raises(ValueError, match='mkdir, which is not plain data'):
        mmext.from_pretrained(copied, device='cpu')
    assert not trap.exists()


@pytest.mark.parametrize(
    'name',
    ['../a', 'a/b/c', '/no/such', 'a/..', 'a b', 'file://a/b', 'best.pth'],
)
def test_a_name_that_is_none_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match='must be an existing folder'):
        mmext.from_pretrained(name)


def test_a_config_is_no_model(tmp_path):
    config = tmp_path / 'cells.py'
    config.write_text('a = 1')
    with pytest.raises(ValueError, match=r'got the config .*checkpoint'):
        mmext.from_pretrained(config)


def test_the_hub(detector, monkeypatch, tmp_path):
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options))
        return str(detector.folder)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('mmext.apis.pretrained.find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mmext\[hub\]'"):
        mmext.from_pretrained('someone/cells')
    monkeypatch.setattr('mmext.apis.pretrained.find_spec', lambda name: 1)
    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, 'huggingface_hub', hub)
    predictor = mmext.from_pretrained('someone/cells', revision='v1')
    assert predictor.classes == CLASSES
    ((name, options),) = asked
    assert (name, options['revision']) == ('someone/cells', 'v1')
    assert options['allow_patterns'] == ['config.json', 'model.safetensors']
    (tmp_path / 'empty').mkdir()
    with pytest.raises(FileNotFoundError, match='make one with mmext'):
        mmext.from_pretrained('empty')
