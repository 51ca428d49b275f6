"""Read what is needed of a model folder: its configuration, its identity, its completeness."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.space import DraftFacts
from orchestrator.errors import ConfigError

_EDGE_BYTES = 1 << 20
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


def read_config(path: Path, where: str) -> Mapping[str, Any]:
    """Return the folder's config.json.

    Args:
        path: Model folder.
        where: Dotted key that names the folder, for the message.

    Raises:
        ConfigError: The folder or its config.json is missing or broken.
    """
    if not path.is_dir():
        raise ConfigError(where, f"'{path}' is no folder here", "give the folder of the model")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            where, f"'{path}' has no readable config.json ({error})", "give a model's folder"
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(where, f"config.json of '{path}' is no mapping", "repair the model")
    return config


def require_target(path: Path, where: str) -> None:
    """Check that a target can be served: configuration, weights and tokenizer.

    Raises:
        ConfigError: Something is missing; the text names it.
    """
    read_config(path, where)
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(
            where, f"'{path}' has no tokenizer ({', '.join(_TOKENIZERS)})",
            "copy the tokenizer's files beside the weights",
        )  # fmt: skip
    require_weights(path, where)


def require_weights(path: Path, where: str) -> None:
    """Check that there are weights.

    Raises:
        ConfigError: There are none.
    """
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        raise ConfigError(where, f"'{path}' has no weights", "copy its .safetensors files")


def draft_facts(path: Path, where: str) -> DraftFacts:
    """Return what the draft's folder says of the draft.

    Raises:
        ConfigError: The folder, its configuration or its weights are missing.
    """
    config = read_config(path, where)
    require_weights(path, where)
    nested = config.get("dflash_config")
    block_size = config.get("block_size")
    if block_size is None and isinstance(nested, Mapping):
        block_size = nested.get("block_size")
    if block_size is not None and type(block_size) is not int:
        raise ConfigError(
            where, f"'{path}' says block_size {block_size!r}, which is no number of tokens",
            "repair its config.json",
        )  # fmt: skip
    architectures = config.get("architectures")
    return DraftFacts(
        block_size=block_size,
        architecture=architectures[0]
        if isinstance(architectures, list) and architectures
        else None,
    )


def folder_digest(path: Path) -> str:
    """Return 16 hex digits that identify a model: names, sizes and both ends of every file.

    Weights of tens of gigabytes are not read whole; a changed checkpoint changes its ends
    (safetensors keeps its header first), its sizes or its configuration.
    """
    seen = hashlib.sha256()
    for file in sorted(item for item in path.iterdir() if item.is_file()):
        if file.suffix in (".md", ".txt"):
            continue
        size = file.stat().st_size
        seen.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            seen.update(stream.read(_EDGE_BYTES))
            if size > 2 * _EDGE_BYTES:
                stream.seek(-_EDGE_BYTES, 2)
                seen.update(stream.read(_EDGE_BYTES))
    return seen.hexdigest()[:16]
