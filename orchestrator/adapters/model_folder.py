"""Read what is needed of a model folder: its configuration, its identity, its completeness."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.adapters.content_digest import ContentDigests
from orchestrator.core.fingerprint import ModelDigests
from orchestrator.core.identity import digest
from orchestrator.core.space import DraftFacts
from orchestrator.errors import ConfigError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
_TOKENIZER_FILES = (
    *(*_TOKENIZERS, "merges.txt", "vocab.txt", "spiece.model"),
    *("special_tokens_map.json", "added_tokens.json"),
)
_DOCUMENTS = frozenset({".md", ".rst", ".html", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg"})
_NOTES = frozenset({"README", "NOTICE", "COPYING", "USE_POLICY", "SHA256SUMS"})


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
    except (OSError, ValueError, RecursionError) as error:
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


def folder_digest(path: Path, digests: ContentDigests | None = None) -> str:
    """Return 16 hex digits that identify a model by the names and whole contents of its files.

    Neither the folder's path nor any time enters, and links are followed: a snapshot of the model
    hub's cache and a plain copy have one digest. Left out are hidden files, documents, pictures and
    licences. What it cannot see: subfolders (vLLM reads none), code that ``auto_map`` takes from
    another repository, and the miss that ``ContentDigests`` documents.

    Raises:
        ConfigError: A file cannot be read, or changes meanwhile.
    """
    digests = digests or ContentDigests(None)
    files = sorted(file for file in path.iterdir() if file.is_file() and _is_part(file.name))
    return digest({file.name: digests.of(file) for file in files})


def model_digests(
    target: Path,
    draft: Path | None,
    engine_args: Mapping[str, object],
    digests: ContentDigests | None = None,
) -> ModelDigests:
    """Return the digests of the models that an engine with these arguments serves.

    Args:
        target: Folder of the target.
        draft: Folder of the draft, or None without one.
        engine_args: By vLLM's names; ``tokenizer``, ``chat_template`` and ``generation_config``
            take their files from elsewhere.
        digests: Knows the digests of large files from earlier.

    Raises:
        ConfigError: A file cannot be read, or changes meanwhile.
    """
    args = {name.replace("-", "_"): value for name, value in engine_args.items()}
    digests = digests or ContentDigests(None)
    tokenizer = Path(str(args.get("tokenizer") or target)).expanduser()
    return ModelDigests(
        target=folder_digest(target, digests),
        draft=None if draft is None else folder_digest(draft, digests),
        tokenizer=tokenizer_digest(tokenizer, digests),
        chat_template=chat_template_digest(tokenizer, args.get("chat_template")),
        generation_config=_generation_digest(target, args.get("generation_config"), digests),
    )


def tokenizer_digest(path: Path, digests: ContentDigests | None = None) -> str | None:
    """Return 16 hex digits of the tokenizer's files, or None when the folder has none.

    The chat template, which can stand in ``tokenizer_config.json``, is left out: it has a digest
    of its own.

    Raises:
        ConfigError: A file cannot be read, or changes meanwhile.
    """
    digests = digests or ContentDigests(None)
    names = [name for name in _TOKENIZER_FILES if (path / name).is_file()]
    names += sorted(file.name for file in path.glob("*.tiktoken"))
    found: dict[str, object] = {name: digests.of(path / name) for name in names}
    config = _json_object(path / "tokenizer_config.json")
    if config is not None:
        found["tokenizer_config.json"] = {**config, "chat_template": None}
    return digest(found) if found else None


def chat_template_digest(path: Path, argument: object = None) -> str | None:
    """Return 16 hex digits of the chat template in force, or None when there is none.

    An engine argument, a file or the template itself, wins. Then templates in files
    (``chat_template.jinja``, ``additional_chat_templates``) win over those in
    ``tokenizer_config.json``, and these over ``chat_template.json``. Where one stands does not
    matter.
    """
    if argument:
        text = str(argument)
        try:
            file = Path(text).expanduser()
            text = file.read_text(encoding="utf-8") if file.is_file() else text
        except (OSError, ValueError):
            pass  # too long for the name of a file: it is the template
        return digest({"default": text})
    found: dict[str, str] = {}
    for name in ("chat_template.json", "tokenizer_config.json"):
        found |= _named_templates((_json_object(path / name) or {}).get("chat_template"))
    files = {"default": path / "chat_template.jinja"}
    files |= {file.stem: file for file in path.glob("additional_chat_templates/*.jinja")}
    for name, file in files.items():
        if file.is_file():
            found[name] = file.read_text(encoding="utf-8")
    return digest(found) if found else None


def _generation_digest(target: Path, argument: object, digests: ContentDigests) -> str | None:
    if argument == "vllm":
        return None
    folder = target if argument in (None, "auto") else Path(str(argument)).expanduser()
    file = folder / "generation_config.json"
    return digests.of(file)[:16] if file.is_file() else None


def _is_part(name: str) -> bool:
    stem = name.split(".")[0].upper()
    return not (
        name.startswith(".")
        or Path(name).suffix.lower() in _DOCUMENTS
        or stem in _NOTES
        or stem.startswith("LICENSE")
    )


def _json_object(file: Path) -> dict[str, Any] | None:
    """Return the object in a file, or None when there is no such file or it holds none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _named_templates(value: object) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {str(name): str(text) for name, text in value.items()}
    items = value if isinstance(value, list) else []
    return {str(item["name"]): str(item["template"]) for item in items if _is_template(item)}


def _is_template(item: object) -> bool:
    return isinstance(item, dict) and {"name", "template"} <= set(item)
