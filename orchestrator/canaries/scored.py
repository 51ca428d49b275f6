"""Scored tasks on one server: one child process a task, and whether its score may be believed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.canaries.judge import shown
from orchestrator.canaries.wire import Server
from orchestrator.core.quality import TaskScore
from orchestrator.core.secrecy import hide_key
from orchestrator.errors import ConfigError

TASKS_DIR = Path(__file__).resolve().parent / "tasks"
HARNESS = Path(__file__).resolve().parent / "harness.py"

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    # The board's memory is the engine's.
    "CUDA_VISIBLE_DEVICES": "",
}
"""What the child's environment is given: it asks this server and nobody else, without bars."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""A proxy would answer for the server."""

DEFAULT_MODEL_LEN = 2048
"""What the harness takes for a server that does not say its limit."""

UNSAID = frozenset({"include", "metadata"})
"""Keys of a task that are no settings, or that the harness resolves before it reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings:
    """How tasks are run."""

    endpoint: Literal["completions", "chat"] = "completions"
    tokenizer: Path | None = None
    """The target's folder; tasks of choices need it, since their tokens are counted."""
    limit: int | None = None
    """First items of each task; None is all."""
    num_concurrent: int = 4
    max_model_len: int | None = None
    task_timeout_s: float = 1800.0
    """Longest time of one task on one server."""

    def __post_init__(self) -> None:
        if self.tokenizer is not None and not (self.tokenizer / "tokenizer.json").is_file():
            raise ConfigError(
                "tokenizer", f"{self.tokenizer} has no tokenizer.json", "give the target's folder"
            )
        for name, value in (("limit", self.limit), ("num_concurrent", self.num_concurrent)):
            if value is not None and value < 1:
                raise ConfigError(name, f"{value} is below 1", "give 1 or more")


def shipped_tasks() -> tuple[str, ...]:
    """Return the names of the tasks that come with the project."""
    return tuple(sorted(path.stem for path in TASKS_DIR.glob("*.yaml")))


def find_task(name: str) -> Path:
    """Return the YAML of a shipped task, or of one's own by its path.

    Raises:
        ConfigError: There is none.
    """
    path = TASKS_DIR / f"{name}.yaml" if name in shipped_tasks() else Path(name)
    if path.suffix != ".yaml" or not path.is_file():
        shipped = ", ".join(shipped_tasks())
        raise ConfigError("tasks", f"there is no task '{name}'", f"use {shipped} or a YAML file")
    return path.resolve()


def task_files(names: Sequence[str]) -> tuple[Path, ...]:
    """Return the YAML files of tasks, each as ``find_task`` finds it.

    Raises:
        ConfigError: There is none of a name, or two have one name.
    """
    paths = tuple(find_task(name) for name in names)
    if len({path.stem for path in paths}) < len(paths):
        raise ConfigError("tasks", "a task is named twice", "name each once")
    return paths


def check_harness() -> None:
    """Check that the harness is installed, without importing it.

    Raises:
        ConfigError: It is not.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            "tasks", "lm_eval is not installed", "install the extra 'eval', or run no tasks"
        )


def score_tasks(
    server: Server,
    tasks: Sequence[Path],
    settings: ScoreSettings | None = None,
    *,
    tell: Callable[[str], None] = lambda _line: None,
) -> tuple[TaskScore, ...]:
    """Return each task's score on one server; one that cannot be had is refused, not raised.

    Args:
        server: Where to ask.
        tasks: Their YAML files, as ``find_task`` returns them.
        settings: How they are run.
        tell: Hears of each score.

    Raises:
        ConfigError: The harness is not installed.
    """
    check_harness()
    settings = settings or ScoreSettings()
    scores = []
    for task in tasks:
        score = _score(server, task, settings)
        told = score.refused or f"{score.hits} of {score.total}"
        tell(f"task {score.task}: {told}")
        scores.append(score)
    return tuple(scores)


def _score(server: Server, task: Path, settings: ScoreSettings) -> TaskScore:
    name = task.stem
    request = {
        "task": str(task),
        "url": server.base,
        "model": server.model,
        "endpoint": settings.endpoint,
        "tokenizer": None if settings.tokenizer is None else str(settings.tokenizer.resolve()),
        "limit": settings.limit,
        "num_concurrent": settings.num_concurrent,
        "max_model_len": settings.max_model_len or DEFAULT_MODEL_LEN,
        "timeout_s": server.timeout_s,
    }
    with tempfile.TemporaryDirectory(prefix="specpilot-eval-") as folder:
        asked, answered = Path(folder) / "request.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        try:
            child = subprocess.run(
                [sys.executable, "-P", str(HARNESS), str(asked), str(answered)],
                cwd=task.parent,  # data files are named relative to their task
                env=_environment(server, Path(folder)),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=settings.task_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"not done after {settings.task_timeout_s:g} s"
            return TaskScore(task=name, hits=0, total=0, refused=reason)
        if child.returncode != 0 or not answered.is_file():
            reason = hide_key(_last_words(child.stderr), server.api_key)
            return TaskScore(task=name, hits=0, total=0, refused=reason)
        return read_score(name, json.loads(answered.read_text(encoding="utf-8")))


def read_score(name: str, answer: Mapping[str, Any]) -> TaskScore:
    """Return the score in the harness's answer, refused where its settings are not those asked.

    Args:
        name: The task.
        answer: What ``harness.py`` writes.
    """
    items = answer["items"]
    problem = settings_problem(answer["asked"], answer["reported"], answer["sent"])
    if problem is None and not items:
        problem = "no item was scored"
    if problem is None and any(item["hit"] not in (0, 1) for item in items):
        problem = f"{answer['metric']} is no hit or miss; only shares of hits can be compared"
    if problem is None:
        share = sum(item["hit"] for item in items) / len(items)
        if abs(share - answer["aggregate"]) > 1e-9:
            problem = f"the harness scores {answer['aggregate']:g}, its items {share:g}"
    if problem is not None:
        return TaskScore(task=name, hits=0, total=0, refused=problem)
    hits = tuple(bool(item["hit"]) for item in items)
    is_choice = answer["reported"].get("output_type") == "multiple_choice"
    missed = [item["answer"] for item in items if not item["hit"]]
    return TaskScore(
        task=name,
        hits=sum(hits),
        total=len(hits),
        num_unparsed=sum(not item["parsed"] for item in items),
        chance=sum(1 / i["num_choices"] for i in items) / len(items) if is_choice else 0.0,
        settings=answer["sent"][0],
        items=hits,
        example=shown(missed[0]) if missed else "",
    )


def settings_problem(
    asked: Mapping[str, Any], reported: Mapping[str, Any], sent: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return how a task ran with other settings than its own, or None.

    Three things must agree: what the task's file says, what the harness says that it used, and
    what its requests carried. Harnesses have let one task's settings overwrite another's.

    Args:
        asked: The task's YAML.
        reported: The harness's record of the task.
        sent: Every different set of settings seen in requests.
    """
    for key, value in asked.items():
        if key not in UNSAID and not _agrees(value, reported.get(key)):
            return f"{key} is {reported.get(key)!r} in the harness, {value!r} was asked for"
    if len(sent) != 1:
        return f"its requests carried {len(sent)} sets of settings, not one"
    if reported.get("output_type") != "generate_until":
        return None
    return _sent_problem(asked.get("generation_kwargs") or {}, sent[0])


def _sent_problem(asked: Mapping[str, Any], sent: Mapping[str, Any]) -> str | None:
    stops = asked.get("until", [])
    wanted = {
        "max_tokens": asked.get("max_gen_toks", asked.get("max_tokens")),
        "temperature": asked.get("temperature", 0),
        **{
            key: value
            for key, value in asked.items()
            if key not in ("until", "max_gen_toks", "max_tokens", "temperature", "do_sample")
        },
    }
    for key, value in wanted.items():
        if sent.get(key) != value:
            return f"requests carried {key} {sent.get(key)!r}, {value!r} was asked for"
    missing = {*([stops] if isinstance(stops, str) else stops)} - {*(sent.get("stop") or ())}
    if missing:
        return f"requests did not carry the stop {sorted(missing)[0]!r}"
    strange = sent.keys() - wanted.keys() - {"stop", "seed"}
    return f"requests carried {sorted(strange)[0]}, which was not asked for" if strange else None


def _agrees(asked: Any, reported: Any) -> bool:
    """Return whether a reported value holds all that was asked; it may say more."""
    if isinstance(asked, dict):
        if set(asked) == {"function"}:
            return True  # reported as its source
        return isinstance(reported, dict) and all(
            _agrees(value, reported.get(key)) for key, value in asked.items()
        )
    return bool(asked == reported)


def _environment(server: Server, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.lower() not in PROXIES}
    # Without a key of the server's own none is sent, whatever the caller's environment holds.
    return {**kept, **OFFLINE, "HF_HOME": str(folder), "OPENAI_API_KEY": server.api_key or ""}


def _last_words(log: str) -> str:
    """Return why a child ended: the error, and what the server said before, where it did."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("API request failed")), None)
    if not lines:
        return "the harness ended without a word"
    return shown(lines[-1]) if told is None else f"{shown(lines[-1])} ({shown(told)})"
