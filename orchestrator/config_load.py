"""The load of a study's configuration, and the traffic's share by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.config_places import require, require_count, require_seconds
from orchestrator.core.plausible import MAX_STREAMS

MAX_ARRIVALS_PER_S = MAX_STREAMS
"""Each takes a port of its own for a while."""
MAX_ANSWER_TOKENS, MAX_BLOCK_TOKENS, MAX_REPEATS = 10**7, 10**12, 1000
"""Tokens of an answer, more than any model's context; of a block; blocks of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """The load of every block."""

    workload: str
    """Name of a shipped workload such as ``code``, or the path of a JSONL file, below the project's
    folder or absolute."""
    streams: tuple[int, ...] = (1,)
    """Concurrencies of the closed loop."""
    request_rates: tuple[float, ...] = ()
    """Mean arrivals / s of the open loop; each is a cell beside those of ``streams``."""
    max_in_flight: int = 256
    """Most requests at a time in the open loop; a block that meets it is not valid."""
    temperatures: tuple[float, ...] = (1.0,)
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    sampling: Literal["explicit", "client_default"] = "explicit"
    """``client_default`` samples as for a client that states nothing: the six values above come
    from the target's generation config and must not be given. They are written out in every
    request too."""
    endpoint: Literal["chat", "completions"] = "completions"
    max_tokens: int = 128
    ignore_eos: bool = True
    """Whether answers go on to ``max_tokens``, so that no arm wins by shorter answers."""
    block_s: float = 10.0
    """Seconds of a block's window, in which every stream is busy."""
    block_tokens: int | None = None
    """Output tokens after which the window closes before its time; None has no such budget."""
    blocks_per_cell: int = 1
    warmup_requests_per_stream: int = 1
    warmup_max_tokens: int = 16
    request_timeout_s: float = 300.0
    """Longest time of one request."""
    stall_timeout_s: float = 120.0
    """Longest time of a request without a byte."""
    block_silence_s: float | None = None
    """Longest time in which no stream of a block gets a token although requests are open; then the
    block ends, and the engine has to give a completion or the boot ends too. None takes
    ``stall_timeout_s``."""
    salt: bool = True
    """Whether prompts are made unique, so that no prefix cache helps; false measures with it."""
    allow_random_workload: bool = False
    """Whether a workload of random tokens may decide about speculation."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: A value is out of range.
        """
        self._check_cells()
        self._check_sampling()
        self._check_times()

    @property
    def max_streams(self) -> int:
        """The most requests that the load has under way."""
        return max((*self.streams, *(self.max_in_flight for _ in self.request_rates)))

    def _check_cells(self) -> None:
        require(
            bool(self.streams or self.request_rates),
            "load.streams",
            "is empty",
            "give at least one concurrency or a request rate",
        )
        for value in self.streams:
            require(
                1 <= value <= MAX_STREAMS,
                "load.streams",
                f"{value} is not 1 to {MAX_STREAMS}",
                "give whole numbers in that range",
            )
        for rate in self.request_rates:
            problem = f"{rate:.6g} is not above 0 to {MAX_ARRIVALS_PER_S}"
            require(
                0 < rate <= MAX_ARRIVALS_PER_S,
                "load.request_rates",
                problem,
                "give arrivals per second",
            )
        for name in ("streams", "request_rates", "temperatures"):
            values = getattr(self, name)
            problem = f"{list(values)} names a value twice, in the six digits that name a cell"
            named = {f"{value:.6g}" if isinstance(value, float) else value for value in values}
            require(len(named) == len(values), f"load.{name}", problem, "name each once")

    def _check_sampling(self) -> None:
        require(
            bool(self.temperatures),
            "load.temperatures",
            "is empty",
            "give at least one temperature",
        )
        for temperature in self.temperatures:
            require(
                0 <= temperature <= 2,
                "load.temperatures",
                f"{temperature} is not in 0 to 2",
                "give temperatures from 0 to 2",
            )
        require(
            0 < self.top_p <= 1, "load.top_p", f"{self.top_p} is not in (0, 1]", "use 1.0 for off"
        )
        require(self.top_k >= 0, "load.top_k", f"{self.top_k} is below 0", "use 0 for no limit")
        require(
            0 < self.repetition_penalty <= 2,
            "load.repetition_penalty",
            f"{self.repetition_penalty} is not in (0, 2]",
            "use 1.0 for off",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            problem = f"{value} is not in -2 to 2"
            require(-2 <= value <= 2, f"load.{name}", problem, "use 0 for off")

    def _check_times(self) -> None:
        require_count("load.max_tokens", self.max_tokens, MAX_ANSWER_TOKENS, least=2)
        for name in ("block_s", "request_timeout_s", "stall_timeout_s", "block_silence_s"):
            value = getattr(self, name)
            if value is not None:
                require_seconds(f"load.{name}", value)
        for name, most in (
            ("blocks_per_cell", MAX_REPEATS),
            ("max_in_flight", MAX_STREAMS),
            ("warmup_max_tokens", MAX_ANSWER_TOKENS),
        ):
            require_count(f"load.{name}", getattr(self, name), most)
        if self.block_tokens is not None:
            require_count("load.block_tokens", self.block_tokens, MAX_BLOCK_TOKENS)
        warmup = self.warmup_requests_per_stream
        require_count("load.warmup_requests_per_stream", warmup, MAX_REPEATS, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellWeight:
    """Share of the traffic that one cell stands for."""

    streams: int | None = None
    """Concurrency of the cell; None for a cell of the open loop."""
    request_rate: float = 0.0
    """Arrivals / s of a cell of the open loop; 0 for the closed loop."""
    temperature: float
    weight: float

    def __post_init__(self) -> None:
        """Check that the cell is named in one way.

        Raises:
            ConfigError: It has both a concurrency and a rate, or neither.
        """
        require(
            (self.streams is None) == (self.request_rate > 0),
            "objective.weights",
            f"streams {self.streams} and request_rate {self.request_rate:g} name no one cell",
            "give either streams or request_rate",
        )

    @property
    def place(self) -> tuple[int | None, float, float]:
        """What names the cell: streams, request rate, temperature."""
        return (self.streams, self.request_rate, self.temperature)

    @property
    def in_words(self) -> str:
        """The cell as it is written."""
        if self.streams is None:
            return f"request_rate {self.request_rate:g}, temperature {self.temperature:g}"
        return f"streams {self.streams}, temperature {self.temperature:g}"
