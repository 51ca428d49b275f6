"""``python -m orchestrator canary``: what a server answers, beside its control, without Ray."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.canaries.check import QualityReport, QualitySettings, check_quality
from orchestrator.canaries.run import NAMES, CanarySettings
from orchestrator.canaries.scored import ScoreSettings, check_harness, shipped_tasks, task_files
from orchestrator.canaries.wire import Server
from orchestrator.core.codec import to_plain
from orchestrator.core.lines import one_line, printed
from orchestrator.core.quality import CanaryComparison, TaskComparison, TaskScore, TaskSettings
from orchestrator.errors import ConfigError, reported_at
from orchestrator.exit_status import ExitStatus
from orchestrator.named_server import CONTROL, add_arm_and_control, named_server

SCHEMA = "specpilot.canary/1"
"""Changes when a key of the printed record changes its meaning; see docs/canaries.md."""
HELP = "check what a server answers, beside a control without speculation"
DESCRIPTION = f"""\
{HELP}: chat, tools, JSON,
reasoning, images, long context, and scored tasks on request.

What the control fails too says nothing of the arm. Both are asked the same, at temperature 0.

exit status: 0 passed; 1 a canary failed or a task is worse; 3 it cannot be told; 2 bad input
"""
STATUSES = {True: ExitStatus.DONE, False: ExitStatus.FAILED, None: ExitStatus.NO_GO}
ALL = "all"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line's grammar."""
    sub = subparsers.add_parser(
        "canary",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    control = "the same target without speculation"
    add_arm_and_control(sub, control=control, is_control_required=True)
    text = f"some of {', '.join(NAMES)}; default all"
    sub.add_argument("--canaries", metavar="A,B", help=text)
    text = "longest answer; default 2048, at most a quarter of the context"
    sub.add_argument("--max-tokens", type=int, default=2048, metavar="N", help=text)
    sub.add_argument("--timeout", type=float, default=300.0, metavar="S", help="of a request")
    _add_tasks(sub.add_argument_group("scored tasks"))
    sub.add_argument("--json", action="store_true", help="the record of docs/canaries.md")


def _add_tasks(tasks: argparse._ArgumentGroup) -> None:
    text = f"{', '.join(shipped_tasks())}, or YAML files of your own; all: those named here"
    tasks.add_argument("--tasks", metavar="A,B", help=text)
    text = "the target's folder, for tasks of choices"
    tasks.add_argument("--tokenizer", type=Path, metavar="FOLDER", help=text)
    tasks.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    tasks.add_argument("--items", type=int, metavar="N", help="the first N of each task")
    tasks.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests; 4")
    text = "loss in points that must be excluded; default 10"
    tasks.add_argument("--points", type=float, default=10.0, metavar="X", help=text)
    tasks.add_argument("--confidence", type=float, default=0.95, metavar="C", help="0.95")
    text = "what the control usually scores, 0 to 1; may be repeated"
    tasks.add_argument("--normal", action="append", default=[], metavar="TASK=S", help=text)


def run(args: argparse.Namespace) -> int:
    """Ask both servers, print what is found and return the exit status.

    Raises:
        ConfigError: An argument is out of range, or a server does not answer.
    """
    settings = _settings(args)
    arm = _server(args, "")
    control = _server(args, CONTROL)
    if arm.base == control.base and arm.model == control.model:
        raise ConfigError(
            "--control-url", "it is the arm itself", "start the target without speculation"
        )
    report = check_quality(arm, control, settings, tell=_tell)
    if args.json:
        record = {"schema": SCHEMA, **_sides(arm, control), **report_record(report)}
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        sys.stdout.writelines(printed(format_report(report)))
    return STATUSES[report.gate.passed]


def report_record(report: QualityReport) -> dict[str, object]:
    """Return the report as plain JSON."""
    return {
        "gate": to_plain(report.gate),
        "canaries": [to_plain(canary) for canary in report.canaries],
        "tasks": [to_plain(task) for task in report.tasks],
    }


def format_report(report: QualityReport) -> list[str]:
    """Return the report as two tables and the gate's word, one line a row."""
    rows = [("canary", "arm", "control", "what it says"), *map(_canary_row, report.canaries)]
    lines = _table(rows)
    if report.tasks:
        rows = [("task", "arm", "control", "what it says"), *map(_task_row, report.tasks)]
        lines += ["", *_table(rows)]
    word = {True: "passed", False: "FAILED", None: "cannot tell"}[report.gate.passed]
    return [*lines, "", f"canaries: {word}: {report.gate.reason}"]


def _canary_row(canary: CanaryComparison) -> tuple[str, str, str, str]:
    words = {True: "passed", False: "failed", None: "-"}
    says = {True: "", False: "FAILED: ", None: ""}[canary.passed] + canary.reason
    return canary.name, words[canary.arm.passed], words[canary.control.passed], says


def _task_row(task: TaskComparison) -> tuple[str, str, str, str]:
    return task.task, _score(task.arm), _score(task.control), task.reason


def _score(score: TaskScore) -> str:
    return "-" if score.rate is None else f"{score.hits}/{score.total}"


def _table(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def _sides(arm: Server, control: Server) -> dict[str, object]:
    sides = {"arm": arm, "control": control}
    return {name: {"url": side.base, "model": side.model} for name, side in sides.items()}


def _settings(args: argparse.Namespace) -> QualitySettings:
    if not 0 < args.timeout < float("inf"):
        raise ConfigError("--timeout", f"{args.timeout} is out of range", "give seconds above 0")
    names = NAMES if args.canaries is None else tuple(_names(args.canaries))
    with reported_at("--canaries"):
        canaries = CanarySettings(names=names)
    with reported_at("--max-tokens"):
        canaries = CanarySettings(names=names, max_tokens=args.max_tokens)
    tasks = _tasks(args.tasks)
    with reported_at("--tokenizer"):
        ScoreSettings(tokenizer=args.tokenizer)
    with reported_at("--items"):
        ScoreSettings(limit=args.items)
    with reported_at("--concurrency"):
        scoring = ScoreSettings(
            endpoint=args.endpoint,
            tokenizer=args.tokenizer,
            limit=args.items,
            num_concurrent=args.concurrency,
        )
    return QualitySettings(
        canaries=canaries,
        tasks=tasks,
        scoring=scoring,
        comparison=_comparison(args),
        normal=_normal(args.normal, [path.stem for path in tasks]),
    )


def _comparison(args: argparse.Namespace) -> TaskSettings:
    if not 0 < args.points < 100:
        raise ConfigError("--points", f"{args.points:g} is out of range", "give 0 to 100, between")
    if not 0 < args.confidence < 1:
        raise ConfigError("--confidence", f"{args.confidence:g} is out of range", "give below 1")
    return TaskSettings(margin=args.points / 100, confidence=args.confidence)


def _tasks(text: str | None) -> tuple[Path, ...]:
    if text is None:
        return ()
    with reported_at("--tasks"):
        names = shipped_tasks() if text == ALL else tuple(_names(text))
        paths = task_files(names)
        if not paths:
            raise ConfigError("tasks", "no task is named", "name one, or all")
        check_harness()
    return paths


def _normal(given: Sequence[str], tasks: Sequence[str]) -> Mapping[str, float]:
    normal = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            score = float(value)
        except ValueError:
            score = -1.0
        if name not in tasks or not 0 <= score <= 1:
            raise ConfigError("--normal", f"'{text}' is no TASK=S of --tasks", "give S from 0 to 1")
        normal[name] = score
    return normal


def _names(text: str) -> Iterator[str]:
    return (part.strip() for part in text.split(",") if part.strip())


def _server(args: argparse.Namespace, side: str) -> Server:
    """Return one side's server."""
    found = named_server(args, side)
    return Server(base=found.base, model=found.model, api_key=found.api_key, timeout_s=args.timeout)


def _tell(line: str) -> None:
    sys.stderr.write(f"{one_line(line)}\n")
    sys.stderr.flush()
