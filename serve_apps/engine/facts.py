"""What an engine says about itself once it is up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


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

    def to_dict(self) -> dict[str, Any]:
        """Return the facts in JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineFacts:
        """Return the facts of `to_dict`."""
        return cls(**data)
