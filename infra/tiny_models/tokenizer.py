"""The byte-level BPE tokenizer of both models, and the token streams made with it."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from infra.tiny_models.corpus import Document
from infra.tiny_models.recipe import CONTEXT_TOKENS, END_OF_TEXT, MASK

# Message contents are joined as they are: a model of code continues code best without markers.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)


def train_tokenizer(documents: list[Document], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on the documents.

    Args:
        documents: Training documents.
        vocab_size: Number of tokens, the two special tokens included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer, under the class name that every transformers release knows."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("is_local", "local_files_only", "backend"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer saved in a model folder."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of one special token."""
    found = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(found, int):
        raise TypeError(f"{token} is not one token: {found}")
    return found


def token_stream(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> torch.Tensor:
    """Return all documents as one stream, [num_tokens] int64, each ended by end-of-text."""
    end = token_id(tokenizer, END_OF_TEXT)
    stream: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch([d.text for d in documents]):
        stream.extend(encoding.ids)
        stream.append(end)
    return torch.tensor(stream, dtype=torch.int64)
