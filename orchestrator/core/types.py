"""The data that all layers share: frozen records, no behaviour beyond derived values.

Seconds and tokens are the units; rates lie in 0 to 1; missing data is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.core.failures import FailureKind
from orchestrator.core.node_state import NodeState, NodeVerdict

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
    """Concurrent requests of the closed loop, at least 1; in the open loop the most at a time."""
    temperature: float
    """Sampling temperature written into every request."""
    workload: str = "code"
    """Name of the workload."""
    request_rate: float = 0.0
    """Mean arrivals / s of the open loop (Poisson); 0 is the closed loop."""

    @property
    def is_open_loop(self) -> bool:
        """Whether requests arrive by themselves instead of following an answer."""
        return self.request_rate > 0

    @property
    def key(self) -> str:
        """Short name, valid in an MLflow key, for example ``c2_t0.7`` or ``r1.5_t0.7``."""
        first = f"r{self.request_rate:g}" if self.is_open_loop else f"c{self.streams}"
        return f"{first}_t{self.temperature:g}"


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
    prefix_cache_queries: float | None = None
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_cache_hits: float | None = None
    """Prompt tokens that were found there."""
    num_preemptions: float | None = None
    num_requests_running: float | None = None
    """Gauge, like the two below: meaningful in a snapshot, None in a difference."""
    num_requests_waiting: float | None = None
    kv_cache_usage: float | None = None
    """Share of the KV cache in use, 0 to 1; it says nothing of capacity."""


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
    kv_cache_tokens_log: int | None = None
    """What the log says of the same two; see ``core.capacity``."""
    kv_max_concurrency_log: float | None = None
    max_model_len: int | None
    boot_time_s: float
    weights_bytes: int | None
    log_path: str
    resolved_config: dict[str, object] = field(default_factory=dict)
    build: dict[str, object] = field(default_factory=dict)
    """What the engine's side knows of its build and machine; see ``serve_apps.engine.build``."""


class Invalid(StrEnum):
    """Why a block gets no score."""

    REQUESTS = "requests"
    """Too many requests failed, a stream gave up, or there was no window."""
    TOKENS = "tokens"
    """Client and engine disagree about tokens, or nobody counted them."""
    CONTAMINATED = "contaminated"
    """The engine generated more than the client asked for: other traffic."""
    RESTARTED = "restarted"
    COUNTERS = "counters"
    """The engine's counters are missing or make no sense."""
    NODE = "node"
    """The node was unfit: clock, memory."""
    CACHED = "cached"
    """Prompts came from the prefix cache although the study does not ask for it."""
    TRUNCATED = "truncated"
    """Answers are shorter than asked although ends were to be ignored."""
    GARBAGE = "garbage"
    """Answers are no text."""
    ACCEPTANCE = "acceptance"
    """Acceptance outside its bounds, or drafting that does not fit the arm."""
    CONCURRENCY = "concurrency"
    """The engine did not run as many requests at a time as the cell asks for."""
    STEP_TIME = "step_time"
    """Acceptance length / step time is not the throughput."""
    SILENT = "silent"
    """No stream got a token for a long time although requests were open."""
    SCALING = "scaling"
    """Twice the streams gave more than twice the throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalidity:
    """One reason why a block gets no score."""

    kind: Invalid
    detail: str
    """One sentence with the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of a sample, linear between order statistics."""

    p50: float
    p95: float
    p99: float
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAudit:
    """Output tokens as the client and as the engine count them."""

    client_total: int
    """Of all requests between two idle moments."""
    engine_total: float | None
    """The same by the engine's counter; None without counters."""
    unknown_total: int
    """Most tokens that the engine may have generated for answers whose count is unknown."""
    client_window: int
    """Within the window, by the arrival of chunks."""
    engine_window: float | None
    edge_tokens: int
    """Tokens that arrived while the window's edges were observed: either side may have them."""
    client_prompts: int | None = None
    """Prompt tokens of all requests that succeeded; None when a server does not say."""
    engine_prompts: float | None = None
    """The same by the engine's counter between the two idle moments."""
    unknown_prompts: int = 0
    """Most prompt tokens of the requests whose count is not known."""


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
    """Length of the window, in which every stream was busy; 0 when it never opened."""
    counters: CounterSnapshot
    """Difference over the window; all None without counters."""
    audit: TokenAudit
    num_requests: int
    """Requests that were made, ramp and drain included."""
    num_failed: int
    num_refused: int = 0
    """Answers 429 and 503; they are asked again and do not count as failed."""
    num_delayed: int = 0
    """Arrivals of the open loop that found every connection busy."""
    num_lost_streams: int = 0
    """Streams that gave up after failures in a row."""
    errors: dict[str, int] = field(default_factory=dict)
    """The most frequent messages of requests that were refused or failed, with their counts."""
    effective_concurrency: float | None = None
    """Mean of the engine's gauge of running requests over the window, from a few looks."""
    client_concurrency: float | None = None
    """Mean of the requests that were being answered, by the client's records over the window."""
    most_running: float | None = None
    """The largest of them."""
    mean_waiting: float | None = None
    """Mean of the gauge of requests that wait for their turn."""
    ttft_s: tuple[float, ...]
    """Of the requests that started in the window."""
    tpot_s: tuple[float, ...]
    """Of the requests that ended in the window."""
    chunk_gap_s: Quantiles | None = None
    """Gaps between chunks of one answer in the window; not a time per token."""
    finish_reasons: dict[str, int]
    prompt_tokens: int | None = None
    """Of all requests that succeeded; None when a server does not say."""
    cached_tokens: int | None = None
    node: NodeVerdict | None = None
    node_states: tuple[NodeState, ...] = ()
    """Before, during and after the window, never at its edges; empty when nobody looked."""
    invalid: tuple[Invalidity, ...] = ()
    """Why the block gets no score; empty for a valid block."""

    @property
    def output_tokens(self) -> int:
        """Output tokens of all streams in the window, as the client counts them."""
        return self.audit.client_window

    @property
    def is_valid(self) -> bool:
        """Whether the block may enter an estimate."""
        return not self.invalid

    @property
    def invalid_reason(self) -> str | None:
        """All reasons in one sentence each; None for a valid block."""
        return "; ".join(f"{item.kind}: {item.detail}" for item in self.invalid) or None


class ProofPart(StrEnum):
    """What a proof boot looks at, in this order."""

    TEXT = "text"
    AUDIT = "audit"
    GREEDY = "greedy"
    CANARIES = "canaries"
    TASKS = "tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What one proof boot found; a part that was not looked at is absent."""

    findings: dict[str, dict[str, object]]
    """By ``ProofPart``: the part's own record as plain JSON."""
    notes: tuple[str, ...] = ()
    """Why a part found nothing, a sentence each."""


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
    failure: FailureKind | None = None
    """What ended it; ``failures.CLASSES`` has what the race does then. None for an ok boot."""
    cause: str = ""
    """The line of the engine's log, or of Ray, that names the root cause; empty where none does."""
    run_id: str | None = None
    """MLflow run of the trial."""
    fingerprint: str | None = None
    """Digest of everything that the boot ran on and with; None when it never came up."""
    sections: dict[str, str] = field(default_factory=dict)
    """Digests of the fingerprint's sections, by which boots are compared."""
    proof: Proof | None = None
    """Only of a proof boot, in which nothing is timed: it has no blocks and enters no estimate."""


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
