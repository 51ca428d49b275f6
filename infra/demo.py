"""The demo: a local cluster, the study by `ray job submit`, and what serves afterwards."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ray.job_submission import JobSubmissionClient

from infra.local.cluster import LocalCluster, Ports
from infra.local.processes import (
    PortInUseError,
    StartError,
    StateDirError,
)
from orchestrator.config import StudyConfig, load_config
from orchestrator.core.plausible import MAX_PORT
from orchestrator.errors import ConfigError
from orchestrator.exit_status import ExitStatus
from orchestrator.interrupts import ended_like_ctrl_c, undisturbed

PROJECT = Path(__file__).resolve().parents[1]
EXCLUDES = (".git", ".venv*", ".engines", ".specpilot", "tests", "docs")
JOB_ENV = {
    "RAY_JOB_STOP_SIGNAL": "SIGINT",
    # Ray kills a job 3 s after the signal otherwise.
    "RAY_JOB_STOP_WAIT_TIME_S": "60",
    "PYTHONUNBUFFERED": "1",
}
FOREIGN_RAY = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Ray's clients prefer them to the address that they are given."""
RAY_CHATTER = re.compile(
    r"\d{4}-\d\d-\d\d [\d:,]+\t(INFO|SUCC|ERR|WARNING) \w+\.py:\d+ -- |Running entrypoint for job "
)
"""Log lines of `ray job submit` itself: uploads, next steps, and the job's output once more."""


def main() -> int:
    """Run the demo; return 0 for a finished study, promoted or not, else its exit status."""
    args = _parser().parse_args()
    with ended_like_ctrl_c(in_background=True):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
    for name in FOREIGN_RAY:
        os.environ.pop(name, None)
    started = time.monotonic()

    def say(text: str) -> None:
        passed = int(time.monotonic() - started)
        show(f"[{passed // 60}:{passed % 60:02d}] {text}")

    try:
        config = load_config(PROJECT / args.study, args.overrides)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitStatus.BAD_INPUT
    board = config.board()
    if board is not None:
        say(
            "acceptance is measured on the real engine, on this machine's CPU; step times are "
            f"MODELLED by {board.name} ({board.source})"
        )
    cluster = LocalCluster(
        state_dir=args.state_dir.resolve(),
        ports=Ports(http=args.http_port, mlflow=args.mlflow_port, dashboard=args.dashboard_port),
        on_step=say,
    )
    try:
        cluster.start()
        say(f"MLflow: {cluster.mlflow_uri}")
        say(f"Ray: {cluster.dashboard_url}, two nodes of one GB10 token each")
        settings = [*args.overrides, *local_settings(cluster, config)]
        status = run_study(cluster, args.study, settings)
        served = config.engine.served_model_name
        return _finish(cluster, status, study=args.study, served=served, keep=bool(args.keep))
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        is_input = isinstance(error, PortInUseError | StateDirError)
        return ExitStatus.BAD_INPUT if is_input else ExitStatus.FAILED
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            say("interrupted")
        return ExitStatus.FAILED
    finally:
        with undisturbed():
            _end(cluster, say)


def _end(cluster: LocalCluster, say: Callable[[str], None]) -> None:
    if cluster.servers:
        with contextlib.suppress(KeyboardInterrupt):
            say("ending Ray, MLflow and production")
    left = cluster.stop()
    if left:
        print(f"error: processes that could not be ended: {left}", file=sys.stderr)


def show(text: str) -> None:
    """Print a line; a reader that went away counts as an interrupt, so that all is ended.

    Raises:
        KeyboardInterrupt: Nobody reads the output any more, as after `| head` or a lost terminal.
    """
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  to the end
        raise KeyboardInterrupt from None


def _finish(cluster: LocalCluster, status: int, *, study: Path, served: str, keep: bool) -> int:
    """Say what serves, keep it up if asked, and return the demo's exit status."""
    if status not in (ExitStatus.DONE, ExitStatus.NO_GO):
        return status
    if status == ExitStatus.NO_GO:
        show("the study is finished; nothing new was promoted")
    if keep:
        show(
            f"to look around: (. {cluster.shell_settings} && "
            f".venv/bin/python -m orchestrator status {study})\n"
            "production and MLflow stay up; Ctrl-C ends them"
        )
    if status == ExitStatus.DONE or serves(cluster):
        show(curl_line(cluster, served))
    else:
        show(f"results: {cluster.mlflow_uri}")
    if keep:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    # A study whose incumbent wins is as good an end as a promotion.
    return ExitStatus.DONE


def serves(cluster: LocalCluster) -> bool:
    """Return whether the production route answers."""
    try:
        with urllib.request.urlopen(f"{cluster.production_url}/v1/models", timeout=10):
            return True
    except OSError:
        return False


def run_study(cluster: LocalCluster, study: Path, settings: list[str]) -> int:
    """Submit the study as a Ray job, show its output, and return its exit status.

    Raises:
        StartError: Ray did not take the job.
    """
    submission_id = f"study-{uuid.uuid4().hex[:12]}"
    entrypoint = ["python", "-m", "orchestrator", "study", str(study), *settings]
    show(f"$ ray job submit --working-dir . -- {shlex.join(entrypoint)}")
    client = JobSubmissionClient(cluster.dashboard_url, headers=cluster.auth_headers())
    output = _Output()
    try:
        submit(cluster, submission_id, entrypoint)
        asyncio.run(output.follow(client, submission_id))
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            show("stopping the study; its engines are ended first")
        with contextlib.suppress(RuntimeError):  # the interrupt came before Ray had the job
            client.stop_job(submission_id)
            asyncio.run(output.follow(client, submission_id))
        raise
    while not (info := client.get_job_info(submission_id)).status.is_terminal():
        time.sleep(0.2)
    return 1 if info.driver_exit_code is None else int(info.driver_exit_code)


def submit(cluster: LocalCluster, submission_id: str, entrypoint: list[str]) -> None:
    """Hand a command to Ray as a job, with the project as its working directory.

    Raises:
        StartError: Ray did not take the job.
    """
    runtime_env = {"env_vars": JOB_ENV, "excludes": list(EXCLUDES)}
    submitted = subprocess.run(
        [
            sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait",
            "--address", cluster.dashboard_url, "--submission-id", submission_id,
            "--working-dir", str(PROJECT), "--runtime-env-json", json.dumps(runtime_env),
            "--", *entrypoint,
        ],
        env=cluster.environment(), cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if submitted.returncode != 0:
        raise StartError(f"ray job submit failed:\n{submitted.stdout}{submitted.stderr}")


class _Output:
    """A job's output as far as it was shown."""

    def __init__(self) -> None:
        self._num_shown = 0

    async def follow(self, client: JobSubmissionClient, submission_id: str) -> None:
        """Print the output until the job ends, without Ray's words about its packaging.

        Ray sends it from the start at every call; what was shown is not shown again.
        """
        rest = ""
        num_seen = 0
        async for text in client.tail_job_logs(submission_id):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                num_seen += 1
                if num_seen <= self._num_shown:
                    continue
                self._num_shown = num_seen
                if not RAY_CHATTER.match(line):
                    show(line)


def local_settings(cluster: LocalCluster, config: StudyConfig) -> list[str]:
    """Return the overrides that this machine needs, beside the user's own.

    Production outlives the job, and with it the job's copy of the working directory, so model
    folders and interpreters are named by absolute paths.
    """
    settings = [f"target.path={(PROJECT / config.target.path).resolve()}"]
    if config.draft is not None:
        settings.append(f"draft.path={(PROJECT / config.draft.path).resolve()}")
    engine = config.engine
    if engine.python is not None:
        settings.append(f"engine.python={absolute(engine.python)}")
    if engine.builds:
        builds = [
            {**asdict(build), "python": absolute(build.python) if build.python else None}
            for build in engine.builds
        ]
        settings.append(f"engine.builds={json.dumps(builds)}")
    return [*settings, f"production.http_port={cluster.ports.http}"]


def absolute(path: str) -> str:
    """Return a path below the project in full; a link, such as a venv's Python, stays one."""
    return str(PROJECT / Path(path).expanduser())


def curl_line(cluster: LocalCluster, served: str) -> str:
    """Return a request that works against production, the results' address behind it."""
    body = json.dumps({"model": served, "prompt": "def add(a, b):", "max_tokens": 32})
    return (
        f"curl -s {cluster.production_url}/v1/completions -H 'content-type: application/json' "
        f"-d '{body}'  # results: {cluster.mlflow_uri}"
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= MAX_PORT:
        problem = f"{port} is no port; give 1 to {MAX_PORT}, or 0 for a free one"
        raise argparse.ArgumentTypeError(problem)
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.demo", description=__doc__)
    parser.add_argument("--study", type=Path, default=Path("conf/study/demo.yaml"))
    parser.add_argument("--keep", type=int, choices=(0, 1), default=1)
    parser.add_argument("--http-port", type=_port, default=8000)
    parser.add_argument("--mlflow-port", type=_port, default=5000)
    parser.add_argument("--dashboard-port", type=_port, default=8265)
    parser.add_argument(
        "--state-dir", type=Path, default=Path(os.environ.get("SPECPILOT_STATE_DIR", ".specpilot"))
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
