"""What the requests of one load did, and when: frozen records.

Seconds and tokens are the units; missing data is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TokenSource(StrEnum):
    """Where the count of output tokens came from."""

    USAGE = "usage"
    """The answer's ``usage``."""
    SERVER = "server"
    """Another statement of the server, such as token ids or ``timings``."""
    NONE = "none"


class RequestFault(StrEnum):
    """What kind of thing went wrong with a request."""

    REFUSED = "refused"
    """HTTP 429 or 503: the server has no room now."""
    HTTP = "http"
    """Any other status than 200."""
    CONNECTION = "connection"
    """Refused or reset."""
    STALLED = "stalled"
    """No byte for too long, or no end in time."""
    BROKEN = "broken"
    """What came is no event stream, ends mid-way, or holds an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What one request of the load did. Times are seconds since the start of the request."""

    request_id: str
    prompt_id: str
    prompt_tokens: int | None
    output_tokens: int | None
    """Tokens of the whole answer; of a failed one what had arrived, where that is known."""
    token_source: TokenSource
    finish_reason: str | None
    started_s: float
    """Start on the client's monotonic clock, relative to the start of the load. In the open loop
    the moment of the arrival, whenever the request could be sent."""
    ttft_s: float | None
    """To the first generated text, of whatever kind (content, reasoning, tool call)."""
    e2e_s: float | None
    """To the last event that carries the answer; None when the request failed."""
    chunk_times_s: tuple[float, ...]
    """[num_chunks] arrival of each chunk with generated text."""
    chunk_tokens: tuple[int, ...] | None = None
    """[num_chunks] output tokens up to and with each chunk, where the server says so."""
    max_tokens: int | None = None
    """What was asked for."""
    cached_tokens: int | None = None
    """Prompt tokens from the prefix cache; None when the server does not say."""
    text: str = ""
    fault: RequestFault | None = None
    """None for a request that succeeded; then ``error`` is None too."""
    error: str | None = None
    retry_after_s: float | None = None
    """What a refusing server asked to wait."""
    ended_s: float | None = None
    """When it was over in whatever way, from its start; None where nobody looked."""

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, (e2e - ttft) / (tokens - 1); None if unknown."""
        if self.e2e_s is None or self.ttft_s is None or not self.output_tokens:
            return None
        if self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


class Moment(StrEnum):
    """When the load lets the world be observed."""

    BEFORE = "before"
    """Warmed up and drained: the engine is idle."""
    OPEN = "open"
    """The first answer of every stream is over: the window starts."""
    DURING = "during"
    CLOSE = "close"
    """Every stream still asks: the window ends."""
    AFTER = "after"
    """Drained again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of the load's clock, in seconds since the start of the load."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s

    @property
    def middle_s(self) -> float:
        """Its middle."""
        return (self.start_s + self.end_s) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One run of the load: every request from idle engine to idle engine, and the window."""

    records: tuple[RequestRecord, ...]
    """By start; ramp and drain included."""
    opening: Span | None
    """How long the observation at the window's start took; None when it never opened."""
    closing: Span | None
    """The same at its end."""
    num_lost_streams: int = 0
    """Streams that gave up after failures in a row."""
    num_delayed: int = 0
    """Arrivals of the open loop that had to wait for a free connection."""
    silent_s: float | None = None
    """How long no stream had got a token, with requests open, when the load was given up; None
    where it was not."""

    @property
    def window(self) -> Span | None:
        """The window, from the middle of one observation to the middle of the other."""
        if self.opening is None or self.closing is None:
            return None
        return Span(start_s=self.opening.middle_s, end_s=self.closing.middle_s)

    @property
    def num_failed(self) -> int:
        """Requests that failed for any reason but a refusal."""
        return sum(r.fault not in (None, RequestFault.REFUSED) for r in self.records)

    @property
    def num_refused(self) -> int:
        """Requests that the server had no room for."""
        return sum(r.fault is RequestFault.REFUSED for r in self.records)
