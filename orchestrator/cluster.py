"""The Ray cluster that a study runs on: join it, claim it, start Serve, sweep dead trials."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.adapters.node_leftovers import end_dead_boots
from orchestrator.adapters.node_tasks import on_every_node
from orchestrator.adapters.serve_engine import TRIAL_PREFIX
from orchestrator.adapters.serve_exposure import exposure
from orchestrator.adapters.serve_reaper import close_leases, open_leases
from orchestrator.adapters.state import boots_dir
from orchestrator.config import StudyConfig
from orchestrator.core.exposure import require_guarded
from orchestrator.errors import ConfigError, TransientError
from serve_apps.engine.sockets import is_port_free

logger = logging.getLogger(__name__)

CLAIM = "specpilot-study"
"""Name of the actor that only one study or promotion on a cluster can hold."""


BOARD_WAIT_S = 60.0
"""Longest wait for a board: Ray counts one as free a while after a trial has left it."""


NODES_WAIT_S = 30.0
"""Longest wait for the nodes to end what dead boots left; a stopped study has to go, too."""


REAPER_WAIT_S = 2.0
"""Longest wait for the reaper at a study's end; what is there is swept whether it hears or not."""


CONNECT_S, GRPC_S = 5.0, 5.0
"""Longest waits for a connection to the address that was named, and for gRPC's first bytes."""

_SETTINGS = b"\x04"
_HTTP2_EMPTY_SETTINGS = b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2_EMPTY_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The Ray cluster that this process joined."""

    dashboard_url: str
    num_trial_nodes: int
    """Boards that are free for trials now; one that serves is not."""


def join_ray(config: StudyConfig) -> Cluster:
    """Join the running Ray; a second call is a second look at its free boards.

    Raises:
        ConfigError: There is no Ray, or no node offers the tokens.
    """
    context, node = connect(), config.node
    offers = [item["Resources"] for item in _ray_nodes() if item["Alive"]]
    if not any(r.get(node.engine_token) and r.get(node.slot_token) for r in offers):
        raise ConfigError(
            "node.slot_token",
            f"no node of this Ray offers both '{node.engine_token}' and '{node.slot_token}'",
            'start the nodes with --resources=\'{"GB10":1,"trial_slot":1}\' or name your tokens',
        )
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]  # Ray's
    tokens = (free.get(node.engine_token, 0.0), free.get(node.slot_token, 0.0))
    return Cluster(
        dashboard_url=f"http://{context.address_info['webui_url']}",
        num_trial_nodes=int(min(tokens)),
    )


def connect() -> Any:
    """Connect to the running Ray, whatever its nodes offer, and return Ray's own context.

    Raises:
        ConfigError: There is none.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        is_none = address != "auto" and not _answers_grpc(address)
    except (OSError, ValueError) as error:
        raise _no_ray(address, "no running Ray answers") from error
    if is_none:
        raise _no_ray(address, "no running Ray answers: what listens there is something else")
    try:
        with _sigterm_kept():
            return ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                ignore_reinit_error=True,
            )
    except (OSError, RuntimeError, ValueError) as error:
        if _is_unauthenticated(error):
            raise ConfigError(
                f"ray at '{address}'",
                "it refuses this environment's token",
                "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to its token",
            ) from error
        raise _no_ray(address, "no running Ray answers") from error


def _is_unauthenticated(error: BaseException | None) -> bool:
    """Return whether Ray could not be joined for want of its token: it says so in a cause."""
    while error is not None:
        if "AuthenticationError" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _no_ray(address: str, problem: str) -> ConfigError:
    remedy = "start one and use `ray job submit`, or set RAY_ADDRESS"
    return ConfigError(f"ray at '{address}'", problem, remedy)


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Leave SIGTERM to whoever has it: every ``ray.init`` takes it, and would exit at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def join_guarded_ray(config: StudyConfig) -> Cluster:
    """Join the running Ray, if others cannot do so or reach production without asking.

    Raises:
        ConfigError: They can, or as ``join_ray``.
    """
    cluster, production = join_ray(config), config.production
    require_guarded(
        exposure(
            cluster.dashboard_url,
            name=production.name,
            http_host=production.http_host,
            api_keys=production.api_keys,
        )
    )
    return cluster


def _answers_grpc(address: str) -> bool:
    """Return whether what listens at an address speaks gRPC: Ray would try others for minutes.

    Of ``auto``, which Ray looks up at once, nothing has to be asked; ``local``, which would start a
    Ray, is no address.

    Raises:
        OSError: Nobody listens.
        ValueError: It is no address.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=CONNECT_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return True  # its certificates are Ray's to read
        try:
            connection.sendall(_HTTP2_PREFACE)
            # A server of HTTP/2 begins by its settings (RFC 9113, 3.4), whoever asks.
            return _received(connection, len(_HTTP2_EMPTY_SETTINGS))[3:4] == _SETTINGS
        except OSError:
            return False


def _received(connection: socket.socket, size: int) -> bytes:
    """Return the first bytes that come within ``GRPC_S``, fewer where it ends before."""
    deadline, got = time.monotonic() + GRPC_S, b""
    while len(got) < size:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        more = connection.recv(size - len(got))
        if not more or time.monotonic() > deadline:
            break
        got += more
    return got


def require_free_board(config: StudyConfig, *, wait_s: float = BOARD_WAIT_S) -> Cluster:
    """Look at the cluster again and see that a board is free.

    Args:
        config: The study.
        wait_s: Longest wait for one.

    Raises:
        ConfigError: No board is free.
    """
    cluster, deadline = join_ray(config), time.monotonic() + wait_s
    while cluster.num_trial_nodes < 1 and time.monotonic() < deadline:
        time.sleep(1.0)
        cluster = join_ray(config)
    if cluster.num_trial_nodes < 1:
        raise ConfigError(
            "node.engine_token",
            f"no board is free: every '{config.node.engine_token}' or "
            f"'{config.node.slot_token}' is in use",
            "wait for what holds it, or stop that",
        )
    return cluster


@contextmanager
def one_study_at_a_time(config: StudyConfig) -> Iterator[None]:
    """Hold the cluster's only claim on trials and production; it ends with this process.

    Raises:
        ConfigError: Another study or promotion holds it, there is no Ray, or others could reach it
            or production without being asked for a token or key.
    """
    join_guarded_ray(config)
    with claimed():
        yield


@contextmanager
def claimed() -> Iterator[None]:
    """Hold the claim on the Ray that this process has joined; see ``one_study_at_a_time``.

    Raises:
        ConfigError: Another study or promotion holds it.
    """
    try:
        # Its actor may be killed, as by the kernel for want of memory. A claim that was free then
        # would let a second study begin, which ends the trials of this one: so it starts again,
        # while this process lives. And it does so here, since another node may go before this one.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        claim: Any = ray.remote(_Claim).options(name=CLAIM, namespace=CLAIM, **options).remote()
        ray.get(claim.__ray_ready__.remote())
    except ValueError as error:
        raise ConfigError(
            f"ray at '{os.environ.get('RAY_ADDRESS', 'auto')}'",
            "another study or promotion is under way on it", "wait until it is over",
        ) from error  # fmt: skip
    try:
        yield
    finally:
        try:
            ray.kill(claim)
        except Exception:  # Ray is gone, and the claim with it; why is the body's to say
            logger.exception("the claim on the cluster cannot be given back")


def is_claimed() -> bool:
    """Return whether a study or promotion is under way on the Ray that this process has joined."""
    try:
        ray.get_actor(CLAIM, namespace=CLAIM)
    except ValueError:
        return False
    return True


class _Claim:
    """Nothing but a name that only one process can hold."""


def _ray_nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    return nodes


def start_serve(config: StudyConfig) -> None:
    """Start Serve where it does not run yet, and the reaper; only the claim's holder may.

    Serve cannot be started from inside a trial: the trial's placement group would capture it. From
    now on the reaper gives leases to trials of this process alone, and ends all others; a
    promotion has none, and ends those of dead studies.
    """
    if not _serve_runs():
        _require_free(config.production.http_host, config.production.http_port)
    serve.start(
        proxy_location="HeadOnly",
        http_options={
            "host": config.production.http_host,
            "port": config.production.http_port,
        },
    )
    open_leases(TRIAL_PREFIX)


def _serve_runs() -> bool:
    return bool(serve.status().proxies)


def _require_free(host: str, port: int) -> None:
    if not is_port_free(port, host):
        raise ConfigError(
            "production.http_port", f"{host}:{port} is in use", "free it or choose another port"
        )


def trial_applications() -> list[str]:
    """Return the names of all trial applications; none where Serve does not run."""
    return [name for name in serve.status().applications if name.startswith(TRIAL_PREFIX)]


def end_trials(*, wait_s: float = 60.0, nodes_wait_s: float = NODES_WAIT_S) -> list[str]:
    """End all trials of this process for good: what comes up later has no lease, and is ended.

    A trial's actor lives until Ray has noticed that its driver is gone, and may deploy meanwhile.

    Args:
        wait_s: Longest wait for the reaper and for the applications to be gone.
        nodes_wait_s: Longest wait for the nodes after that.

    Returns:
        As ``sweep_trials``.

    Raises:
        TransientError: The reaper was not told. The trials were ended as far as they are there.
    """
    begun, why = time.monotonic(), None
    try:
        close_leases(wait_s=min(REAPER_WAIT_S, wait_s))
    except TransientError as error:
        why = error
    left_s = wait_s - (time.monotonic() - begun)
    swept = sweep_trials(wait_s=left_s, nodes_wait_s=nodes_wait_s)
    if why is not None:
        said = "; ".join([*swept, "a trial that still comes up stays until its lease runs out"])
        raise TransientError(f"{said}: {why}") from why
    return swept


def sweep_trials(*, wait_s: float = 60.0, nodes_wait_s: float = NODES_WAIT_S) -> list[str]:
    """End all trials on the cluster; only the claim's holder may.

    Their applications first, then on every node what dead boots left there.

    Args:
        wait_s: Longest wait for the applications to be gone.
        nodes_wait_s: Longest wait for the nodes after that.

    Returns:
        What was found and what became of it, in words; empty when there was nothing.
    """
    names = sweep_applications(wait_s=wait_s)
    here = set(trial_applications()) if names else set()
    ends = [f"{name} {'is left' if name in here else 'is gone'}" for name in names]
    answers = on_every_node(end_dead_boots, str(boots_dir()), wait_s=nodes_wait_s)
    said = [text for answer in answers for text in answer.value or ()]
    silent = [
        f"node {answer.node} was not looked at: {answer.error}"
        for answer in answers
        if answer.error
    ]
    return [*ends, *dict.fromkeys(said), *silent]


def sweep_applications(*, wait_s: float) -> list[str]:
    """Delete all trial applications and return their names; only the claim's holder may.

    Args:
        wait_s: Longest wait for them to be gone, with those that come meanwhile.
    """
    deleted, deadline = dict[str, None](), time.monotonic() + wait_s
    while names := trial_applications():
        for name in names:  # again, too: a controller that dies can lose what it was asked
            serve.delete(name, _blocking=False)
            deleted[name] = None
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return list(deleted)


def job_tags() -> dict[str, str]:
    """Return what Ray says of the job that this process is, for the tracking run.

    It holds the job's environment, keys included: whole, so that a tracker can read it as JSON and
    take them out before it cuts.
    """
    job = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR")
    return {} if job is None else {"ray.job_config": job}
