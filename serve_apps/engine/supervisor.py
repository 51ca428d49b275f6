"""One engine process: start, readiness, facts, stop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serve_apps.engine import procfs, record, segments
from serve_apps.engine.boot_watch import BootProgress, LogWatch, StopReport
from serve_apps.engine.build import build_facts, cache_variables
from serve_apps.engine.door import Door
from serve_apps.engine.enginelog import (
    BootLog,
    Phase,
    failure_kind,
    is_killed,
    parse_facts,
    root_cause,
)
from serve_apps.engine.errors import (
    BootFailure,
    EngineBootError,
    EngineLeftoverError,
    EngineNotRunning,
)
from serve_apps.engine.facts import EngineFacts, parse_capacity, parse_speculation
from serve_apps.engine.http import EngineHttp, HttpError
from serve_apps.engine.oomkills import OomKills
from serve_apps.engine.questions import complete_once, get_json, is_healthy
from serve_apps.engine.sockets import FOLDER_VARIABLE, free_port, is_port_free, socket_folder
from serve_apps.engine.spec import (
    HOST,
    SUPERVISOR_VARIABLE,
    EngineSpec,
    boot_alias,
    boot_mark,
    command,
    environment,
    log_file,
)

_SOURCE = Path(__file__).resolve().parents[2]
# Isolated and without site-packages: the guard starts in milliseconds and finds nothing but itself.
_GUARD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from serve_apps.engine.guard import main; sys.exit(main(sys.argv[2:]))"
)
_POLL_S = 0.25
_QUESTION_TIMEOUT_S = 10.0
_SERVER_INFO = "/server_info?config_format=json"
# It collects the system's environment (pip, driver) on its first call.
_SERVER_INFO_TIMEOUT_S = 120.0


class EngineProcess:
    """Supervises one boot of one arm.

    `start`, then `await wait_ready()`; `stop` from any thread or a destructor. After an
    EngineBootError the engine has been stopped already.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        boot_id: str | None = None,
        base_env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a boot.

        Args:
            spec: What to boot.
            boot_id: Identity of the boot; a fresh one by default.
            base_env: Environment to inherit from; this process's by default.
        """
        self.spec = spec
        self.boot_id = boot_id or uuid.uuid4().hex[:12]
        self.port = 0
        self.pid = 0
        self.http = EngineHttp("")
        self.log = BootLog(log_file(spec, self.boot_id))
        self._base_env = base_env
        self._guard: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._record = ""
        self._started_at = 0.0
        self._phase = Phase.BOOT
        self._oom_kills = OomKills()
        self._build: dict[str, Any] = {}
        self._facts: EngineFacts | None = None
        self._report: StopReport | None = None

    def start(self) -> None:
        """Start the engine on a free loopback port.

        Raises:
            EngineBootError: When not even the guard could start it.
            OSError: The folder for its sockets or the log cannot be made, or no process.
        """
        if self._guard is not None:
            raise EngineNotRunning(self.boot_id, "a boot starts once; make a new one")
        self.port = free_port()
        self.http.base_url = f"http://{HOST}:{self.port}"
        env = self._environment()
        with self.log.open() as log:
            env[FOLDER_VARIABLE] = self._folder = socket_folder(self.boot_id, env)
            self._started_at = time.monotonic()
            try:
                env[SUPERVISOR_VARIABLE], self._record = record.begin(
                    self.spec, self.boot_id, folder=self._folder, port=self.port
                )
                self._guard = subprocess.Popen(
                    [*self._guard_command(), *command(self.spec, self.port, self.boot_id)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                )
            except BaseException:
                segments.clear(self._folder, {}, self._record)
                raise
        assert self._guard.stdout is not None
        with self._guard.stdout as pipe:
            self.pid = int(pipe.readline() or 0)
        if not self.pid:
            segments.clear(self._folder, {}, self._record)
            raise self._failed(BootFailure.EXITED, "the guard process did not start the engine")

    def _guard_command(self) -> list[str]:
        told = (str(self.spec.stop_timeout_s), self._mark, self._folder, self._record)
        return [sys.executable, "-I", "-S", "-c", _GUARD, str(_SOURCE), *told]

    def _environment(self) -> dict[str, str]:
        """Return the engine's environment, after a look at the build that it will start."""
        base_env = os.environ if self._base_env is None else self._base_env
        env = environment(self.spec, self.boot_id, base_env)
        self._build = build_facts(self.spec, env)
        if self.spec.cache_dir is not None:
            env.update(cache_variables(self.spec.cache_dir, self._build))
            env.update(self.spec.env)
        return env

    @property
    def _mark(self) -> str:
        return boot_mark(self.boot_id)

    def door(self, limit: int) -> Door:
        """Return a way to this boot for routers, with so many requests at once."""
        return Door(self.port, self._folder, limit=limit, is_alive=self.is_alive)

    def is_alive(self) -> bool:
        """Return whether the engine's API server runs."""
        return self._report is None and self.pid > 0 and procfs.is_alive(self.pid)

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of this boot's log."""
        return self.log.tail(lines)

    async def wait_ready(
        self, on_progress: Callable[[BootProgress], None] | None = None
    ) -> EngineFacts:
        """Wait until one real completion came from this very boot, and return its facts.

        Args:
            on_progress: Called about once a second.

        Raises:
            EngineBootError: The engine exited, hangs, or is not the one that answers.
        """
        try:
            deadline = self._started_at + self.spec.boot_timeout_s
            await self._wait_answering(on_progress)
            await self._check_identity()
            self._phase = Phase.FIRST_REQUEST
            await self._first_completion(deadline)
            self._phase = Phase.LOAD
            boot_time_s = time.monotonic() - self._started_at
            self._facts = await self._collect_facts(boot_time_s)
            return self._facts
        except BaseException as error:  # a cancelled boot, too, leaves no process behind
            await self.http.close()
            try:
                self.stop()
            except EngineLeftoverError as leftover:
                error.add_note(str(leftover))
            raise

    async def _wait_answering(self, on_progress: Callable[[BootProgress], None] | None) -> None:
        """Return once /health says 200; cheap, and not yet readiness."""
        watch, told_at = LogWatch(self.log, self.spec, self._started_at), 0.0
        while not await self.is_healthy(timeout_s=5.0):
            self._raise_if_exited()
            now = time.monotonic()
            seen = watch.look(now)
            fault = watch.fault(seen)
            if fault is not None:
                raise self._failed(*fault)
            if on_progress is not None and now - told_at >= 1.0:
                told_at = now
                on_progress(seen)
            await asyncio.sleep(_POLL_S)

    async def is_healthy(self, *, timeout_s: float) -> bool:
        """Return whether /health answers 200 in time."""
        return await is_healthy(self.http, timeout_s=timeout_s)

    async def _check_identity(self) -> None:
        """Refuse an older server, or another boot, that answers on our port."""
        models: dict[str, Any] | None = None
        for _ in range(20):
            self._raise_if_exited()
            models = await self._json("/v1/models")
            if models is not None:
                break
            await asyncio.sleep(_POLL_S)
        names = [str(model.get("id")) for model in (models or {}).get("data", [])]
        if boot_alias(self.boot_id) not in names:
            raise self._failed(
                BootFailure.IDENTITY,
                f"port {self.port} is answered by another process, which serves {names}",
            )

    async def _first_completion(self, deadline: float) -> None:
        """Get one completion; an engine can be healthy and yet answer none."""
        limit_s = min(deadline - time.monotonic(), self.spec.first_completion_timeout_s)
        question = asyncio.ensure_future(self.probe(timeout_s=max(0.1, limit_s)))
        try:
            while not question.done() and self.is_alive():
                await asyncio.wait({question}, timeout=_POLL_S)
            problem = question.result() if question.done() else "the engine exited"
        finally:
            question.cancel()
        if problem is None:
            return
        # An engine core that dies of the first request takes the server down a moment later.
        for _ in range(20):
            self._raise_if_exited()
            await asyncio.sleep(_POLL_S / 2)
        # It may also linger, with the reason in its log.
        cause = root_cause(text := self.log.text())
        if failure_kind(text, cause, phase=self._phase) is not BootFailure.OOM_FIRST_REQUEST:
            raise self._failed(BootFailure.NO_COMPLETION, f"/health says 200, but {problem}")
        raise self._failed(BootFailure.OOM_FIRST_REQUEST, f"/health says 200, but {problem}", cause)

    async def _json(
        self, path: str, timeout_s: float = _QUESTION_TIMEOUT_S
    ) -> dict[str, Any] | None:
        return await get_json(self.http, path, timeout_s=timeout_s)

    async def _collect_facts(self, boot_time_s: float) -> EngineFacts:
        log = parse_facts(self.log.text())
        version = await self._json("/version") or {}
        info = await self._json(_SERVER_INFO, _SERVER_INFO_TIMEOUT_S) or {}
        models = await self._json("/v1/models") or {}
        lengths = [model.get("max_model_len") for model in models.get("data", [])]
        config = info.get("vllm_config")
        resolved = config if isinstance(config, dict) else None  # text before it knew JSON
        capacity = parse_capacity(await self.metrics_text())
        speculation = parse_speculation(resolved, log)
        return EngineFacts(
            boot_id=self.boot_id,
            pid=self.pid,
            port=self.port,
            base_url=self.http.base_url,
            python=self.spec.python or sys.executable,
            engine_version=version.get("version") or log.engine_version,
            model_runner=log.model_runner,
            resolved_config=resolved,
            draft_architecture=speculation.draft_architecture,
            speculative_method=speculation.method,
            num_speculative_tokens=speculation.num_speculative_tokens,
            draft_sample_method=speculation.draft_sample_method,
            rejection_sample_method=speculation.rejection_sample_method,
            max_model_len=next((int(length) for length in lengths if length), None),
            kv_cache_tokens=capacity.kv_cache_tokens or log.kv_cache_tokens,
            kv_max_concurrency=capacity.kv_max_concurrency or log.kv_max_concurrency,
            kv_cache_tokens_log=log.kv_cache_tokens,
            kv_max_concurrency_log=log.kv_max_concurrency,
            weights_gib=log.weights_gib,
            boot_time_s=boot_time_s,
            log_path=str(self.log.path),
            build=self._build,
        )

    def facts(self) -> EngineFacts:
        """Return what the engine said about itself when it became ready.

        Raises:
            EngineNotRunning: Not ready yet, or not any more.
        """
        if self._facts is None or not self.is_alive():
            raise EngineNotRunning(self.boot_id, self._end())
        return self._facts

    async def metrics_text(self) -> str:
        """Return the engine's own Prometheus exposition, unchanged.

        Raises:
            EngineNotRunning: It does not answer.
        """
        try:
            answer = await self.http.request("GET", "/metrics", timeout_s=_QUESTION_TIMEOUT_S)
        except HttpError as error:
            raise EngineNotRunning(self.boot_id, f"/metrics: {type(error).__name__}") from error
        if answer.status != 200:
            raise EngineNotRunning(self.boot_id, f"/metrics: HTTP {answer.status}")
        return answer.body.decode()

    def _end(self) -> str:
        if self._guard is None:
            return "never started"
        if self.is_alive():
            return "not ready yet"
        return f"exited: {root_cause(self.log.text())}"

    def _raise_if_exited(self) -> None:
        ended = self.post_mortem()
        if ended is not None:
            raise ended

    def post_mortem(self) -> EngineBootError | None:
        """Return how the engine ended and by what evidence; None while it runs.

        What it leaves is ended.
        """
        if self.is_alive():
            return None
        status, text = self.stop().exit_status, self.log.text()
        killed = f" (signal {status - 128})" if status is not None and status > 128 else ""
        when = "after it was ready" if self._phase is Phase.LOAD else "before it was ready"
        cause = root_cause(text)
        is_oom_killed = is_killed(text, status) and self._oom_kills.have_risen()
        kind = failure_kind(text, cause, phase=self._phase, is_oom_killed=is_oom_killed)
        return self._failed(kind, f"the engine exited with status {status}{killed} {when}", cause)

    async def probe(self, *, timeout_s: float) -> str | None:
        """Ask for one completion, whatever /health says.

        Returns:
            None when it came, else what happened instead.
        """
        return await complete_once(
            self.http,
            # Under the boot's own name: the completion, too, proves who answers.
            model=boot_alias(self.boot_id),
            prompt=self.spec.readiness_prompt,
            max_tokens=self.spec.readiness_max_tokens,
            timeout_s=timeout_s,
        )

    def _failed(self, kind: BootFailure, reason: str, cause: str = "") -> EngineBootError:
        return EngineBootError(kind, reason, cause, self.tail())

    def stop(self) -> StopReport:
        """End everything of this boot and verify it; further calls return the first report.

        Raises:
            EngineLeftoverError: A process of the boot, or its port, survives.
        """
        if self._report is not None:
            return self._report
        if self._guard is None:
            return StopReport(exit_status=None, left=())
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            status: int | None = self._guard.wait(self.spec.stop_timeout_s + 10.0)
        except subprocess.TimeoutExpired:
            status = None
        group = self._guard.pid
        left = tuple(procfs.describe(pid) for pid in procfs.members(group, self._mark))
        survivors = procfs.end(group, self._mark, grace_s=2.0) if left else []
        if status is None:
            self._guard.poll()
        if not is_port_free(self.port):
            survivors.append(f"port {self.port} is still held")
        if survivors:
            raise EngineLeftoverError(self.boot_id, tuple(survivors))
        kept = segments.clear_kept(self._folder, self._record)  # in case somebody killed the guard
        self._report = StopReport(exit_status=status, left=left, kept=tuple(kept))
        return self._report

    async def close(self) -> StopReport:
        """Close the HTTP connections and `stop` without blocking the event loop."""
        await self.http.close()
        return await asyncio.to_thread(self.stop)
