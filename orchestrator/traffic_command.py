"""``python -m orchestrator traffic LOG``: objective.weights of a study from a request log."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from orchestrator.core.lines import printed
from orchestrator.core.plausible import MAX_STREAMS
from orchestrator.core.sampling import MAX_TEMPERATURE, same_temperature
from orchestrator.errors import ConfigError
from orchestrator.traffic import ProfileSettings, profile, profile_lines, read_log
from orchestrator.traffic_log import check_durations

HELP = "print a study's objective.weights from a log of requests"
DESCRIPTION = f"""\
{HELP}.

LOG has one JSON object a line: a request's body, or an object that holds it under body or request,
with the request's start and its end or duration, and its usage where known. How many requests
overlap says the concurrency. docs/decide.md has the keys.
"""
MAX_DIGITS = len(str(MAX_STREAMS))
"""Of a concurrency."""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the subcommand ``traffic`` and return its parser."""
    parser = subparsers.add_parser(
        "traffic",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", type=Path, metavar="LOG")
    text = "concurrencies of the study (default 1,2,4,8,16)"
    parser.add_argument("--streams", default="1,2,4,8,16", metavar="N,...", help=text)
    text = "temperatures of the study; requests count for the nearest (default: the log's)"
    parser.add_argument("--temperatures", metavar="T,...", help=text)
    text = "of requests that state none"
    parser.add_argument("--default-temperature", metavar="T", help=text)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the profile and return the exit status.

    Raises:
        ConfigError: An option is no list of numbers, or the log cannot be read or used.
    """
    settings = ProfileSettings(
        streams=tuple(_streams(args.streams)),
        temperatures=_temperatures(args.temperatures, "--temperatures"),
        default_temperature=_one(args.default_temperature),
    )
    try:
        with args.log.open("rb") as lines:
            log = read_log(lines)
    except OSError as error:
        raise ConfigError(
            "traffic LOG", f"{args.log} cannot be read ({error})", "name a readable file"
        ) from error
    check_durations(log)
    sys.stdout.writelines(printed(profile_lines(profile(log, settings))))
    return 0


def _streams(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS and int(part) for part in parts):
        problem = f"'{text}' is no list of numbers from 1 to {'9' * MAX_DIGITS}"
        raise ConfigError("--streams", problem, "write 1,2,4")
    return [int(part) for part in parts]


def _temperatures(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 <= value <= MAX_TEMPERATURE:
            remedy = f"write numbers from 0 to {MAX_TEMPERATURE:g}"
            raise ConfigError(option, f"'{part}' is no temperature", remedy)
        values.append(same_temperature(value))
    return tuple(values)


def _one(text: str | None) -> float | None:
    found = _temperatures(text, "--default-temperature")
    if found is None:
        return None
    if len(found) > 1:
        raise ConfigError("--default-temperature", f"'{text}' is no number", "write one")
    return found[0]
