"""The data that all layers share: frozen records, no behaviour beyond derived values.

Seconds and tokens are the units; rates lie in 0 to 1; missing data is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

BASELINE_DEPTH = 0
"""num_speculative_tokens of the arm that does not speculate."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Arm:
    """One candidate configuration of one engine build.

    What all arms of a study have in common (model, other engine arguments) is a premise of the
    study, not a part of the arm.
    """

    engine_build: str
    """Name of the engine build, for example ``0.32.0``; results of two builds are never pooled."""
    num_speculative_tokens: int = BASELINE_DEPTH
    """Draft depth; 0 means no speculation."""
    draft_sample_method: str | None = None
    """``greedy`` or ``probabilistic``; None without speculation."""
    rejection_sample_method: str | None = None
    """``standard``, ``block`` or ``synthetic``; None without speculation."""

    @property
    def is_baseline(self) -> bool:
        """Whether the arm runs without speculation."""
        return self.num_speculative_tokens == BASELINE_DEPTH

    @property
    def label(self) -> str:
        """Short name, unique within one engine build, for example ``probabilistic+block-7``."""
        if self.is_baseline:
            return "no-speculation"
        return (
            f"{self.draft_sample_method}+{self.rejection_sample_method}"
            f"-{self.num_speculative_tokens}"
        )

    @property
    def key(self) -> str:
        """Name that is unique within a study, usable in MLflow keys and app names."""
        return f"{self.engine_build}/{self.label}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One load condition."""

    streams: int
    """Concurrent requests of the closed loop, at least 1."""
    temperature: float
    """Sampling temperature written into every request."""
    workload: str = "code"
    """Name of the workload."""

    @property
    def key(self) -> str:
        """Short name, valid in an MLflow key, for example ``c2_t0.7``."""
        return f"c{self.streams}_t{self.temperature:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSnapshot:
    """The engine's own counters at one moment, or their difference over a window.

    A counter that the engine does not publish is None. Without speculation the
    ``num_draft*`` and ``num_accepted*`` fields are None.
    """

    generation_tokens: float | None
    prompt_tokens: float | None
    num_drafts: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    num_accepted_tokens_per_pos: tuple[float, ...] | None = None
    """[num_speculative_tokens] accepted drafts by position."""
    num_requests_running: float | None = None
    """Gauge: meaningful in a snapshot, None in a difference."""


class TokenSource(StrEnum):
    """Where the count of output tokens came from."""

    USAGE = "usage"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What one request of the load did. Times are seconds since the start of the request."""

    request_id: str
    prompt_id: str
    prompt_tokens: int | None
    output_tokens: int | None
    token_source: TokenSource
    finish_reason: str | None
    started_s: float
    """Start on the client's monotonic clock, relative to the start of the load."""
    ttft_s: float | None
    e2e_s: float | None
    chunk_times_s: tuple[float, ...]
    cached_tokens: int | None = None
    text: str = ""
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, (e2e - ttft) / (tokens - 1); None if unknown."""
        if self.e2e_s is None or self.ttft_s is None or not self.output_tokens:
            return None
        if self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One run of the closed loop: the measured window and what fell into it."""

    duration_s: float
    """Wall time of the measured window."""
    records: tuple[RequestRecord, ...]
    """Requests that ended inside the window or were cut by its end."""
    output_tokens: int
    """Output tokens of all streams in the window, counted from ``usage``."""
    num_failed: int
    finish_reasons: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a booted engine says of itself."""

    boot_id: str
    pid: int
    base_url: str
    engine_version: str | None
    model_runner: str | None
    """``v1`` or ``v2``, from the engine's log; None when it does not say."""
    num_speculative_tokens: int | None
    draft_sample_method: str | None
    rejection_sample_method: str | None
    draft_architecture: str | None
    kv_cache_tokens: int | None
    kv_max_concurrency: float | None
    max_model_len: int | None
    boot_time_s: float
    weights_bytes: int | None
    log_path: str
    resolved_config: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What is known of a node at one moment; None where the platform does not tell."""

    node_id: str
    kind: str
    hostname: str
    mem_available_bytes: int | None
    mem_total_bytes: int | None
    load_average_1m: float | None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One measured window of one cell inside one boot."""

    block_id: str
    """Unique: boot id, cell key and index."""
    boot_id: str
    index: int
    """Order of the block within the boot, from 0."""
    cell: Cell
    duration_s: float
    counters: CounterSnapshot
    """Difference over the window."""
    output_tokens: int
    num_requests: int
    num_failed: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    finish_reasons: dict[str, int]
    invalid_reason: str | None = None
    """Why the block gets no score; None for a valid block."""


class BootStatus(StrEnum):
    """How a trial ended."""

    OK = "ok"
    INFEASIBLE = "infeasible"
    NOT_IN_FORCE = "not_in_force"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One boot of one arm on one node: the unit of replication."""

    trial_id: str
    arm: Arm
    replicate: int
    """0 for an arm's first boot."""
    node_id: str
    status: BootStatus
    reason: str
    facts: EngineFacts | None
    blocks: tuple[Block, ...]
    run_id: str | None = None
    """MLflow run of the trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardModel:
    """Step time of a board by depth and streams, for studies that cannot measure it.

    Formula: base + verify * tokens_in_step + (draft if the arm speculates else 0), with
    tokens_in_step = streams * (1 + num_speculative_tokens).
    """

    name: str
    source: str
    """Where the coefficients come from, in words."""
    base_s: float
    verify_s_per_token: float
    draft_s: float
    streams: tuple[int, int]
    """Smallest and largest concurrency that the coefficients were derived for."""
    depths: tuple[int, int]
    """Smallest and largest depth that the coefficients were derived for."""

    def step_time_s(self, num_speculative_tokens: int, streams: int) -> float:
        """Return the modelled seconds of one engine step."""
        tokens = streams * (1 + num_speculative_tokens)
        draft_s = self.draft_s if num_speculative_tokens else 0.0
        return self.base_s + self.verify_s_per_token * tokens + draft_s
