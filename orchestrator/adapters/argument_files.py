"""Files and folders that engine arguments name, by what lies in them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.adapters.content_digest import ContentDigests
from orchestrator.core.engine_config import CONTENTS
from orchestrator.core.identity import digest


def with_contents(engine_args: Mapping[str, object], digests: ContentDigests) -> dict[str, object]:
    """Return engine arguments with digests of contents in place of files and folders.

    Only those of ``engine_config.CONTENTS``; ``name=path`` of a LoRA keeps its name. What is not
    on this machine, such as a name of the model hub, stays as it is.

    Raises:
        ConfigError: A file cannot be read, or changes meanwhile.
    """
    return {
        name: _told(value, digests) if name.replace("-", "_") in CONTENTS else value
        for name, value in engine_args.items()
    }


def tree_digest(path: Path, digests: ContentDigests) -> str:
    """Return 16 hex digits of all files below a folder, by relative name and content.

    Hidden files and folders and compiled Python are left out; links to folders are not followed.

    Raises:
        ConfigError: A file cannot be read, or changes meanwhile.
    """
    found: dict[str, object] = {}
    for folder, names, files in os.walk(path):
        names[:] = [name for name in names if name[0] != "." and name != "__pycache__"]
        for name in files:
            file = Path(folder, name)
            if name[0] != "." and file.is_file():
                found[str(file.relative_to(path))] = digests.of(file)
    return digest(found)


def _told(value: object, digests: ContentDigests) -> object:
    if isinstance(value, Mapping):
        return {str(name): _told(item, digests) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item, digests) for item in value]
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] in ("{", "["):
        try:
            return _told(json.loads(value), digests)
        except (ValueError, RecursionError):
            return value  # vLLM will say so
    name, equals, place = value.rpartition("=")
    return f"{name}{equals}{_content(place, digests)}"


def _content(place: str, digests: ContentDigests) -> str:
    path = Path(place).expanduser()
    try:
        if path.is_file():
            return f"sha256 {digests.of(path)[:16]}"
        return f"sha256 {tree_digest(path, digests)}" if place and path.is_dir() else place
    except (OSError, ValueError):
        return place  # no name of a file
