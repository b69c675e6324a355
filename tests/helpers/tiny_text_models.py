"""Text models of other packages, small and random, written to a folder.

Their packages are imported when one is made: they are extras.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

# Tokens of the tokenizer: whole words, and letters for all other words.
_LETTERS = [chr(code) for code in range(ord('a'), ord('z') + 1)]
_VOCABULARY = [
    *('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'),
    *('photo', 'cell', 'of', '.'),
    *_LETTERS,
    *(f'##{letter}' for letter in _LETTERS),
]
SEP = _VOCABULARY.index('[SEP]')
MAX_TOKENS = 16


def _write_tokenizer(folder: Path, *inputs: str) -> None:
    """``inputs`` are what the model takes, where it is not all of BERT's."""
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'vocab.txt').write_text('\n'.join(_VOCABULARY))
    BertTokenizerFast(
        str(folder / 'vocab.txt'),
        model_max_length=MAX_TOKENS,
        **({'model_input_names': list(inputs)} if inputs else {}),
    ).save_pretrained(folder)


def write_bert(folder: Path) -> str:
    """A BERT with 24 dimensions; returns the folder."""
    from transformers import BertConfig, BertModel

    _write_tokenizer(folder)
    config = BertConfig(
        vocab_size=len(_VOCABULARY),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=MAX_TOKENS,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


def _towers() -> dict:
    text = {
        'vocab_size': len(_VOCABULARY),
        'hidden_size': 32,
        'num_hidden_layers': 2,
        'num_attention_heads': 2,
        'intermediate_size': 48,
        'max_position_embeddings': MAX_TOKENS,
        'bos_token_id': SEP - 1,
        'eos_token_id': SEP,
        'pad_token_id': 0,
    }
    vision = {
        'hidden_size': 32,
        'num_hidden_layers': 1,
        'num_attention_heads': 2,
        'intermediate_size': 48,
        'image_size': 32,
        'patch_size': 16,
    }
    return {'text_config': text, 'vision_config': vision}


def write_clip(folder: Path) -> str:
    """A CLIP with 20 dimensions; returns the folder."""
    from transformers import CLIPConfig, CLIPModel

    _write_tokenizer(folder, 'input_ids', 'attention_mask')
    model = CLIPModel(CLIPConfig(**_towers(), projection_dim=20))
    # At its own size the random text half gives all texts the same vector.
    with torch.no_grad():
        model.text_model.embeddings.token_embedding.weight.normal_()
    model.save_pretrained(folder)
    return str(folder)


def write_siglip(folder: Path) -> str:
    """A SigLIP with 32 dimensions, which reads the last token's place."""
    from transformers import SiglipConfig, SiglipModel

    # As in the field without an attention mask: padding is read, too.
    _write_tokenizer(folder, 'input_ids')
    SiglipModel(SiglipConfig(**_towers())).save_pretrained(folder)
    return str(folder)


def write_t5(folder: Path) -> str:
    """An encoder and decoder with 24 dimensions; returns the folder."""
    from transformers import T5Config, T5Model

    _write_tokenizer(folder, 'input_ids', 'attention_mask')
    config = T5Config(
        vocab_size=len(_VOCABULARY),
        d_model=24,
        d_kv=12,
        d_ff=48,
        num_layers=2,
        num_heads=2,
    )
    T5Model(config).save_pretrained(folder)
    return str(folder)


def write_modules(
    folder: Path, modules: Mapping[str, Mapping], **files: Mapping
) -> str:
    """Make a folder of sentence-transformers of a model that lies in it.

    Args:
        folder: With a transformer, or one in its folder ``0_Transformer``.
        modules: Name, such as ``1_Pooling``, -> content of its config.json;
            what follows the number is the type.
        files: Name of another JSON file, without its suffix -> content.

    Returns:
        The folder.
    """
    old = folder / '0_Transformer'
    table = [
        {
            'idx': 0,
            'path': old.name if old.is_dir() else '',
            'type': 'Transformer',
        }
    ]
    for index, (name, settings) in enumerate(modules.items(), 1):
        (folder / name).mkdir()
        (folder / name / 'config.json').write_text(json.dumps(settings))
        kind = name.partition('_')[2]
        table.append({'idx': index, 'path': name, 'type': kind})
    for row in table:
        row['name'] = str(row['idx'])
        row['type'] = f'sentence_transformers.models.{row["type"]}'
    (folder / 'modules.json').write_text(json.dumps(table))
    for name, content in files.items():
        (folder / f'{name}.json').write_text(json.dumps(content))
    return str(folder)
