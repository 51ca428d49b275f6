"""``python -m orchestrator clean``: show, and remove, what dead studies left."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.core.leftovers import Leftover
from orchestrator.core.lines import one_line, printed
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.clean import Survey

HELP = "show what dead studies left on all nodes; remove it with --yes"
DESCRIPTION = f"""\
{HELP}.

Looks for trial applications and leases of Ray Serve, for engines of trials whose replica is gone
(processes, port, shared memory, sockets), and below SPECPILOT_STATE_DIR for Tune's folders, audit
folders, and states of studies that have their verdict. Without --yes nothing is touched. A study
that runs is left alone, and so is what can be resumed unless --study names it. Production, logs
and compile caches are never touched. Without a running Ray only this node is looked at.

Exit status: 0 if it could look, and everything to be removed is gone; 1 if something stays.
"""
MAX_DETAIL = 160


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the subcommand ``clean`` and return its parser."""
    parser = subparsers.add_parser(
        "clean",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--yes", action="store_true", help="remove what is not left alone")
    parser.add_argument(
        "--study",
        action="append",
        default=[],
        metavar="ID",
        help="only what is of this study, what a resume needs included; may be repeated",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Look, print, remove if asked; return the exit status.

    Args:
        args: What ``add_parser``'s parser has read.

    Raises:
        ConfigError: Nothing of a named study is there, or a study began meanwhile.
    """
    asked = frozenset(args.study)
    # Ray takes seconds to import; a typing error should not.
    from orchestrator import clean  # noqa: PLC0415

    found = clean.survey(asked)
    _require_known(asked, found)
    lines = format_survey(found.things, found.notes, found.folder)
    sys.stdout.writelines(printed(lines))
    removable = [item for item in found.things if item.is_kept_because is None]
    if not removable:
        return 0 if found.is_whole else 1
    if not args.yes:
        sys.stdout.write(f"nothing was touched; --yes removes the {len(removable)} to be removed\n")
        return 0 if found.is_whole else 1
    left = clean.remove(found, asked)
    gone = "" if left else f"removed {len(removable)}\n"
    sys.stdout.writelines([*printed(f"stays: {text}" for text in left), gone])
    return 0 if found.is_whole and not left else 1


def _require_known(asked: Collection[str], found: Survey) -> None:
    """See that something is there of every study that was named, where all was looked at.

    Raises:
        ConfigError: Nothing is: the id is a slip, or the study ran elsewhere.
    """
    named = {one_line(item.study_id) for item in found.things if item.study_id is not None}
    for study_id in sorted(asked):
        if found.is_whole and one_line(study_id) not in named:
            raise ConfigError(
                "--study", f"nothing of a study '{study_id}' is in {found.folder}"
                + (" or on this Ray" if found.has_ray else " or runs here"),
                "give an id as `clean` without --study shows it, or set SPECPILOT_STATE_DIR",
            )  # fmt: skip


def format_survey(things: Sequence[Leftover], notes: Iterable[str], folder: str) -> list[str]:
    """Return what was found as lines: notes, what may be removed, what is left alone."""
    lines = [*notes, f"state folder: {folder}"]
    for title, part in (
        ("to be removed", [item for item in things if item.is_kept_because is None]),
        ("left alone", [item for item in things if item.is_kept_because is not None]),
    ):
        if part:
            lines += [f"{title}:", *(f"  {_line(item)}" for item in part)]
    if things:
        return lines
    is_all = len(lines) == 1
    found = "nothing is left of any study" if is_all else "nothing was found where it was looked"
    return [*lines, found]


def _line(item: Leftover) -> str:
    study = "" if item.study_id in (None, item.name) else f" of {item.study_id}"
    figures = ", ".join(
        text for text in (item.node, format_size(item.size_bytes), format_age(item.age_s)) if text
    )
    detail = item.detail
    if len(detail) > MAX_DETAIL:
        detail = f"{detail[:MAX_DETAIL]} ..."
    more = f": {detail}" if detail else ""
    why = f" [{item.is_kept_because}]" if item.is_kept_because else ""
    return f"{item.kind} {item.name}{study} ({figures}){more}{why}"


def format_size(size: int | None) -> str:
    """Return bytes in a unit that suits them; empty when they are not told."""
    if size is None:
        return ""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def format_age(age_s: float | None) -> str:
    """Return an age in its two largest units; empty when it is not told."""
    if age_s is None:
        return ""
    minutes = int(age_s // 60)
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days} d {hours} h old"
    return f"{hours} h {minutes % 60} min old" if hours else f"{minutes} min old"
