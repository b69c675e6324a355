"""Text encoders of other packages behind one interface.

Use :func:`mmext.apis.text_encoders.build_text_encoder`, which turns their
many errors into one. Each package is imported when its encoder is built.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._extras import import_extra

__all__ = [
    'OpenClipEncoder',
    'SentenceTransformersEncoder',
    'TransformersEncoder',
]

# For models that were trained on pictures and their captions ...
_CAPTIONS = (
    'a photo of a {}.',
    'a photo of the {}.',
    'a picture with a {} in it.',
    'an image that shows a {}.',
)
# ... and on text alone, where words that all texts share bring them closer.
_BARE = ('{}',)


def _check_lengths(
    texts: Sequence[str], lengths: Sequence[int], limit: int
) -> None:
    """Raise for a text that a model would read the beginning of only."""
    for text, length in zip(texts, lengths):
        if length > limit:
            raise ValueError(
                f'a text must have at most {limit} tokens for this model, '
                f'got {length} in {text!r}; shorten the name or the template'
            )


@contextmanager
def _hub_offline(offline: bool) -> Iterator[None]:
    """Forbid downloads to packages that have no argument for it."""
    hub = import_extra('huggingface_hub.constants', 'transformers')
    before = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before


class OpenClipEncoder:
    """The text half of an open_clip model, with its projection.

    Args:
        model: A name that open_clip knows, ``hf-hub:NAME``, or a folder with
            ``open_clip_config.json`` and weights.
        pretrained: Tag or file of the weights; needed with a name, and only
            there. Without weights a model would embed at random.
        device: Where it runs.
        offline: Use what has been downloaded, and nothing else.

    Raises:
        ImportError: If open_clip is not there.
        ValueError: If ``pretrained`` does not suit ``model``.
    """

    def __init__(
        self,
        model: str,
        *,
        pretrained: str | None = None,
        device: torch.device | str = 'cpu',
        offline: bool = False,
    ) -> None:
        open_clip = import_extra('open_clip', 'open-clip')
        if Path(model).is_dir():
            name = f'local-dir:{model}'
        else:
            name = model if ':' in model else model.replace('/', '-')
        named = ':' not in name
        if named and name not in open_clip.list_models():
            raise ValueError(
                'model must be a name that open_clip knows, hf-hub:NAME or '
                f'an existing folder, got {model!r}; open_clip.list_models() '
                'lists the names'
            )
        if named != (pretrained is not None):
            tags = open_clip.list_pretrained_tags_by_model(name)
            raise ValueError(
                f'pretrained must be {"a tag or file" if named else "None"} '
                f'for the model {model!r}, got {pretrained!r}'
                + (f'; tags: {", ".join(tags) or "none"}' if named else '')
            )
        with _hub_offline(offline):
            self.model = open_clip.create_model(
                name,
                pretrained=pretrained,
                device=device,
                require_pretrained=True,
            ).eval()
            self.tokenizer = open_clip.get_tokenizer(name)
        self.device = device
        self.name = f'open_clip: {model}' + f' ({pretrained})' * named
        self.default_templates = _CAPTIONS

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts, see :class:`~mmext.apis.text_encoders.TextEncoder`."""
        tokens = self.tokenizer(list(texts))
        self._check_cut(texts, tokens)
        return self.model.encode_text(tokens.to(self.device)).float().cpu()

    def _check_cut(self, texts: Sequence[str], tokens: Tensor) -> None:
        """Raise for a text that more room for tokens changes."""
        if getattr(self.tokenizer, 'tokenizer_mode', '') == 'clips':
            # The class token comes last, whatever room there is.
            return
        limit = tokens.shape[1]
        wide = self.tokenizer(list(texts), context_length=limit + 8)
        padding = wide[:, limit:]
        same = (wide[:, :limit] == tokens).all(dim=1)
        whole = same & (padding == wide[:, -1:]).all(dim=1)
        for text, fits in zip(texts, whole.tolist()):
            if not fits:
                raise ValueError(
                    f'a text must have at most {limit} tokens for this '
                    f'model, got more in {text!r}; shorten the name or the '
                    'template'
                )


class SentenceTransformersEncoder:
    """A model of sentence-transformers, with its own pooling and prompt.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: Where it runs.
        offline: Use what has been downloaded, and nothing else.

    Raises:
        ImportError: If sentence-transformers is not there.
    """

    def __init__(
        self,
        model: str,
        *,
        device: torch.device | str = 'cpu',
        offline: bool = False,
    ) -> None:
        package = import_extra(
            'sentence_transformers', 'sentence-transformers'
        )
        with _hub_offline(offline):
            self.model = package.SentenceTransformer(
                model, device=str(device), local_files_only=offline
            )
        self.model.float().eval()
        self.name = f'sentence-transformers: {model}'
        self.default_templates = _BARE

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts, see :class:`~mmext.apis.text_encoders.TextEncoder`."""
        texts = list(texts)
        tokenizer = getattr(self.model, 'tokenizer', None)
        limit = self.model.max_seq_length
        if limit and callable(tokenizer):
            prompts = self.model.prompts or {}
            prompt = prompts.get(self.model.default_prompt_name) or ''
            ids = tokenizer([prompt + text for text in texts])['input_ids']
            _check_lengths(texts, list(map(len, ids)), limit)
        vectors = self.model.encode(
            texts,
            batch_size=len(texts),
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        return vectors.float().cpu()


class TransformersEncoder:
    """A model of transformers: a CLIP-style one, or a plain text encoder.

    One with ``get_text_features`` (CLIP, SigLIP, ...) gives those, for texts
    padded to the model's full length, as it was trained. Of any other one
    (BERT, MPNet, ...) the last hidden states h are averaged over the tokens
    that are no padding, with the special tokens: ``sum(mask h) / sum(mask)``.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: Where it runs.
        offline: Use what has been downloaded, and nothing else.

    Raises:
        ImportError: If transformers is not there.
        ValueError: If the model has a decoder, is the text half of a CLIP
            without its projection, or its file lacks weights.
    """

    def __init__(
        self,
        model: str,
        *,
        device: torch.device | str = 'cpu',
        offline: bool = False,
    ) -> None:
        package = import_extra('transformers', 'transformers')
        with _hub_offline(offline):
            self.tokenizer = package.AutoTokenizer.from_pretrained(
                model, local_files_only=offline
            )
            self.model, report = package.AutoModel.from_pretrained(
                model, local_files_only=offline, output_loading_info=True
            )
        self._check_model(model, report)
        self.model.to(device).float().eval()
        self.device = device
        self.captions = hasattr(self.model, 'get_text_features')
        self.limit = self._find_limit()
        self.name = f'transformers: {model}'
        self.default_templates = _CAPTIONS if self.captions else _BARE

    def _check_model(self, name: str, report: Mapping[str, Any]) -> None:
        config = self.model.config
        part = config.model_type.endswith('_text_model')
        if config.is_encoder_decoder or part:
            raise ValueError(
                'model must be a text encoder or a whole CLIP-style model, '
                f'got {name!r} of type {config.model_type!r}; use a model of '
                'another type'
            )
        # The pooler is not used; many a file comes without it.
        missing = sorted(
            key for key in report['missing_keys'] if 'pooler.' not in key
        )
        if missing:
            raise ValueError(
                f'the weights of {name!r} must be complete, got '
                f'{len(missing)} missing, such as {missing[0]}; the model '
                'would embed at random'
            )

    def _find_limit(self) -> int:
        config = self.model.config
        if self.captions:
            config = getattr(config, 'text_config', config)
        limits = (
            self.tokenizer.model_max_length,
            getattr(config, 'max_position_embeddings', None),
        )
        return min(limit for limit in limits if limit)

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts, see :class:`~mmext.apis.text_encoders.TextEncoder`."""
        texts = list(texts)
        ids = self.tokenizer(texts)['input_ids']
        _check_lengths(texts, list(map(len, ids)), self.limit)
        inputs = self.tokenizer(
            texts,
            padding='max_length' if self.captions else True,
            max_length=self.limit if self.captions else None,
            return_tensors='pt',
            return_attention_mask=None if self.captions else True,
        ).to(self.device)
        if self.captions:
            found = self.model.get_text_features(**inputs)
            # A tensor in transformers 4, an output with names in 5.
            found = getattr(found, 'pooler_output', found)
            return found.float().cpu()
        states = self.model(**inputs).last_hidden_state
        mask = inputs['attention_mask'][..., None].to(states.dtype)
        return ((states * mask).sum(dim=1) / mask.sum(dim=1)).float().cpu()
