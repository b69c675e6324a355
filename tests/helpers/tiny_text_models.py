"""Text models of other packages, small and random, written to a folder.

Their packages are imported when one is made: they are extras.
"""

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
