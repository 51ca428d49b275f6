"""``python -m orchestrator decide``: the verdict from files alone. No Ray, no MLflow, no study."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.distributions import MAX_CONFIDENCE
from orchestrator.core.lines import first_of, printed
from orchestrator.decide_report import answer_record, format_answers
from orchestrator.errors import ConfigError
from orchestrator.exit_status import ExitStatus
from orchestrator.results.answer import answers
from orchestrator.results.boots import in_several_files
from orchestrator.results.columns import is_known, near_match, value_of
from orchestrator.results.doubts import sift
from orchestrator.results.files import Raw, ReadOptions, read_raw
from orchestrator.results.observation import MEASURE_SCHEMA, Observation, observe
from orchestrator.results.question import Question
from orchestrator.results.several import (
    MOST_NAMED,
    check_options,
    stated_values,
    with_remedy,
)

SCHEMA = "specpilot.decide/1"
"""Changes when a key of the printed record changes its meaning; see docs/decide.md."""
HELP = "give the verdict from files of results alone"
DESCRIPTION = f"""\
{HELP}.

Read are CSV or JSON lines with one row a block or a run, blocks.json of trials, and records of
measure --json; docs/decide.md has the columns. Files are read and nothing else: no number of
theirs enters a study.

exit status: 0 a winner for each engine build in the files; 3 no winner (what serves now is kept,
no difference, or these rows cannot tell); 2 bad input, each row and value named
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the subcommand ``decide`` and return its parser."""
    parser = subparsers.add_parser(
        "decide",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    text = "label of the arm that serves now, such as greedy+standard-5 (default: no speculation)"
    parser.add_argument("--reference", metavar="ARM", help=text)
    text = "the traffic's shares, such as c1_t0.7=3,c16_t0.7=1 (default: common cells alike)"
    parser.add_argument("--weights", default="", metavar="CELL=W,...", help=text)
    text = "coverage of the intervals (default 0.95)"
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help=text)
    text = "what rows without a boot are: repeats in one boot of their arm (default) or a boot each"
    parser.add_argument("--runs-are", choices=("blocks", "boots"), default="blocks", help=text)
    text = "read column COLUMN of the files as NAME; may be repeated"
    parser.add_argument("--column", action="append", default=[], metavar="NAME=COLUMN", help=text)
    text = "what all rows have in common and do not say; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "leave out rows with this value; may be repeated"
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="COLUMN=VALUE", help=text
    )
    text = "do not read this column; may be repeated"
    parser.add_argument("--ignore", action="append", default=[], metavar="COLUMN", help=text)
    text = "also print effects, interactions and depth curves (rows with counters); --json has them"
    parser.add_argument("--findings", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the answer and return the exit status.

    Raises:
        ConfigError: An option or a row cannot be so; rows are named, each with its fault.
    """
    question = Question(
        reference=args.reference,
        weights=_weights(args.weights),
        confidence=_confidence(args.confidence),
        runs_are=args.runs_are,
    )
    observations, notes = read_observations(args.files, _options(args))
    sifted = sift(observations)
    doubts = (*notes, *sifted.doubts)
    if not sifted.observations:
        said = first_of(doubts, MOST_NAMED, apart="\n  ", last="\n  ")
        raise ConfigError("decide FILE", "no row counts", f"give rows that do:\n  {said}")
    found = answers(sifted.observations, question)
    if args.json:
        record = {
            "schema": SCHEMA,
            "num_rows": len(sifted.observations),
            "doubts": list(doubts),
            "answers": [answer_record(answer) for answer in found],
        }
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        lines = format_answers(
            found,
            doubts=doubts,
            num_rows=len(sifted.observations),
            with_findings=args.findings,
        )
        sys.stdout.writelines(printed(lines))
    won = all(answer.outcome == "winner" for answer in found)
    return ExitStatus.DONE if won else ExitStatus.NO_GO


def read_observations(
    files: list[Path], options: ReadOptions
) -> tuple[list[Observation], list[str]]:
    """Return the rows of all files, and notes on what was not read.

    Raises:
        ConfigError: Rows have faults; all are named, up to a number.
    """
    read = [(path, read_raw(path, options)) for path in files]
    notes = check_options(read, options)
    found: list[tuple[Path, list[Observation]]] = []
    faults: dict[str, list[str]] = {}
    wrong: list[tuple[Path, str, str]] = []
    contents: list[tuple[Path, object]] = []
    for path, file in read:
        content = [(raw.values, raw.facts) for raw in file.rows]
        same = _first_equal(contents, content)
        if same is not None:
            notes.append(f"{path} holds the rows of {same}, all of them: they count once.")
            continue
        contents.append((path, content))
        unknown, slips = _unknown_columns(file.rows)
        for slip in slips.values():
            faults.setdefault(slip, []).append(str(path))
        # What is missing for a slip in its name is said by the slip.
        said = tuple(f"{name} is missing" for name in slips)
        if unknown:
            notes.append(f"{path}: not read: {', '.join(unknown)}.")
        if file.num_left_out:
            rows = "1 row" if file.num_left_out == 1 else f"{file.num_left_out} rows"
            notes.append(f"{path}: {rows} left out as asked.")
        observations: list[Observation] = []
        found.append((path, observations))
        for raw in file.rows:
            observation, texts = observe(raw)
            wrong += ((path, raw.where, text) for text in texts if not text.startswith(said))
            if observation is not None:
                observations.append(observation)
    stated = stated_values([item for _, rows in found for item in rows])
    for path, where, text in wrong:
        faults.setdefault(with_remedy(text, path, stated), []).append(where)
    if faults:
        raise ConfigError(
            "decide FILE",
            "what is there cannot be so",
            "correct it, name columns with --column or --set, or leave rows out (--leave-out):\n  "
            + _listed(faults),
        )
    return [item for _, rows in found for item in rows], [*notes, *in_several_files(found)]


def _first_equal(read: Sequence[tuple[Path, object]], content: Sequence[object]) -> Path | None:
    return next((path for path, seen in read if content and seen == content), None)


def _listed(faults: Mapping[str, Sequence[str]]) -> str:
    """Return one line a fault, with the first row that has it and how many others do."""
    lines = [f"{first_of(places, 1)}: {fault}" for fault, places in faults.items()]
    return first_of(lines, MOST_NAMED, apart="\n  ", last="\n  ", rest="other faults")


def _unknown_columns(raws: Sequence[Raw]) -> tuple[list[str], dict[str, str]]:
    """Return the columns that are not read, and slips by the name of what they stand for."""
    rows = [r for r in raws if "block_id" not in r.values and r.values.get("schema") is None]
    unknown = sorted({name for raw in rows for name in raw.values if name and not is_known(name)})
    slips: dict[str, str] = {}
    for name in unknown:
        meant = near_match(name)
        if meant is not None and not any(raw.values.get(meant) not in (None, "") for raw in rows):
            text = f"column '{name}' is not known: is it {meant}?"
            also = f"{slips[meant]}; " if meant in slips else ""
            slips[meant] = f"{also}{text} (--column {meant}='{name}', or --ignore '{name}')"
    schemas = {str(raw.values["schema"]) for raw in raws if raw.values.get("schema") is not None}
    for name in sorted(schemas - {MEASURE_SCHEMA}):
        slips[f"schema {name}"] = f"schema '{name}' is not known"
    return unknown, slips


def _options(args: argparse.Namespace) -> ReadOptions:
    constants = _named(args.set, "--set")
    columns = _named(args.column, "--column")
    for column, count in Counter(columns.values()).items():
        if count > 1:
            both = " and ".join(name for name, theirs in columns.items() if theirs == column)
            problem = f"column '{column}' is read as {both}"
            raise ConfigError("--column", problem, "read it as one of them")
    for option, names in (("--set", constants), ("--column", columns)):
        for name in names:
            if not is_known(name):
                meant = near_match(name)
                remedy = f"do you mean {meant}?" if meant else "docs/decide.md has the columns"
                raise ConfigError(option, f"there is no column '{name}'", remedy)
    for name, value in constants.items():
        known, fault = value_of(constants, name)
        if known is None:
            problem = fault or f"'{value}' says no {name}"
            raise ConfigError("--set", problem, f"write --set {name}=VALUE")
    return ReadOptions(
        columns=columns,
        constants=constants,
        left_out=[_pair(text, "--leave-out") for text in args.leave_out],
        ignored=args.ignore,
    )


def _named(texts: Sequence[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in (_pair(text, option) for text in texts):
        if name in found:
            problem = f"{name} stands there twice, as '{found[name]}' and '{value}'"
            raise ConfigError(option, problem, "give it once")
        found[name] = value
    return found


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ConfigError(option, f"'{text}' has no name and value", "write NAME=VALUE")
    return name.strip(), value.strip()


def _weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(",") if text else []:
        cell, value = _pair(part, "--weights")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise ConfigError("--weights", f"'{part}' is no share", "write CELL=NUMBER from 0")
        if cell in weights:
            raise ConfigError("--weights", f"{cell} stands there twice", "name each cell once")
        weights[cell] = weight
    if weights and not sum(weights.values()):
        raise ConfigError("--weights", "all are 0", "give one cell a weight above 0")
    return weights


def _confidence(value: float) -> float:
    if not 0.5 <= value <= MAX_CONFIDENCE:
        problem = f"{value:.17g} is no coverage that can be asked for"
        raise ConfigError("--confidence", problem, f"give 0.5 to {MAX_CONFIDENCE}")
    return value
