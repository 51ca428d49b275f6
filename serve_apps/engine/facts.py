"""What an engine says about itself once it is up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from serve_apps.engine.enginelog import LogFacts

_CAPACITY_GAUGE = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Facts of one boot, each from the engine itself; None where it does not say."""

    boot_id: str
    pid: int
    """Process id of the API server, on the engine's node."""
    port: int
    base_url: str
    """Loopback address on the engine's node, no trailing slash."""
    python: str
    engine_version: str | None
    model_runner: str | None
    """"v1" or "v2"."""
    resolved_config: dict[str, Any] | None
    """vLLM's own config after its defaults and corrections, or None without /server_info."""
    draft_architecture: str | None
    speculative_method: str | None
    num_speculative_tokens: int | None
    draft_sample_method: str | None
    rejection_sample_method: str | None
    max_model_len: int | None
    kv_cache_tokens: int | None
    kv_max_concurrency: float | None
    kv_cache_tokens_log: int | None
    """The same two from the log, to be checked against the gauge's."""
    kv_max_concurrency_log: float | None
    weights_gib: float | None
    """Memory that loading the model took, GiB, as logged (target and draft)."""
    boot_time_s: float
    """From process start to the first completion."""
    log_path: str
    build: dict[str, Any] = field(default_factory=dict)
    """See `build.build_facts`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts in JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the KV cache holds, as the engine's gauge says it."""

    kv_cache_tokens: int | None
    kv_max_concurrency: float | None


def _capacity_labels(metrics: str) -> Iterator[Mapping[str, str]]:
    # A last line without its end was cut off; its labels may be too.
    lines = [line for line in metrics.split("\n")[:-1] if line.startswith(_CAPACITY_GAUGE)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name == _CAPACITY_GAUGE:
                yield sample.labels


def _number(text: str | None) -> float | None:
    try:
        value = float("nan" if text is None else text)
    except ValueError:
        return None  # the engine writes "None" for what it does not know
    return value if math.isfinite(value) else None


def parse_capacity(metrics: str) -> Capacity:
    """Return the KV capacity from the exposition; num_gpu_blocks is not used (wrong on hybrids).

    With several engines behind one server the smallest counts: it is what every request fits in.
    """
    labels = list(_capacity_labels(metrics))
    tokens = [_number(each.get("kv_cache_size_tokens")) for each in labels]
    concurrency = [_number(each.get("kv_cache_max_concurrency")) for each in labels]
    known_tokens = [value for value in tokens if value is not None]
    known_concurrency = [value for value in concurrency if value is not None]
    return Capacity(
        kv_cache_tokens=int(min(known_tokens)) if known_tokens else None,
        kv_max_concurrency=min(known_concurrency) if known_concurrency else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculation in force, as the engine reports it."""

    method: str | None
    num_speculative_tokens: int | None
    draft_sample_method: str | None
    rejection_sample_method: str | None
    draft_architecture: str | None


def parse_speculation(config: Mapping[str, Any] | None, log: LogFacts) -> Speculation:
    """Return the speculation in force.

    Args:
        config: The engine's resolved config, or None when it does not show it.
        log: What its log says.
    """
    section = (config or {}).get("speculative_config") or {}
    return Speculation(
        method=section.get("method") or log.speculative_method,
        num_speculative_tokens=section.get("num_speculative_tokens") or log.num_speculative_tokens,
        draft_sample_method=section.get("draft_sample_method"),
        rejection_sample_method=section.get("rejection_sample_method"),
        draft_architecture=_draft_architecture(section, log),
    )


def _draft_architecture(section: Mapping[str, Any], log: LogFacts) -> str | None:
    draft = section.get("draft_model_config") or {}
    named = draft.get("architectures") or (draft.get("hf_config") or {}).get("architectures")
    if named:
        return str(named[0])
    # The dump of 0.32 leaves architectures out. The log resolves the target's first, then the
    # draft's; ngram and its like have no model, and the target's would be taken for the draft's.
    speculates = bool(section) or log.speculative_method is not None
    return log.architectures[-1] if speculates and len(log.architectures) > 1 else None
