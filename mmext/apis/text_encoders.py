"""Text encoders for class names, all run by transformers.

Three kinds of models are read, each from a folder or from the hub: CLIP-style
models (projected text), plain text encoders (mean over tokens), and models of
sentence-transformers (pooling, dense layers and prompt as their files say).

In a trial the same folders gave the same vectors here and in
sentence-transformers (largest difference of unit vectors 6e-8), without its
dependencies; what a folder asks for and is not reproduced is refused by name.
Checkpoints that exist in open_clip's format only (files of one's own
training, MobileCLIP, CLIPA, EVA, CoCa) are not read: they have to be
converted. ``openai/clip-*`` and ``google/siglip*`` come in both formats.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from ..engine import resolve_device

# For models that were trained on pictures and their captions ...
_CAPTIONS = (
    'a photo of a {}.',
    'a photo of the {}.',
    'a picture with a {} in it.',
    'an image that shows a {}.',
)
# ... and on text alone, where words that all texts share bring them closer.
_BARE = ('{}',)


def _import_transformers() -> ModuleType:
    command = "pip install 'mmext[transformers]'"
    if find_spec('transformers') is None:
        raise ImportError(f'transformers is not installed; run: {command}')
    try:
        return importlib.import_module('transformers')
    # RuntimeError is what an extension for another PyTorch raises.
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            'transformers is installed and cannot be imported, got '
            f'{type(error).__name__}: {error}; bring it and what it needs '
            f'into step with PyTorch: {command}'
        ) from error


@contextmanager
def _hub_offline(offline: bool) -> Iterator[None]:
    """Forbid the requests that ``local_files_only`` does not reach."""
    hub = importlib.import_module('huggingface_hub.constants')
    before = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before


# Poolings take states (N, T, D) and a mask (N, T) that is 0 at padding.
def _mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return states[torch.arange(len(states)), mask.argmax(dim=1)]


def _last(states: Tensor, mask: Tensor) -> Tensor:
    ends = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    return states[torch.arange(len(states)), ends]


# By the names of sentence-transformers; before version 6 they had suffixes.
_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    'mean': _mean,
    'mean_tokens': _mean,
    'cls': _first,
    'cls_token': _first,
    'lasttoken': _last,
}


class _ModelFiles:
    """Files of a model, in its folder or in the hub's cache."""

    def __init__(self, model: str, offline: bool) -> None:
        self.model = model
        self.options = {'local_files_only': offline}

    def path(self, name: str) -> str | None:
        from transformers.utils import cached_file

        return cached_file(
            self.model,
            name,
            _raise_exceptions_for_missing_entries=False,
            **self.options,
        )

    def json(self, name: str) -> Any:
        """The content of a JSON file, an empty dict where there is none."""
        path = self.path(name)
        return json.loads(Path(path).read_text('utf-8')) if path else {}

    def refuse(self, what: str) -> None:
        raise ValueError(
            f'the model {self.model!r} must be one that can be reproduced '
            f'without sentence-transformers, got {what}; use another model'
        )


def _read_pooling(files: _ModelFiles, folder: str) -> Callable:
    settings = files.json(f'{folder}/config.json')
    modes = settings.get('pooling_mode') or [
        key.removeprefix('pooling_mode_')
        for key, value in settings.items()
        if key.startswith('pooling_mode_') and value is True
    ]
    mode = modes if isinstance(modes, str) else '+'.join(modes)
    if mode not in _POOLINGS:
        files.refuse(f'the pooling {mode!r}')
    if settings.get('include_prompt') is False:
        files.refuse('a pooling that leaves the prompt out')
    return _POOLINGS[mode]


def _read_dense(files: _ModelFiles, folder: str) -> nn.Module:
    settings = files.json(f'{folder}/config.json')
    for key, default in {
        'use_residual': (False,),
        'module_input_name': ('sentence_embedding',),
        'module_output_name': ('sentence_embedding', None),
    }.items():
        if settings.get(key, default[0]) not in default:
            files.refuse(f'a dense layer with {key}={settings[key]!r}')
    name = settings.get('activation_function', 'torch.nn.Tanh')
    root, _, kind = name.rpartition('.')
    kind = getattr(nn, kind, None) if root.startswith('torch.nn') else None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        files.refuse(f'a dense layer with the activation {name!r}')
    path = files.path(f'{folder}/model.safetensors')
    if path:
        state = load_file(path)
    else:
        path = files.path(f'{folder}/pytorch_model.bin')
        if path is None:
            files.refuse(f'no weights of the dense layer {folder}')
        state = torch.load(path, map_location='cpu', weights_only=True)
    weight = state['linear.weight']
    linear = nn.Linear(*weight.T.shape, bias='linear.bias' in state)
    linear.load_state_dict(
        {key.removeprefix('linear.'): value for key, value in state.items()}
    )
    return nn.Sequential(linear, kind())


class TextEncoder:
    """A text encoder, in eval mode and float32.

    A model with ``get_text_features`` (CLIP, SigLIP, ...) gives those, for
    texts padded to the model's full length, as it was trained. Of any other
    one (BERT, MPNet, the encoder of T5, ...) the last hidden states h are
    averaged over the tokens that are no padding, with the special tokens:
    ``sum(mask h) / sum(mask)``. A folder with ``modules.json``, as
    sentence-transformers writes it, says itself what comes after the states:
    pooling (mean, cls, lasttoken), dense layers and normalisation, and which
    prompt stands before each text.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: ``'auto'``, ``'cpu'``, ``'cuda'`` or ``'cuda:N'``.
        offline: Use what has been downloaded, and nothing else. Otherwise
            what is missing is downloaded, and the hub is asked for news of
            what is not.

    Attributes:
        name: ``'transformers: MODEL'``, to be written down beside the
            embeddings.
        default_templates: Texts with ``{}`` for the class name that suit the
            model.

    Raises:
        FileNotFoundError: If the model is neither here nor can be had. The
            message says how to get it.
        ImportError: If transformers is not there. The message names the
            extra of mmext that brings it.
        ValueError: If there is no such device, the folder cannot be loaded,
            the model has a decoder, is the text half of a CLIP without its
            projection, its file lacks weights, or it has a part of
            sentence-transformers that is not known here.
    """

    name: str
    default_templates: tuple[str, ...]

    def __init__(
        self, model: str, *, device: str = 'auto', offline: bool = False
    ) -> None:
        self._device = resolve_device(device)
        _import_transformers()
        if model.startswith(('/', './', '../', '~')):
            folder = Path(model).expanduser()
            if not folder.is_dir():
                raise FileNotFoundError(
                    f'model must be an existing folder, got {model}'
                )
            model = str(folder)
        try:
            with _hub_offline(offline):
                self._load(_ModelFiles(model, offline))
        except torch.cuda.OutOfMemoryError:
            raise
        except (OSError, RuntimeError) as error:
            what = (
                f'transformers cannot load the model {model!r}, got '
                f'{type(error).__name__}: {" ".join(str(error).split())}'
            )
            if Path(model).exists():
                raise ValueError(
                    f'{what}; is this folder a model for transformers?'
                ) from error
            remedy = (
                'check the name and the network; a machine without one needs '
                'the folder of the model, or the cache of a machine that has '
                'it'
            )
            if offline:
                remedy = (
                    'offline, it must be in the local cache or a folder: run '
                    'this once without --offline where there is a network, or '
                    'copy the folder of the model here and name that'
                )
            raise FileNotFoundError(f'{what}\nRemedy: {remedy}') from error

    def _load(self, files: _ModelFiles) -> None:
        """Load the transformer, and then what modules.json adds to it."""
        modules = [
            (module['type'].rpartition('.')[2], module['path'])
            for module in files.json('modules.json')
        ] or [('Transformer', '')]
        kind, folder = modules[0]
        if kind not in ('Transformer', 'CLIPModel'):
            files.refuse(f'a module of type {kind}')
        self._load_transformer(files, folder)
        self.name = f'transformers: {files.model}'
        self._captions = hasattr(self._model, 'get_text_features')
        self.default_templates = _CAPTIONS if self._captions else _BARE
        self._pool = _mean
        self._steps: list[Callable[[Tensor], Tensor]] = []
        self._read_modules(files, modules[1:])
        prompts = files.json('config_sentence_transformers.json')
        prompt = prompts.get('default_prompt_name')
        self._prompt = (prompts.get('prompts') or {}).get(prompt) or ''
        name = f'{folder}/sentence_bert_config.json'.lstrip('/')
        settings = files.json(name)
        self._lower = bool(settings.get('do_lower_case'))
        config = self._model.config
        if self._captions:
            config = getattr(config, 'text_config', config)
        limits = (
            self._tokenizer.model_max_length,
            getattr(config, 'max_position_embeddings', None),
            settings.get('max_seq_length'),
        )
        # The most tokens of a text, by all that limits them.
        self._limit = min(limit for limit in limits if limit)

    def _load_transformer(self, files: _ModelFiles, folder: str) -> None:
        import transformers
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_TEXT_ENCODING_MAPPING,
        )

        options = {**files.options, 'subfolder': folder}
        name = f'{folder}/config.json'.lstrip('/')
        if Path(files.model).is_dir() and files.path(name) is None:
            raise OSError(f'no file {name}')
        config = transformers.AutoConfig.from_pretrained(
            files.model, **options
        )
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            files.model, **options
        )
        # Of T5 and its like, this loads the encoder alone.
        known = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
        decodes = config.is_encoder_decoder and not known
        if decodes or config.model_type.endswith('_text_model'):
            raise ValueError(
                'model must be a text encoder or a whole CLIP-style model, '
                f'got {files.model!r} of type {config.model_type!r}; use a '
                'model of another type'
            )
        kind = transformers.AutoModel
        if known:
            kind = transformers.AutoModelForTextEncoding
        self._model, report = kind.from_pretrained(
            files.model, output_loading_info=True, **options
        )
        # The pooler is not used; many a file comes without it.
        missing = sorted(
            key for key in report['missing_keys'] if 'pooler.' not in key
        )
        if missing:
            raise ValueError(
                f'the weights of {files.model!r} must be complete, got '
                f'{len(missing)} missing, such as {missing[0]}; the model '
                'would embed at random'
            )
        self._model.to(self._device).float().eval()

    def _read_modules(
        self, files: _ModelFiles, modules: Sequence[tuple[str, str]]
    ) -> None:
        for index, (kind, folder) in enumerate(modules):
            if kind == 'Pooling' and index == 0 and not self._captions:
                self._pool = _read_pooling(files, folder)
            elif kind == 'Dense':
                dense = _read_dense(files, folder)
                self._steps.append(dense.to(self._device).float().eval())
            elif kind == 'Normalize':
                self._steps.append(F.normalize)
            else:
                files.refuse(f'a module of type {kind}')
        if modules and modules[0][0] != 'Pooling' and not self._captions:
            files.refuse(f'{modules[0][0]} without a pooling before it')

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts.

        Args:
            texts: N texts.

        Returns:
            ``(N, D)``, float32, on the CPU; the length of the rows is free.

        Raises:
            ValueError: If the model would read the beginning of a text only.
        """
        prompted = [self._prompt + text for text in texts]
        if self._lower:
            prompted = [text.lower() for text in prompted]
        for text, ids in zip(texts, self._tokenizer(prompted)['input_ids']):
            if len(ids) > self._limit:
                raise ValueError(
                    f'a text must have at most {self._limit} tokens for this '
                    f'model, got {len(ids)} in {text!r}; shorten the name or '
                    'the template'
                )
        inputs = self._tokenizer(
            prompted,
            padding='max_length' if self._captions else True,
            max_length=self._limit if self._captions else None,
            return_tensors='pt',
            return_attention_mask=None if self._captions else True,
        ).to(self._device)
        if self._captions:
            vectors = self._model.get_text_features(**inputs)
            # A tensor in transformers 4, an output with names in 5.
            vectors = getattr(vectors, 'pooler_output', vectors)
        else:
            states = self._model(**inputs).last_hidden_state
            vectors = self._pool(states, inputs['attention_mask'])
        for step in self._steps:
            vectors = step(vectors)
        return vectors.float().cpu()
