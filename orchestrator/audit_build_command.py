"""``python -m orchestrator audit-build``: does a build sample the target? Before any boot of it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.audit_build import (
    DRAFTERS,
    RULES,
    BuildAudit,
    Plan,
    RuleAudit,
    audit_build,
)
from orchestrator.audit_build_text import Displacement
from orchestrator.core.codec import to_plain
from orchestrator.core.lines import one_line, printed
from orchestrator.core.lossless.judge import LosslessSettings
from orchestrator.errors import ConfigError, reported_at
from orchestrator.exit_status import ExitStatus

SCHEMA = "specpilot.audit-build/1"
"""Changes when a key of the record changes its meaning; see docs/audit-build.md."""
HELP = "test whether an engine build's sampling kernels keep the target's distribution"
DESCRIPTION = f"""\
{HELP}, before the build is booted.

The build's own drafting and verification code is driven step after step through a small model whose
distributions are known, on the CPU, interpreted: a wheel for GPUs will do. Every rule gets a
verdict from exact means of each step and of the text.

exit status: 0 all rules passed; 1 one is rejected; 3 none is rejected, and of one it cannot be told
with these tokens; 2 bad input, or the build's code is not known. Status 1 with a line "error:" is
no verdict
"""
MAX_RULE_TOKENS = 5_000_000
"""A rule's records are up to 200 B a token, below the folder for temporary files."""
MAX_VOCABULARY = 2048
"""A model of 2,048 tokens takes each process 0.9 GB and 16 s to make; of 4,096, 3.5 GB."""
_MISSING = "-"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line's grammar."""
    plan = Plan()
    sub = subparsers.add_parser(
        "audit-build",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "a wheel of vLLM, or the folder of a virtual environment that has it"
    sub.add_argument("build", type=Path, metavar="WHEEL_OR_VENV", help=text)
    text = f"of {', '.join(RULES)}; comma-separated; default all"
    sub.add_argument("--rules", default=",".join(RULES), metavar="RULES", help=text)
    text = f"of each rule; default {plan.num_tokens}"
    sub.add_argument("--tokens", type=int, default=plan.num_tokens, metavar="N", help=text)
    text = "of the requests; default 0, and a run with the same seed is a duplicate"
    sub.add_argument("--seed", type=int, default=plan.seed, metavar="N", help=text)
    text = "rules at a time, a core each; default 2"
    sub.add_argument("--processes", type=int, default=plan.num_processes, metavar="N", help=text)
    text = "whose sampling code drafts: DFlash2's walk over candidates, or DFlash's, which other "
    text += "drafters share; default dflash2"
    sub.add_argument("--drafter", choices=DRAFTERS, default=plan.drafter, help=text)
    text = f"tokens that the model knows; default {plan.vocabulary}"
    sub.add_argument("--vocabulary", type=int, default=plan.vocabulary, metavar="N", help=text)
    text = "seconds that all rules together may take; default 3600"
    sub.add_argument("--timeout", type=float, default=plan.timeout_s, metavar="S", help=text)
    text = "chance of rejecting a lossless rule; default 0.001"
    sub.add_argument("--alpha", type=float, default=plan.judging.alpha, metavar="P", help=text)
    text = "share of displaced tokens that a pass must exclude; default 0.01"
    share = plan.judging.displacement
    sub.add_argument("--displacement", type=float, default=share, metavar="S", help=text)
    text = "also a build of a version whose way of passing seeds and positions was never read"
    sub.add_argument("--any-version", action="store_true", help=text)
    sub.add_argument("--json", action="store_true", help="the record of docs/audit-build.md")


def run(args: argparse.Namespace) -> int:
    """Audit, print what is found and return the exit status.

    Raises:
        ConfigError: An argument is out of range, or the build's code cannot be driven.
        MeasurementError: It took longer than the timeout.
    """
    plan = _plan(args)
    audit = audit_build(args.build, plan, tell=_tell)
    if args.json:
        record = audit_record(audit, args.build, plan)
        sys.stdout.write(json.dumps(record, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(printed(format_audit(audit, plan)))
    return status_of(audit)


def status_of(audit: BuildAudit) -> ExitStatus:
    """Return the exit status: a rule that is rejected beats one of which it cannot be told."""
    found = {rule.result.kind for rule in audit.rules}
    if "rejected" in found:
        return ExitStatus.FAILED
    return ExitStatus.NO_GO if "cannot_tell" in found else ExitStatus.DONE


def format_audit(audit: BuildAudit, plan: Plan) -> list[str]:
    """Return the table of rules and below it a sentence for each."""
    head = ("rule", "tokens", "rejections", "length", "displaced, text", "p-value", "verdict")
    rows = [head, *(_row(rule) for rule in audit.rules)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    settings = plan.judging
    return [
        f"vLLM {audit.version}: {plan.drafter} drafts, {plan.vocabulary} tokens, seed {plan.seed}",
        *table,
        "",
        *(f"{rule.rule}: {rule.result.sentence}" for rule in audit.rules),
        "",
        f"length: tokens a verification step. displaced: at least, with an interval of 95 %. A "
        f"lossless rule is rejected with a chance of {settings.alpha:g}; a pass would have seen "
        f"{settings.displacement:.1%} displaced {settings.power:.0%} of the time.",
    ]


def audit_record(audit: BuildAudit, source: Path, plan: Plan) -> dict[str, object]:
    """Return the audit and what was asked as plain JSON."""
    return {
        "schema": SCHEMA,
        "build": source.absolute().name,
        "plan": to_plain(plan),
        "audit": to_plain(audit),
    }


def _row(audit: RuleAudit) -> tuple[str, ...]:
    length = audit.acceptance_length
    return (
        audit.rule,
        f"{audit.result.num_tokens:,}",
        f"{audit.rejections:,}" if audit.drafted_steps else _MISSING,
        _MISSING if length is None else f"{length:.3f}",
        _displaced(audit.displacement),
        f"{audit.result.p_value:.2g}",
        audit.result.kind.replace("_", " "),
    )


def _displaced(found: Displacement | None) -> str:
    if found is None:
        return _MISSING
    return f"{found.share:+.2%} ({found.low:+.2%} to {found.high:+.2%})"


def _plan(args: argparse.Namespace) -> Plan:
    rules = _rules(args.rules)
    tokens = args.tokens
    ranges = (
        ("--tokens", tokens, 256 <= tokens <= MAX_RULE_TOKENS, f"256 to {MAX_RULE_TOKENS:,}"),
        ("--seed", args.seed, args.seed >= 0, "0 or more"),
        ("--processes", args.processes, 1 <= args.processes <= 64, "1 to 64"),
        (
            "--vocabulary", args.vocabulary, 32 <= args.vocabulary <= MAX_VOCABULARY,
            f"32 to {MAX_VOCABULARY:,}",
        ),
        ("--timeout", args.timeout, 0 < args.timeout < math.inf, "seconds above 0"),
    )  # fmt: skip
    for name, value, is_fine, wanted in ranges:
        if not is_fine:
            raise ConfigError(name, f"{value} is out of range", f"give {wanted}")
    judging = LosslessSettings()
    for name in ("alpha", "displacement"):
        with reported_at(f"--{name}"):
            judging = replace(judging, **{name: getattr(args, name)})
    return Plan(
        rules=tuple(rules),
        num_tokens=args.tokens,
        seed=args.seed,
        num_processes=args.processes,
        drafter=args.drafter,
        vocabulary=args.vocabulary,
        timeout_s=args.timeout,
        any_version=args.any_version,
        judging=judging,
    )


def _rules(text: str) -> Sequence[str]:
    rules = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown or not rules:
        problem = f"{unknown[0]!r} is no rule" if unknown else "it names no rule"
        raise ConfigError("--rules", problem, f"give some of {', '.join(RULES)}")
    return list(dict.fromkeys(rules))


def _tell(line: str) -> None:
    sys.stderr.write(f"{one_line(line)}\n")
    sys.stderr.flush()
