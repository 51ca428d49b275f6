"""Count tokens with the tokenizer of a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from orchestrator.errors import ConfigError


class FolderTokenizer:
    """The tokenizer of a model folder.

    Args:
        folder: A model folder with a tokenizer.json.
        where: Flag or key that names the folder, for messages.

    Raises:
        ConfigError: The folder has no tokenizer.json, or one that cannot be read.
    """

    def __init__(self, folder: Path, where: str) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                where, f"'{folder}' has no tokenizer.json",
                "give the folder of a model that has one; other kinds of tokenizers are not read",
            )  # fmt: skip
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(
                where, f"{path} is no tokenizer ({error})", "copy it from the model again"
            ) from error
        # A file may ask to cut texts at the training length, which would hide long prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.name = folder.resolve().name
        """Name of the folder."""

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, special tokens left out."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [len(encoding.ids) for encoding in encodings]
