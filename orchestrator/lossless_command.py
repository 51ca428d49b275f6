"""``python -m orchestrator lossless``: are an arm's tokens the target's? Without Ray or MLflow."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from dataclasses import replace

from orchestrator.config import CONF_DIR
from orchestrator.core.lines import printed
from orchestrator.core.lossless.greedy import GreedySettings
from orchestrator.core.lossless.judge import LosslessSettings
from orchestrator.errors import ConfigError, reported_at
from orchestrator.exit_status import ExitStatus
from orchestrator.load.scoring import TokenServer
from orchestrator.load.workload import find_workload, load_workload
from orchestrator.lossless import Look, run_text_test
from orchestrator.lossless_answers import TextTest
from orchestrator.lossless_greedy import run_greedy_test
from orchestrator.lossless_report import Sides, format_greedy, format_text, outcome_record
from orchestrator.named_server import CONTROL, add_arm_and_control, named_server

HELP = "test whether a server's sampled tokens follow the target's distribution"
DESCRIPTION = f"""\
{HELP}.

The arm samples at temperature 1 with nothing cut off; the control, the same target without
speculation, says how likely each token was (prompt_logprobs). A betting test gives a p-value that
is valid at every look, so it ends as soon as the answer is known. At --temperature 0 the arm's
tokens are compared with the control's most likely ones instead.

exit status: 0 passed; 1 rejected; 3 it cannot be told with these tokens; 2 bad input. Status 1 with
a line "error:" is no verdict: a server did not answer, or contradicts itself
"""
STATUSES = {
    "passed": ExitStatus.DONE,
    "rejected": ExitStatus.FAILED,
    "cannot_tell": ExitStatus.NO_GO,
}

WHAT_CONTROL = "the same target without speculation; default: the arm scores itself, and says so"
STREAMS = "answers at a time; default 16"
SCORERS = "texts that are scored at a time; default 4"
SAMPLES = "tokens of the control that it scores itself: gives the numeric floor; default 0"
TOP = "probabilities a token, -1 for the vocabulary; default 64, which is all that the test uses"
ALPHA = "chance of rejecting a lossless arm; default 0.001"
SHARE = "share of displaced tokens that a pass must exclude; default 0.01"
SEED = "of prompts and samples; by default a new one each time"
TOLERANCE = "at temperature 0: disagreements a token above the control's; default 0.001"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line's grammar."""
    sub = subparsers.add_parser(
        "lossless",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arm_and_control(sub, control=WHAT_CONTROL, is_control_required=False)
    load = sub.add_argument_group("load")
    load.add_argument("--workload", default="code", help="a name or a JSONL file; default code")
    load.add_argument("--temperature", type=float, choices=(0.0, 1.0), default=1.0, help="1")
    load.add_argument("--tokens", type=int, default=200_000, metavar="N", help="budget; 200000")
    load.add_argument("--control-samples", type=int, default=0, metavar="N", help=SAMPLES)
    text = "of an answer; default 256"
    load.add_argument("--max-tokens", type=int, default=256, metavar="N", help=text)
    load.add_argument("--concurrency", type=int, default=16, metavar="N", help=STREAMS)
    load.add_argument("--score-concurrency", type=int, default=4, metavar="N", help=SCORERS)
    load.add_argument("--prompt-logprobs", type=int, default=64, metavar="N", help=TOP)
    load.add_argument("--seed", type=int, help=SEED)
    text = "longest time of a request, seconds; default 600"
    load.add_argument("--timeout", type=float, default=600.0, metavar="S", help=text)
    rule = sub.add_argument_group("judgement")
    rule.add_argument("--alpha", type=float, default=0.001, metavar="P", help=ALPHA)
    rule.add_argument("--displacement", type=float, default=0.01, metavar="S", help=SHARE)
    rule.add_argument("--tolerance", type=float, default=0.001, metavar="S", help=TOLERANCE)
    sub.add_argument("--json", action="store_true", help="the record of docs/lossless-command.md")


def run(args: argparse.Namespace) -> int:
    """Test, print what is found and return the exit status.

    Raises:
        ConfigError: An argument is out of range, no server answers, or the control cannot score.
        MeasurementError: A server contradicts itself.
        TransientError: A server no longer answers.
    """
    test = _test(args)
    with reported_at("--tolerance"):
        greedy = GreedySettings(tolerance=args.tolerance)
    arm = _server(args, "", "the arm")
    control = replace(arm, name="the control")
    if args.control_url is not None:
        control = _server(args, CONTROL, "the control")
    elif test.control_tokens:
        raise ConfigError(
            "--control-samples", "there is no control to sample", "name one by --control-url"
        )
    sides = Sides(arm=arm, control=control)
    try:
        return _tested(args, sides, test, greedy)
    except ConfigError as error:
        option = "--control-url" if error.where == "control_url" else "--workload"
        raise ConfigError(option, error.problem, error.remedy) from error


def _tested(args: argparse.Namespace, sides: Sides, test: TextTest, greedy: GreedySettings) -> int:
    if test.temperature == 0:
        compared = run_greedy_test(sides.arm, sides.control, test, greedy)
        record = outcome_record(compared, sides, test, greedy=greedy)
        lines = format_greedy(compared, sides, test)
        status = STATUSES[compared.result.kind]
    else:
        outcome = run_text_test(sides.arm, sides.control, test, on_look=_tell)
        record = outcome_record(outcome, sides, test)
        lines = format_text(outcome, sides, test)
        status = STATUSES[outcome.result.kind]
    if args.json:
        sys.stdout.write(json.dumps(record, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(printed(lines))
    return status


def _tell(whose: str, look: Look) -> None:
    """Show on standard error how far a long test is."""
    seen = "-" if look.seen is None else f"{look.seen:.2%}"
    sys.stderr.write(
        f"{whose}: {look.num_tokens:,} tokens, p = {look.p_value:.2g}, would have seen {seen}\n"
    )
    sys.stderr.flush()


def _test(args: argparse.Namespace) -> TextTest:
    with reported_at("--workload"):
        workload = load_workload(find_workload(args.workload, CONF_DIR))
    judging = LosslessSettings()
    for name in ("alpha", "displacement"):
        with reported_at(f"--{name}"):
            judging = replace(judging, **{name: getattr(args, name)})
    with reported_at("--workload"):
        # A new seed each time: with one seed the engine's samples are the same ones.
        seed = secrets.randbelow(2**31) if args.seed is None else args.seed
        test = TextTest(workload=workload, seed=seed, judging=judging, temperature=args.temperature)
    options = {
        "token_budget": "tokens",
        "control_tokens": "control_samples",
        "max_tokens": "max_tokens",
        "num_streams": "concurrency",
        "num_scorers": "score_concurrency",
        "num_top": "prompt_logprobs",
        "timeout_s": "timeout",
    }
    for name, option in options.items():
        with reported_at(f"--{option.replace('_', '-')}"):
            test = replace(test, **{name: getattr(args, option)})
    return test


def _server(args: argparse.Namespace, side: str, name: str) -> TokenServer:
    """Return one side's server."""
    found = named_server(args, side)
    return TokenServer(base_url=found.base, model=found.model, name=name, api_key=found.api_key)
