"""An engine's arguments and its resolved config, reduced to what is the same in every like boot."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from orchestrator.core.identity import digest
from orchestrator.core.secrecy import scrub

SOME_PATH = "(a path)"
"""Stands where a path stood: that one is set may matter, where it lies does not."""

# Digested by content (`ModelDigests`), or a name that differs from boot to boot.
_MODELS = frozenset({"model", "tokenizer", "served_model_name", "chat_template"})

CONTENTS = frozenset(
    {
        *("lora_modules", "hf_config_path", "model_weights", "quantization_param_path"),
        *("tool_parser_plugin", "reasoning_parser_plugin", "io_processor_plugin", "config"),
    }
)
"""Arguments that name files or folders whose content changes what is computed."""

# Measured per boot, or drawn: what they hold is a fact of the boot and stands in `EngineFacts`.
# kv_cache_memory_bytes is what a profile found, unless it was asked for; then it is an argument.
_PER_BOOT = frozenset(
    {
        *("instance_id", "seed", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_memory_bytes"),
        *("kv_cache_size_tokens", "kv_cache_max_concurrency", "assigned_physical_gpu_ids"),
        *("compilation_time", "encoder_compilation_time", "traced_files"),
        *("static_forward_context", "placement_group", "ray_runtime_env"),
    }
)
# Copies of what stands elsewhere, and sections that change what is written down, not what runs.
_SECTIONS = frozenset(
    {
        *("target_model_config", "target_parallel_config"),
        *("logging_config", "observability_config", "profiler_config"),
    }
)
_PLACE = re.compile(
    r"(?:^|_)(?:host|ip|addr|port|ports|port_list|dir|folder|path|url|endpoint|uuid|uds)$"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"(?:~?/|\.{1,2}/|file:)\S*")

# Arguments that are a draw, or change what is logged.
_UNASKED = frozenset({"seed", "uvicorn_log_level", "disable_log_stats", "enable_log_requests"})


def reduced_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return an engine's resolved config without what differs between boots of one arm.

    Left out, at any depth: paths, ports, addresses and device ids; what the engine measured (KV
    capacity, times of compilation); the seed, which is a draw; models and their names, whose
    content is digested; logging, metrics and profiling; secrets. Addresses of functions in memory
    are taken out of texts.
    """
    kept = {name: value for name, value in config.items() if name not in _SECTIONS}
    plain = scrub(_reduced(kept))
    assert isinstance(plain, dict)
    return plain


def reduced_arguments(args: Mapping[str, object]) -> dict[str, object]:
    """Return engine arguments by what reaches the command line.

    A command line is text, so 7 and "7" are equal, and 0.9 is not "0.90"; a mapping reaches it as
    JSON, in which 7 and "7" differ. True is the flag and false its opposite, neither is a text.
    None is left out. Names are compared with underscores. Models, paths, ports and seeds are left
    out or reduced as in ``reduced_config``. Of what ``CONTENTS`` names, digests of the content
    should stand in place of paths; a path that is left could not be read, and differs from every
    other.
    """
    told: dict[str, object] = {}
    for name, value in args.items():
        key, said = name.replace("-", "_").lstrip("_"), value
        if key.startswith("no_") and isinstance(value, bool):
            key, said = key.removeprefix("no_"), not value
        if said is None or key in _MODELS | _UNASKED:
            continue
        if key in CONTENTS:
            told[key] = _of_content(said)
        elif not _PLACE.search(key):
            reduce = _of_generation if key == "generation_config" else _on_command_line
            told[key] = reduce(said)
    plain = scrub(told)
    assert isinstance(plain, dict)
    return plain


def _on_command_line(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return _reduced(value)
    if isinstance(value, list | tuple):
        return [_text(str(item)) for item in value]
    text = str(value)
    if text.lstrip().startswith("{"):
        try:
            return _reduced(json.loads(text))
        except (ValueError, RecursionError):
            pass  # vLLM will say so
    return _text(text)


def _reduced(value: object) -> object:
    if isinstance(value, Mapping):
        return {
            str(name): _of_generation(item) if name == "generation_config" else _reduced(item)
            for name, item in value.items()
            if name not in _MODELS | _PER_BOOT | _SECTIONS and not _PLACE.search(str(name))
        }
    if isinstance(value, list | tuple):
        return [_reduced(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # no JSON, but Python's reader takes it
    return _text(value) if isinstance(value, str) else value


def _of_generation(value: object) -> object:
    """Return the named source of sampling defaults; a folder, even a relative one, is a path."""
    return value if value in ("auto", "vllm") else SOME_PATH


def _of_content(value: object) -> object:
    """Return what names contents, with a digest in place of each path that is left."""
    if isinstance(value, Mapping):
        return {str(name): _of_content(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_of_content(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] in ("{", "["):
        try:
            return _of_content(json.loads(value))
        except (ValueError, RecursionError):
            pass  # vLLM will say so
    name, equals, place = value.rpartition("=")
    unread = f"unread {digest({'path': place})}" if _PATH.fullmatch(place) else _text(place)
    return f"{name}{equals}{unread}"


def _text(value: str) -> str:
    whole = value.encode(errors="backslashreplace").decode()
    return SOME_PATH if _PATH.fullmatch(whole) else _ADDRESS.sub("", whole)
