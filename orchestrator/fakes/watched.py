"""Production as a watcher sees it, in memory and in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import TransientError
from orchestrator.ports import Clock, ProductionState
from orchestrator.watch_ports import RecordedRequest, RequestPage, WatchFinding

ANSWER_S = 20.0
"""How long each request takes."""


class FakeWatched:
    """Implements ``watch_ports.Watched``: streams that ask again as soon as they are answered.

    Args:
        app: The engine application that serves.
        clock: Time; ``serve`` moves it.
    """

    def __init__(self, app: str, clock: Clock) -> None:
        self.app = app
        self.step_s = 0.05
        self.length = 3.0
        """Tokens a step."""
        self.temperature: float | None = 1.0
        self.weights: dict[str, float] = {app: 1.0}
        self.silent = False
        """Whether neither engine nor router answers."""
        self._clock = clock
        self._boot = 1
        self._router = 1
        self._drafts = self._tokens = 0.0
        self._requests: list[RecordedRequest] = []
        self._forgotten = 0

    def serve(self, seconds: float, *, streams: int) -> None:
        """Let time pass with so many streams; their requests end within it."""
        began_s = self._clock.utc_s()
        self._clock.sleep(seconds)
        drafts = streams * seconds / self.step_s
        self._drafts += drafts
        self._tokens += drafts * self.length
        num = max(1, round(seconds / ANSWER_S)) * streams
        answer_s = seconds * streams / num if streams else 0.0
        for index in range(num):
            start_s = began_s + index // streams * answer_s
            self._requests.append(
                RecordedRequest(
                    started_at=start_s,
                    ended_at=start_s + answer_s,
                    temperature=self.temperature,
                    streams_at_start=streams,
                    output_tokens=round(answer_s / self.step_s * self.length),
                    prompt_tokens=100,
                )
            )

    def restart_engine(self) -> None:
        """Let the engine be another boot, which counts from 0."""
        self._boot += 1
        self._drafts = self._tokens = 0.0

    def restart_router(self) -> None:
        """Let the router forget what it has recorded, and count from 0."""
        self._requests.clear()
        self._forgotten = 0
        self._router += 1

    def forget(self, keep: int) -> None:
        """Let the router keep the last so many requests only."""
        gone = max(0, len(self._requests) - keep)
        del self._requests[:gone]
        self._forgotten += gone

    def state(self) -> ProductionState:
        """Read what is declared."""
        self._require_answer()
        return ProductionState(
            weights=dict(self.weights),
            engines=dict.fromkeys(self.weights, "RUNNING"),
            router_status="RUNNING",
            messages={},
        )

    def metrics_text(self, app: str) -> str:
        """Return the engine's exposition.

        Raises:
            TransientError: It does not answer.
        """
        self._require_answer()
        if app != self.app:
            raise TransientError(f"no engine answers for '{app}'")
        rows: Mapping[str, float] = {
            "vllm:generation_tokens_total": self._tokens,
            "vllm:prompt_tokens_total": 0.0,
            "vllm:spec_decode_num_drafts_total": self._drafts,
            "vllm:spec_decode_num_draft_tokens_total": self._drafts * 7,
            "vllm:spec_decode_num_accepted_tokens_total": self._tokens - self._drafts,
        }
        lines = [f"process_start_time_seconds {1.7e9 + self._boot}"]
        for name, value in rows.items():
            lines += [f"# TYPE {name} counter", f'{name}{{engine="0"}} {value!r}']
        return "\n".join(lines) + "\n"

    def requests(self, after: int) -> RequestPage:
        """Return the requests that ended since an earlier page.

        Raises:
            TransientError: The router does not answer.
        """
        self._require_answer()
        end = self._forgotten + len(self._requests)
        first = max(after if after <= end else 0, self._forgotten)
        return RequestPage(
            router=f"router-{self._router}",
            next=end,
            lost=max(0, first - after),
            requests=tuple(self._requests[first - self._forgotten :]),
        )

    def _require_answer(self) -> None:
        if self.silent:
            raise TransientError("nothing answers")


class FakeFindings:
    """Implements ``watch_ports.Findings`` in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], WatchFinding] = {}
        """By registered model and id, as they were told last."""
        self.silent = False

    def tell(self, model_name: str, finding: WatchFinding) -> None:
        """Store the finding as it is now.

        Raises:
            TransientError: The tracker is away.
        """
        if self.silent:
            raise TransientError("the tracker does not answer")
        self.kept[model_name, finding.finding_id] = finding
