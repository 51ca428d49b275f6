"""Where things run and go: node, policy, tracking and production of a study's configuration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.distributions import MAX_CONFIDENCE
from orchestrator.core.exposure import require_keys
from orchestrator.core.plausible import MAX_GIB, MAX_PORT
from orchestrator.core.types import BoardModel
from orchestrator.errors import ConfigError
from serve_apps.router.policy import MAX_CLIENT_STREAMS


def require(condition: bool, where: str, problem: str, remedy: str) -> None:
    """Check one condition of the configuration.

    Raises:
        ConfigError: It does not hold.
    """
    if not condition:
        raise ConfigError(where, problem, remedy)


LONGEST_S = 86_400
"""A day: what is longer was meant in other units."""
MAX_GPUS = 1024
"""More than any machine has."""


def require_seconds(where: str, value: float, *, or_zero: bool = False) -> None:
    """Check a time of the configuration: above 0, or 0 where that is allowed, and up to a day.

    Raises:
        ConfigError: It is no such time.
    """
    least = "0" if or_zero else "above 0"
    require(
        0 < value <= LONGEST_S or (or_zero and value == 0),
        where,
        f"{value:.6g} is not {least} to {LONGEST_S}",
        "give seconds, a day at most",
    )


def require_count(where: str, value: int, most: int, *, least: int = 1) -> None:
    """Check a whole number of the configuration.

    Raises:
        ConfigError: It is out of range.
    """
    problem = f"{value} is not {least} to {most}"
    require(least <= value <= most, where, problem, "give a number in that range")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The kind of node that a trial runs on and the Ray resources that stand for it."""

    kind: str
    engine_token: str = "GB10"
    """Ray resource that one engine takes; one a board."""
    slot_token: str = "trial_slot"
    """Ray resource that one Tune trial takes; one a board."""
    num_gpus: float = 0.0
    """GPUs that the engine's replica asks Ray for; 1 on a real board."""
    board_model: BoardModel | None = None
    min_mem_available_gib: float | None = None
    """Floor of the available memory, GiB: below it a node is unfit. A board with unified memory
    hangs when it runs out. None: not judged."""
    memory_look_s: float = 1.0
    """Between two looks at the memory while an engine boots or is loaded; under the floor the
    engine is killed at once."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: The floor is not above 0, or the time between two looks is out of range.
        """
        floor = self.min_mem_available_gib
        require(
            floor is None or 0 < floor <= MAX_GIB,
            "node.min_mem_available_gib",
            f"{floor} is not above 0 to {MAX_GIB}",
            "give GiB, or null for no floor",
        )
        require(
            0.05 <= self.memory_look_s <= 60,
            "node.memory_look_s",
            f"{self.memory_look_s} is not 0.05 to 60",
            "give seconds, such as 1",
        )
        require(
            0 <= self.num_gpus <= MAX_GPUS,
            "node.num_gpus",
            f"{self.num_gpus} is no number of GPUs",
            "give 1 on a board, 0 without one",
        )
        if self.board_model is not None:
            _check_board(self.board_model)


def _check_board(board: BoardModel) -> None:
    for name in ("base_s", "verify_s_per_token", "draft_s"):
        value = getattr(board, name)
        require(
            0 <= value <= LONGEST_S,
            f"node.board_model.{name}",
            f"{value} is no time",
            "give seconds",
        )
    require(
        board.base_s + board.verify_s_per_token > 0,
        "node.board_model",
        "makes a step that takes no time",
        "give base_s, verify_s_per_token or both above 0",
    )
    for name, least in (("streams", 1), ("depths", 0)):
        low, high = getattr(board, name)
        require(
            least <= low <= high,
            f"node.board_model.{name}",
            f"[{low}, {high}] is no range from {least} up",
            "give the smallest and the largest",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """What must hold before production changes."""

    promote: Literal["auto", "never"] = "auto"
    approval: Literal["auto", "manual"] = "auto"
    """manual: a study leaves its winner waiting as challenger, and a person promotes it."""
    allow_outage: bool = False
    """Whether a promotion may end what serves first where no board is free beside it."""
    canary_share: float = 0.1
    """Of clients' requests, 0 to 1, that a challenger gets at first; 0 shifts all at once."""
    canary_s: float = 60.0
    canary_requests: int | None = None
    """Clients' requests to the challenger at which the canary ends earlier; None does not."""
    soak_s: float = 30.0
    """Seconds under as many requests as the engine may run, before clients reach it; 0 for none."""
    soak_streams: int | None = None
    """Requests at a time in the soak, where that is more than the study's highest concurrency;
    None takes ``engine.args.max_num_seqs``."""
    promise_confidence: float = 0.99
    """Of the interval that a challenger is held to in production, 0 to 1. Wide, because a version
    that is wrongly kept out costs a boot."""
    promise_tolerance: float = 0.02
    """Share of a step, 0 to 1, that the way through Serve may cost over the study's own."""
    on_drift: Literal["report", "study"] = "report"
    """What `watch` does with a finding: report it, or also run the study again."""
    drift_tolerance: float = 0.03
    """Relative difference of acceptance or step time beyond the verdict's interval, 0 to 1, that is
    no drift yet."""
    replace_incomparable_champion: bool = False
    """Whether a champion may be replaced that a version was not compared with: one on other
    premises (engine build, arguments, models), or one that came after its study."""
    cell_tolerance: float = 0.05
    """Largest relative loss of one cell that its interval may not exclude."""
    min_kv_cache_tokens: int | None = None
    min_kv_max_concurrency: float | None = None
    ttft_tolerance: float | None = None
    """Largest relative rise of the median time to first token; None does not gate."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: A value is out of range.
        """
        self._check_floors()
        require(
            0 <= self.canary_share < 1,
            "policy.canary_share",
            f"{self.canary_share} is not 0 to below 1",
            "give a share such as 0.1, or 0 for no canary",
        )
        for name in ("canary_s", "soak_s"):
            require_seconds(f"policy.{name}", getattr(self, name), or_zero=True)
        require(
            self.canary_requests is None or self.canary_requests >= 1,
            "policy.canary_requests",
            f"{self.canary_requests} is below 1",
            "give a number of requests, or null for policy.canary_s alone",
        )
        require(
            self.soak_streams is None or self.soak_streams >= 1,
            "policy.soak_streams",
            f"{self.soak_streams} is below 1",
            "give a number of requests, or null for engine.args.max_num_seqs",
        )
        require(
            0.5 <= self.promise_confidence <= MAX_CONFIDENCE,
            "policy.promise_confidence",
            f"{self.promise_confidence} is not 0.5 to {MAX_CONFIDENCE}",
            "give a share such as 0.99",
        )
        require(
            0 <= self.promise_tolerance < 1,
            "policy.promise_tolerance",
            f"{self.promise_tolerance} is not 0 to below 1",
            "give a share such as 0.02",
        )
        require(
            0 <= self.drift_tolerance < 1,
            "policy.drift_tolerance",
            f"{self.drift_tolerance} is not 0 to below 1",
            "give a share such as 0.03",
        )

    def _check_floors(self) -> None:
        """Check what gates compare with: nothing is below NaN, and no gate would say so."""
        for name, usual in (
            ("cell_tolerance", "a share such as 0.05"),
            ("ttft_tolerance", "a share such as 0.1, or null for no gate"),
            ("min_kv_cache_tokens", "tokens, or null for no floor"),
            ("min_kv_max_concurrency", "requests, or null for no floor"),
        ):
            value = getattr(self, name)
            require(
                value is None or 0 <= value < math.inf,
                f"policy.{name}",
                f"{value} is negative or no finite number",
                f"give {usual}",
            )


def _holds_secret(uri: str) -> bool:
    """Return whether an address has a password, or a user that may be a token."""
    scheme, _, rest = uri.partition("://")
    user, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    return bool(at) and (":" in user or scheme.startswith("http"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig:
    """Where results go."""

    uri: str | None = None
    """Address of the MLflow server; None takes MLFLOW_TRACKING_URI."""
    experiment: str = "specpilot"
    registered_model: str = "specpilot"
    """Registered model of the target that production serves."""

    def __post_init__(self) -> None:
        """Check what MLflow would refuse after the last boot.

        Raises:
            ConfigError: A name is not one that MLflow takes.
        """
        require(
            self.uri is None or not _holds_secret(self.uri),
            "tracking.uri",
            "holds a password or token, and the configuration is stored",
            "give MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or the whole address as "
            "MLFLOW_TRACKING_URI, in the environment",
        )
        require(bool(self.experiment), "tracking.experiment", "is empty", "give a name")
        require(
            bool(re.fullmatch(r"[^/:\s](?:[^/:\n]*[^/:\s])?", self.registered_model)),
            "tracking.registered_model",
            f"'{self.registered_model}' is no name that MLflow takes",
            "use letters, digits and dashes, without / and :",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionConfig:
    """The production Serve applications."""

    name: str = "specpilot"
    """Prefix of the declared applications."""
    route: str = "/"
    http_host: str = "127.0.0.1"
    http_port: int = 8000
    verify_requests: int = 8
    """Completions that a challenger must answer through the production path."""
    deadline_s: float = 1800.0
    """Longest wait for a challenger to serve."""
    drain_s: float = 60.0
    """Longest wait for the last answers of a version that is replaced."""
    api_keys: str | None = None
    """Where the router finds its clients' keys: ``file:/path`` or ``env:NAME`` on its node, or
    ``open`` for none. None leaves what production has, which is open at first."""
    max_streams: int = 512
    """Client requests that may be under way at once; one more is answered 503."""
    max_body_mib: float = 32.0
    """Longest body of a client's request, MiB."""
    max_header_kib: float = 32.0
    """Longest headers of a client's request, KiB."""
    body_timeout_s: float = 30.0
    """Longest time that a client may take to send its body."""
    read_timeout_s: float = 60.0
    """Longest time that a client may read nothing of its answer, once the buffers are full; it
    takes the variable of docs/operations.md where Ray is started."""

    def __post_init__(self) -> None:
        """Check what would only be found when everything else is done.

        Raises:
            ConfigError: A value is out of range.
        """
        require(
            bool(re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_-]*", self.name))
            and not self.name.startswith("trial-"),
            "production.name",
            f"'{self.name}' is no prefix of production's applications",
            "use letters, digits and dashes, and not trial-, which names what a study ends",
        )
        require(
            re.search(r"-v[0-9]+$", self.name) is None,
            "production.name",
            f"'{self.name}' is what an engine of production is named",
            "do not end it with -v and a number",
        )
        require(
            1 <= self.http_port <= MAX_PORT,
            "production.http_port",
            f"{self.http_port} is no port",
            f"give 1 to {MAX_PORT}",
        )
        require(
            self.route.startswith("/"),
            "production.route",
            f"'{self.route}' does not begin with /",
            "write it as / or /name",
        )
        require(
            self.verify_requests >= 1,
            "production.verify_requests",
            f"{self.verify_requests} is below 1",
            "give at least 1",
        )
        require_seconds("production.deadline_s", self.deadline_s)
        require_seconds("production.drain_s", self.drain_s, or_zero=True)
        self._check_router()

    def _check_router(self) -> None:
        """Check what the router is declared with; a key in the wrong place is not repeated."""
        require(
            self.api_keys is None
            or bool(re.fullmatch(r"open|file:/.+|env:[A-Za-z_][A-Za-z0-9_]*", self.api_keys)),
            "production.api_keys",
            "does not say where the keys are (and must not be one)",
            "write file:/absolute/path, env:VARIABLE, or open for none",
        )
        require_keys(self.http_host, self.api_keys)
        require(
            1 <= self.max_streams <= MAX_CLIENT_STREAMS,
            "production.max_streams",
            f"{self.max_streams} is not 1 to {MAX_CLIENT_STREAMS}",
            "give a number of requests; Serve gives one router no more than 1024",
        )
        require(
            0.001 <= self.max_body_mib <= 1024,
            "production.max_body_mib",
            f"{self.max_body_mib} is not 0.001 to 1024",
            "give MiB, such as 32",
        )
        require(
            1 <= self.max_header_kib <= 1024,
            "production.max_header_kib",
            f"{self.max_header_kib} is not 1 to 1024",
            "give KiB, such as 32",
        )
        for name, value in (
            ("body_timeout_s", self.body_timeout_s),
            ("read_timeout_s", self.read_timeout_s),
        ):
            require(
                0.1 <= value <= 3600,
                f"production.{name}",
                f"{value} is not 0.1 to 3600",
                "give seconds, such as 30",
            )
