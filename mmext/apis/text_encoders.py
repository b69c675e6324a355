"""Text encoders for class names, run by transformers.

CLIP-style models give their projected text, plain text encoders the mean over
tokens; each is read from a folder or from the hub. A model of
sentence-transformers that does more than that, such as another pooling, a
dense layer or a prompt, is refused: run it with its own package, and give it
to :func:`mmext.apis.make_class_embeddings`. Checkpoints in open_clip's own
format have to be converted; ``openai/clip-*`` and ``google/siglip*`` come in
both formats.
"""

import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
# Modules of sentence-transformers that give the mean over tokens.
_PLAIN = ['Transformer', 'Pooling']


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


def _read_json(model: str, name: str, offline: bool) -> Any:
    """The content of a file of a model; an empty dict where there is none."""
    from transformers.utils import cached_file

    path = cached_file(
        model,
        name,
        _raise_exceptions_for_missing_entries=False,
        local_files_only=offline,
    )
    return json.loads(Path(path).read_text('utf-8')) if path else {}


def _check_modules(model: str, offline: bool) -> None:
    """Refuse a model of sentence-transformers that is more than a mean."""
    modules = _read_json(model, 'modules.json', offline)
    kinds = [module['type'].rpartition('.')[2] for module in modules]
    if not modules or (kinds == ['CLIPModel'] and not modules[0]['path']):
        return
    pooling, prompts = {}, {}
    if kinds[1:2] == ['Pooling']:
        path = f'{modules[1]["path"]}/config.json'
        pooling = _read_json(model, path, offline)
        prompts = _read_json(
            model, 'config_sentence_transformers.json', offline
        )
    modes = pooling.get('pooling_mode') or [
        key.removeprefix('pooling_mode_')
        for key, value in pooling.items()
        if key.startswith('pooling_mode_') and value is True
    ]
    name = prompts.get('default_prompt_name')
    prompt = (prompts.get('prompts') or {}).get(name)
    # The rows are normalized in any case.
    if (
        kinds not in (_PLAIN, [*_PLAIN, 'Normalize'])
        or modules[0]['path']
        or modes not in ('mean', ['mean'], ['mean_tokens'])
        or prompt
    ):
        raise ValueError(
            f'the model {model!r} of sentence-transformers must be a '
            'transformer with a mean pooling and no prompt, got '
            f'{", ".join(kinds)} with pooling {modes} and prompt {prompt!r}; '
            'run it with that package: mmext.apis.make_class_embeddings('
            f"names, SentenceTransformer({model!r}), ['{{}}'])"
        )


class TextEncoder:
    """A text encoder, in eval mode and float32.

    A model with ``get_text_features`` (CLIP, SigLIP, ...) gives those, for
    texts padded to the model's full length, as it was trained. Of any other
    one (BERT, MPNet, the encoder of T5, ...) the last hidden states h are
    averaged over the tokens that are no padding, with the special tokens:
    ``sum(mask h) / sum(mask)``.

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
            projection, its file lacks weights, or it is one of
            sentence-transformers that does more than a mean over tokens.
    """

    name: str
    default_templates: tuple[str, ...]

    def __init__(
        self, model: str, *, device: str = 'auto', offline: bool = False
    ) -> None:
        self._device = resolve_device(device)
        if find_spec('transformers') is None:
            raise ImportError(
                'transformers is not installed; run: '
                "pip install 'mmext[transformers]'"
            )
        if model.startswith(('/', './', '../', '~')):
            folder = Path(model).expanduser()
            if not folder.is_dir():
                raise FileNotFoundError(
                    f'model must be an existing folder, got {model}'
                )
            model = str(folder)
        try:
            with _hub_offline(offline):
                self._load(model, offline)
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

    def _load(self, model: str, offline: bool) -> None:
        import transformers
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_TEXT_ENCODING_MAPPING,
        )

        _check_modules(model, offline)
        if Path(model).is_dir() and not Path(model, 'config.json').is_file():
            raise OSError('no file config.json')
        options = {'local_files_only': offline}
        config = transformers.AutoConfig.from_pretrained(model, **options)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            model, **options
        )
        # Of T5 and its like, this loads the encoder alone.
        known = type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
        decodes = config.is_encoder_decoder and not known
        if decodes or config.model_type.endswith('_text_model'):
            raise ValueError(
                'model must be a text encoder or a whole CLIP-style model, '
                f'got {model!r} of type {config.model_type!r}; use a model of '
                'another type'
            )
        kind = transformers.AutoModel
        if known:
            kind = transformers.AutoModelForTextEncoding
        self._model, report = kind.from_pretrained(
            model, output_loading_info=True, **options
        )
        # The pooler is not used; many a file comes without it.
        missing = sorted(
            key for key in report['missing_keys'] if 'pooler.' not in key
        )
        if missing:
            raise ValueError(
                f'the weights of {model!r} must be complete, got '
                f'{len(missing)} missing, such as {missing[0]}; the model '
                'would embed at random'
            )
        self._model.to(self._device).float().eval()
        self.name = f'transformers: {model}'
        self._captions = hasattr(self._model, 'get_text_features')
        self.default_templates = _CAPTIONS if self._captions else _BARE
        if self._captions:
            config = getattr(config, 'text_config', config)
        # The most tokens of a text.
        limit = self._tokenizer.model_max_length
        longest = getattr(config, 'max_position_embeddings', None)
        self._limit = min(limit, longest or limit)

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
        texts = list(texts)
        for text, ids in zip(texts, self._tokenizer(texts)['input_ids']):
            if len(ids) > self._limit:
                raise ValueError(
                    f'a text must have at most {self._limit} tokens for this '
                    f'model, got {len(ids)} in {text!r}; shorten the name or '
                    'the template'
                )
        inputs = self._tokenizer(
            texts,
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
            weights = inputs['attention_mask'][..., None].to(states.dtype)
            vectors = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return vectors.float().cpu()
