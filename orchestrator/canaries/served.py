"""What a server says of the model that it serves: its limit, and whether it takes images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.canaries.wire import Server, get
from orchestrator.errors import TransientError
from orchestrator.load.answer import to_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server's own word; None is what it does not say."""

    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens."""
    takes_images: bool | None = None
    source: str = ""
    """Where ``takes_images`` was read."""


def ask_served(server: Server) -> Served:
    """Return what a server says of its model, from its list of models and its resolved config.

    vLLM shows the second only in its development mode. A server that shows neither is asked all
    the same; then nothing is known.
    """
    listed = _json(server, "/v1/models")
    served = read_served(server.model, listed)
    if served.takes_images is not None:
        return served
    return read_served(server.model, listed, _json(server, "/server_info?config_format=json"))


def read_served(model: str, listed: object, resolved: object = None) -> Served:
    """Return what a list of models and a resolved config say; of anything else, nothing.

    Args:
        model: The model's name.
        listed: JSON of ``/v1/models``; what it says of images counts before the config.
        resolved: JSON of vLLM's ``/server_info``.
    """
    item = _model_item(listed, model)
    limit = to_count(item.get("max_model_len")) or to_count(item.get("context_length"))
    modalities = _modalities(item)
    if modalities is not None:
        images = "image" in modalities or "multimodal" in modalities
        return Served(max_model_len=limit, takes_images=images, source="/v1/models")
    takes = _is_multimodal(resolved)
    source = "" if takes is None else "/server_info"
    return Served(max_model_len=limit, takes_images=takes, source=source)


def _json(server: Server, path: str) -> Any:
    try:
        response = get(server, path)
        return json.loads(response.body) if response.status == 200 else {}
    except (TransientError, ValueError, RecursionError):
        return {}


def _model_item(listed: Any, model: str) -> Mapping[str, Any]:
    items = listed.get("data") if isinstance(listed, dict) else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("id") == model:
            return item
    return {}


def _modalities(item: Mapping[str, Any]) -> list[str] | None:
    """Return what the model takes, in any of the forms that servers use, or None."""
    architecture = item.get("architecture")
    nested = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    for value in (item.get("input_modalities"), nested, item.get("capabilities")):
        if isinstance(value, list):
            return [str(part) for part in value]
    return None


def _is_multimodal(resolved: Any) -> bool | None:
    """Return what vLLM's resolved config says of images, or None.

    ``model_config.multimodal_config`` is null for a model of text alone; one with limits of 0
    images was started without them.
    """
    config = resolved.get("vllm_config") if isinstance(resolved, dict) else None
    model = config.get("model_config") if isinstance(config, dict) else None
    if not isinstance(model, dict) or "multimodal_config" not in model:
        return None
    multimodal = model["multimodal_config"]
    if not isinstance(multimodal, dict):
        return False
    if multimodal.get("language_model_only") is True:
        return False
    limits = multimodal.get("limit_per_prompt")
    image = limits.get("image") if isinstance(limits, dict) else None
    count = image.get("count") if isinstance(image, dict) else image
    return count != 0
