"""Make class embeddings from class names, and write them to a file.

:class:`mmext.models.CoDINOClassEmbedHead` classifies by the cosine to them.

:class:`TextEncoder` runs CLIP-style models, which give their projected text;
each is read from a folder or from the hub. Any other encoder, such as one of
sentence-transformers, is run with its own package and given to
:func:`make_class_embeddings`. Checkpoints in open_clip's own format have to
be converted; ``openai/clip-*`` and ``google/siglip*`` come in both formats.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from ..engine import resolve_device
from ..utils.files import atomic_path

# About 18 degrees. The cosines of any one query to two classes of cosine c
# differ by sqrt(2 - 2c) at the most: 0.32 of a range of 2 for this one.
SIMILAR_COSINE = 0.95


def class_phrases(classes: Sequence[str]) -> tuple[str, ...]:
    """Word K names as text, all different; ``_`` and blanks are one blank."""
    if isinstance(classes, str) or not classes:
        raise ValueError(
            f'classes must be a sequence of names, got {classes!r}'
        )
    first: dict[str, int] = {}
    for index, name in enumerate(classes):
        phrase = ' '.join(name.replace('_', ' ').split())
        if not phrase:
            raise ValueError(
                f'classes must not be empty, got {name!r} at position {index}'
            )
        if phrase in first:
            other = first[phrase]
            raise ValueError(
                f'classes must be different, got {classes[other]!r} at '
                f'position {other} and {name!r} at position {index}, which '
                f'both read {phrase!r}; rename one, since no classifier can '
                'tell them apart'
            )
        first[phrase] = index
    return tuple(first)


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Check texts that hold ``{}`` once; other braces are kept as they are."""
    if isinstance(templates, str) or not templates:
        raise ValueError(
            f'templates must be a sequence of texts, got {templates!r}; use '
            "['{}'] for the bare name"
        )
    for index, template in enumerate(templates):
        if template.count('{}') != 1:
            raise ValueError(
                'templates must hold {} exactly once, where the name goes, '
                f'got {template!r} at position {index}'
            )
    return tuple(templates)


def read_lines(path: str | Path) -> list[str]:
    """Read names, one a line, in UTF-8; empty lines are left out."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'there must be a text file at {path}')
    text = path.read_text(encoding='utf-8-sig')
    return [line.strip() for line in text.splitlines() if line.strip()]


def _unit_rows(vectors: Any, texts: Sequence[str]) -> Tensor:
    """Normalise what an encoder gave; ``(N, D)`` float64."""
    vectors = torch.as_tensor(vectors)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.numel():
        raise ValueError(
            f'encoder must give a vector for each of {len(texts)} texts, got '
            f'shape {tuple(vectors.shape)}'
        )
    vectors = vectors.detach().to('cpu', torch.float64)
    norms = vectors.norm(dim=1)
    bad = ~norms.isfinite() | (norms == 0)
    if bad.any():
        text = texts[int(bad.nonzero()[0])]
        raise ValueError(
            'encoder must give finite vectors that are not zero, got one '
            f'that is for {text!r}; try another model or device'
        )
    return vectors / norms[:, None]


@torch.no_grad()
def make_class_embeddings(
    classes: Sequence[str],
    encoder: Any,
    templates: Sequence[str] | None = None,
    *,
    batch_size: int = 64,
    on_texts: Callable[[int], Any] | None = None,
) -> Tensor:
    r"""Embed class names with a text encoder.

    Each name is put into each of the T templates. The embedding of class k
    is the direction of the mean of the directions of its texts,

    .. math:: e_k = \frac{m_k}{|m_k|}, \quad
        m_k = \frac{1}{T} \sum_t \frac{f(text_{kt})}{|f(text_{kt})|}

    Args:
        classes: K names; underscores are read as blanks.
        encoder: Gives the vectors f: a :class:`~mmext.apis.TextEncoder`, or
            any object whose ``encode`` takes a list of texts and gives a
            tensor or an array, such as a ``SentenceTransformer``.
        templates: T texts with ``{}`` for the name. By default those that
            suit the encoder, its ``default_templates``.
        batch_size: Texts at once.
        on_texts: Called after each batch with the number of its texts.

    Returns:
        ``(K, D)``, float32, on the CPU, rows of length 1.

    Raises:
        ValueError: If there are no names or templates, names are empty or
            repeated, a template does not hold ``{}`` once, ``batch_size`` is
            less than one, or the encoder gives vectors that are zero, not
            finite, of a wrong number, or that cancel each other.

    Source:
        Averaging over templates follows Radford et al., Learning
        Transferable Visual Models From Natural Language Supervision, 2021.
    """
    phrases = class_phrases(classes)
    if templates is None:
        templates = encoder.default_templates
    templates = check_templates(templates)
    if batch_size < 1:
        raise ValueError(f'batch_size must be at least 1, got {batch_size}')
    # K x T texts; those of one phrase follow each other.
    texts = [
        template.replace('{}', phrase)
        for phrase in phrases
        for template in templates
    ]
    parts = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        parts.append(_unit_rows(encoder.encode(batch), batch))
        if on_texts is not None:
            on_texts(len(batch))
    means = torch.cat(parts).unflatten(0, (len(phrases), -1)).mean(dim=1)
    cancelled = means.norm(dim=1) < 1e-6
    if cancelled.any():
        name = classes[int(cancelled.nonzero()[0])]
        raise ValueError(
            f'the templates of a class must not cancel out, got a mean of '
            f'zero for {name!r}; use other templates'
        )
    return normalize(means, dim=1).float()


def closest_classes(embeddings: Tensor) -> tuple[int, int, float] | None:
    """The two rows of ``(K, D)`` with the largest cosine, and the cosine."""
    count = len(embeddings)
    if count < 2:
        return None
    cosines = embeddings @ embeddings.T
    cosines.fill_diagonal_(-2.0)
    first, second = divmod(int(cosines.argmax()), count)
    return first, second, float(cosines[first, second])


def check_embeddings_path(path: str | Path, *, force: bool = False) -> Path:
    """Check that class embeddings can be written to a path, beforehand."""
    path = Path(path)
    if path.suffix != '.safetensors':
        raise ValueError(f'path must end in .safetensors, got {path}')
    if path.is_dir():
        raise IsADirectoryError(f'path must be a file, got directory {path}')
    if path.exists() and not force:
        raise FileExistsError(
            f'path must not exist, got {path}; name another file, or replace '
            'it with --force'
        )
    return path


def save_class_embeddings(
    path: str | Path,
    embeddings: Tensor,
    classes: Sequence[str],
    info: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write class embeddings whole or not at all; missing folders are made.

    The file has the tensor ``class_embeddings``, and as metadata ``classes``,
    a JSON list, and ``info``, strings as they are and all else as JSON.

    Args:
        path: File to write, ``*.safetensors``.
        embeddings: ``(K, D)``; written as float32.
        classes: K names, as the data set has them.
        info: More to write down, such as the encoder: plain values.
        force: Replace an existing file.

    Returns:
        The path.

    Raises:
        FileExistsError: If there is a file and ``force`` is false.
        IsADirectoryError: If the path is a directory.
        ValueError: If the suffix is another one, or the embeddings are no
            finite ``(K, D)`` with a row for each class.
    """
    path = check_embeddings_path(path, force=force)
    shape = tuple(embeddings.shape)
    if len(shape) != 2 or shape[0] != len(classes) or 0 in shape:
        raise ValueError(
            f'embeddings must have a row for each of {len(classes)} classes, '
            f'got shape {shape}'
        )
    rows = embeddings.detach().to('cpu', torch.float32).clone().contiguous()
    if not rows.isfinite().all():
        raise ValueError('embeddings must be finite, got some that are not')
    names = {**(info or {}), 'classes': list(classes)}
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in names.items()
    }
    with atomic_path(path) as temporary:
        save_file({'class_embeddings': rows}, temporary, texts)
    return path


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
