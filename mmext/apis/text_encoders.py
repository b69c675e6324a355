"""Text encoders for class names, run by transformers.

CLIP-style models give their projected text; each is read from a folder or
from the hub. Any other encoder, such as one of sentence-transformers, is run
with its own package and given to :func:`mmext.apis.make_class_embeddings`.
Checkpoints in open_clip's own format have to be converted;
``openai/clip-*`` and ``google/siglip*`` come in both formats.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from ..engine import resolve_device

# Such models were trained on pictures and their captions.
_CAPTIONS = (
    'a photo of a {}.',
    'a photo of the {}.',
    'a picture with a {} in it.',
    'an image that shows a {}.',
)


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


class TextEncoder:
    """The text half of a CLIP-style model, in eval mode and float32.

    It gives ``get_text_features`` (of CLIP, SigLIP, ...) for texts padded to
    the model's full length, as it was trained.

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
            the model is not CLIP-style or is the text half of one without
            its projection, or its file lacks weights.
    """

    name: str
    default_templates = _CAPTIONS

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

        if Path(model).is_dir() and not Path(model, 'config.json').is_file():
            raise OSError('no file config.json')
        options = {'local_files_only': offline}
        config = transformers.AutoConfig.from_pretrained(model, **options)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            model, **options
        )
        self._model, report = transformers.AutoModel.from_pretrained(
            model, output_loading_info=True, **options
        )
        if not hasattr(self._model, 'get_text_features'):
            raise ValueError(
                'model must be a whole CLIP-style model, got '
                f'{model!r} of type {config.model_type!r}; run another '
                'encoder with its own package, such as '
                'mmext.apis.make_class_embeddings(names, '
                f"SentenceTransformer({model!r}), ['{{}}'])"
            )
        missing = sorted(report['missing_keys'])
        if missing:
            raise ValueError(
                f'the weights of {model!r} must be complete, got '
                f'{len(missing)} missing, such as {missing[0]}; the model '
                'would embed at random'
            )
        self._model.to(self._device).float().eval()
        self.name = f'transformers: {model}'
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
            padding='max_length',
            max_length=self._limit,
            return_tensors='pt',
        ).to(self._device)
        vectors = self._model.get_text_features(**inputs)
        # A tensor in transformers 4, an output with names in 5.
        vectors = getattr(vectors, 'pooler_output', vectors)
        return vectors.float().cpu()
