"""The command line: ``python -m orchestrator`` or ``specpilot``."""

from __future__ import annotations

import argparse
import errno
import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from orchestrator import (
    audit_build_command,
    canary_command,
    clean_command,
    decide_command,
    lossless_command,
    measure_command,
    node_command,
    traffic_command,
    workload_command,
)
from orchestrator.adapters.clock import SystemClock
from orchestrator.config import StudyConfig, load_config
from orchestrator.core.lines import one_line
from orchestrator.errors import ConfigError, OrchestratorError, StudyStopped
from orchestrator.exit_status import ExitStatus
from orchestrator.interrupts import ended_like_ctrl_c
from orchestrator.stopping import Stop
from orchestrator.version import VERSION
from orchestrator.version_tags import version_number_of

DESCRIPTION = """\
Finds the fastest speculative-decoding configuration of a vLLM deployment, proves the finding,
and puts it in production.

A study is one YAML file that names the target, the draft, the engine, the space of arms
(draft rule x rejection rule x depth), the load and the policy. Every arm is booted on a node,
loaded, and compared with what serves now; boots, not requests, are what is counted.
"""

EPILOG = """\
typical use, on a cluster whose nodes offer the Ray resources GB10 and trial_slot:

  python -m orchestrator plan conf/study/qwen38_gb10.yaml     # no engine, no Ray
  ray job submit --working-dir . -- python -m orchestrator study conf/study/qwen38_gb10.yaml
  python -m orchestrator status conf/study/qwen38_gb10.yaml

a study whose driver died goes on by the same command and --resume with its id. Ctrl-C, SIGTERM or
`ray job stop` ends a study after its blocks under way, a second one at once; both within a minute.

and without Ray, MLflow or a study:

  python -m orchestrator measure --url http://host:8000/v1 --concurrency 4 --workload code
  python -m orchestrator node
  python -m orchestrator clean                                # what dead studies left
  python -m orchestrator workload import requests.jsonl --format openai-log --out mine.jsonl

any setting can be overridden after the file: search.num_speculative_tokens=[4,5] load.block_s=20

environment: MLFLOW_TRACKING_URI (if tracking.uri is not set), RAY_ADDRESS, SPECPILOT_STATE_DIR

exit status: 0 done; 2 bad input, nothing was started; 3 finished, nothing was promoted, or, of
premises, a conclusion is stale; 130 stopped by Ctrl-C, SIGTERM or a hang-up; 1 anything else, such
as a measured block that is not valid
"""

COMMANDS = {
    "study": "run the trials to the verdict, and promote the winner if every gate lets it pass",
    "plan": "print arms, cells, boots and expected duration; starts nothing",
    "promote": "promote a registered version (by default the challenger)",
    "rollback": "go back to the version that served before",
    "sync": "bring the champion back from MLflow alone, as after a lost head node",
    "status": "print what production serves, since when and on which evidence",
    "premises": "print which conclusions still stand, and which premises changed; needs no Ray",
    "watch": "see whether production drifts from its verdict, and open findings in MLflow",
}

WITHOUT_STUDY = {
    "measure": measure_command,
    "node": node_command,
    "workload": workload_command,
    "decide": decide_command,
    "canary": canary_command,
    "lossless": lossless_command,
    "audit-build": audit_build_command,
    "traffic": traffic_command,
    "clean": clean_command,
}
"""Commands without a study's file, which need neither Ray nor MLflow: each module adds its parser
and runs to a status."""


MAX_NAME, MAX_PROBLEM = 300, 2000
"""Characters of what an error is about, which somebody may have typed, and of what is wrong."""


class Grammar(argparse.ArgumentParser):
    """Refuses with the usage and one bearable line, whatever was typed."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave with the status of bad input."""
        super().error(one_line(message, MAX_NAME))


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    root = Grammar(
        prog="python -m orchestrator",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=VERSION)
    subparsers = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = subparsers.add_parser(name, help=text, description=text)
        sub.add_argument("study", type=Path, help="the study's YAML file")
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings to override")
        if name == "promote":
            number = _version_number
            sub.add_argument("--registered-version", type=number, metavar="N", help="which version")
            sub.add_argument("--dry-run", action="store_true", help="print the decision only")
        if name == "rollback":
            text = "another version that has served"
            sub.add_argument("--to", type=_version_number, metavar="N", help=text)
        if name in ("promote", "rollback"):
            sub.add_argument(
                "--allow-outage",
                action="store_true",
                help="end what serves first where no board is free beside it",
            )
        if name == "watch":
            _add_watch_options(sub)
        if name == "study":
            sub.add_argument(
                "--resume",
                type=_study_id,
                metavar="ID",
                help="go on with a study whose driver ended too early",
            )
    for module in WITHOUT_STUDY.values():
        module.add_parser(subparsers)
    return root


def _add_watch_options(sub: argparse.ArgumentParser) -> None:
    text = "seconds from one look to the next (default 60)"
    sub.add_argument("--every", type=float, default=60.0, metavar="S", help=text)
    text = "one look; starts no study. Evidence is kept for the next"
    sub.add_argument("--once", action="store_true", help=text)
    text = "write objective.weights of the traffic that the router recorded, YAML or JSON, and end"
    sub.add_argument("--profile", type=Path, metavar="OUT", help=text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    _prepare_output()
    try:
        with ended_like_ctrl_c():
            status = _run(_parsed(argv))
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        _drop_output()  # nobody reads on
        return ExitStatus.FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitStatus.INTERRUPTED
    except OrchestratorError as error:
        print(f"error: {_in_lines(error)}", file=sys.stderr)
        return _status_of(error)
    except OSError as error:
        return _said_of_the_system(error)
    except Exception:  # noqa: BLE001  the last boundary: status 1 must not look like bad input
        traceback.print_exc()
        return ExitStatus.FAILED


def _status_of(error: OrchestratorError) -> ExitStatus:
    if isinstance(error, ConfigError):
        return ExitStatus.BAD_INPUT
    return ExitStatus.INTERRUPTED if isinstance(error, StudyStopped) else ExitStatus.FAILED


def _in_lines(error: OrchestratorError) -> str:
    """Return an error with its own lines and none that stand in a name or value."""
    text = str(error)
    if isinstance(error, ConfigError):
        where, problem = one_line(error.where, MAX_NAME), one_line(error.problem, MAX_PROBLEM)
        text = f"{where}: {problem}; {error.remedy}"
    return "\n".join(one_line(line) for line in text.split("\n"))


def _said_of_the_system(error: OSError) -> ExitStatus:
    """Say what the system refused, and return what it means for the command."""
    if error.filename is not None:
        name = one_line(os.fsdecode(error.filename), MAX_NAME)
        print(f"error: {name}: {error.strerror}", file=sys.stderr)
        # No system made such a name: it was typed.
        is_typed = error.errno == errno.ENAMETOOLONG
        return ExitStatus.BAD_INPUT if is_typed else ExitStatus.FAILED
    if error.errno not in (errno.ENOSPC, errno.EBADF):
        traceback.print_exc()
        return ExitStatus.FAILED
    _drop_output()
    print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
    return ExitStatus.FAILED


def _prepare_output() -> None:
    """See that there is an output, and that names of files that are no text can be printed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  to the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; argparse alone takes no override that stands behind an option."""
    grammar = parser()
    argv = sys.argv[1:] if argv is None else argv
    if any("\0" in text for text in argv):
        grammar.error("an argument has a character that no system takes in one")
    args, rest = grammar.parse_known_args(argv)
    if args.command in COMMANDS and not any(text.startswith("-") for text in rest):
        args.overrides += rest
    elif rest:
        grammar.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _version_number(text: str) -> int:
    try:
        return version_number_of(text)
    except ValueError as error:
        problem = "give the number of a registered version, 1 or more"
        raise argparse.ArgumentTypeError(problem) from error


def _study_id(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: give the id that the study printed")
    return text


def _run(args: argparse.Namespace) -> int:
    if args.command in WITHOUT_STUDY:
        return int(WITHOUT_STUDY[args.command].run(args))
    with Stop(SystemClock()) as stop:
        return _run_study_command(args, stop)


def _run_study_command(args: argparse.Namespace, stop: Stop) -> int:
    config = load_config(args.study, args.overrides)
    typed = shlex.join(["python", "-m", "orchestrator", "study", str(args.study), *args.overrides])
    if args.command == "watch":
        return _watch(config, args, typed)
    # Ray and MLflow take seconds to import; a typing error in the study should not.
    from orchestrator import commands  # noqa: PLC0415

    if args.command == "study":
        return int(commands.study(config, resume=args.resume, command=typed, stop=stop))
    if args.command == "premises":
        return int(commands.premises(config, command=typed))
    if args.command == "promote":
        return int(
            commands.promote(
                config,
                args.registered_version,
                allow_outage=args.allow_outage,
                dry_run=args.dry_run,
            )
        )
    if args.command == "rollback":
        return int(commands.rollback(config, args.to, allow_outage=args.allow_outage))
    return int(getattr(commands, args.command)(config))


def _watch(config: StudyConfig, args: argparse.Namespace, typed: str) -> int:
    from orchestrator import watch_service  # noqa: PLC0415  as commands

    options = watch_service.WatchOptions(
        study=args.study,
        overrides=tuple(args.overrides),
        command=typed,
        every_s=args.every,
        once=args.once,
        profile=args.profile,
    )
    return watch_service.watch(config, options)


def _drop_output() -> None:
    """Send what is still unwritten nowhere: the interpreter would complain again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
