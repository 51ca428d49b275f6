"""Whatever stands in an option of any command is taken or refused in a line, and nothing starts."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator import cli, commands
from orchestrator.adapters import http_metrics
from orchestrator.config import CONF_DIR, StudyConfig
from orchestrator.core.forecast import Forecast, ForecastRow
from orchestrator.errors import ConfigError

Captured = pytest.CaptureFixture[str]
STUDY = str(CONF_DIR / "study" / "demo.yaml")
NOBODY = "http://127.0.0.1:1"
"""Nothing listens on port 1."""
MANY = "9" * 5000
"""More digits than Python makes a number of."""
NUMBERS = ("1e308", "1e400", "nan", "inf", "-inf", "-1", "0", MANY[:400], MANY, f"-{MANY[:400]}")
TEXTS = (
    *("", " ", ",", "=", MANY, "x" * 5000, "a\nb", "a\x1b[2Jb", "a\0b"),
    *("\N{SUPERSCRIPT TWO}", "\udcff"),
)
STATUSES = {0, 1, 2, 3}


def grammars() -> dict[str, argparse.ArgumentParser]:
    """Return the grammar of each command by the words that name it."""
    return dict(_below(cli.parser(), ()))


def _below(
    grammar: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [a for a in grammar._actions if isinstance(a, argparse._SubParsersAction)]
    for group in groups:
        for name, below in group.choices.items():
            yield from _below(below, (*words, name))
    if not groups:
        yield " ".join(words), grammar


def options() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield every command with each option or place that takes a value, and what is typed there."""
    seen = set()
    for command, grammar in grammars().items():
        for action in grammar._actions:
            name = (action.option_strings or [action.dest])[-1]
            is_common = name in ("study", "overrides") and name in seen
            seen.add(name)
            if action.nargs != 0 and action.choices is None and not is_common:
                is_number = action.type not in (None, Path)
                yield command, name, NUMBERS if is_number else TEXTS


def typed(command: str, option: str, value: str, folder: Path) -> list[str]:
    """Return a command line with what a command needs and one value of somebody's."""
    known = {
        "study": STUDY, "overrides": "load.block_s=3", "url": NOBODY, "control_url": NOBODY,
        "format": "text", "out": str(folder / "out.jsonl"),
    }  # fmt: skip
    line = command.split()
    for action in grammars()[command]._actions:
        is_place = not action.option_strings
        name = action.dest if is_place else action.option_strings[-1]
        if name == option:
            line += [value] if is_place else [f"{name}={value}"]
        elif action.required and action.dest != "overrides":
            given = known.get(action.dest, str(folder / "none"))
            line += [given] if is_place else [f"{name}={given}"]
    return line


def nobody_serves(_base: str, **_options: object) -> list[str]:
    raise ConfigError("url", "no server answers", "start one")


def nothing_is_simulated(*_asked: object) -> Forecast:
    row = ForecastRow(num_nodes=1, boots=1.0, hours=1.0, hours_9_of_10=1.0)
    return Forecast(
        rows=(row,), num_studies=1, best=1.0, near=1.0, loss=None, tolerance=0.01,
        cut_at_boots=None, assumption="",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be reached: no Ray, no MLflow, no server; and no study is simulated."""
    monkeypatch.setattr(http_metrics, "served_models", nobody_serves)
    monkeypatch.setattr(commands, "forecast", nothing_is_simulated)
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "option", "values"), [*options()])
def test_any_value_of_an_option_is_taken_or_refused_in_a_line(
    command: str, option: str, values: tuple[str, ...], tmp_path: Path, capsys: Captured
) -> None:
    for value in values:
        line = typed(command, option, value, tmp_path)
        try:
            status: object = cli.main(line)
        except SystemExit as left:
            status = left.code
        said = capsys.readouterr().err

        assert status in STATUSES, (line, status)
        assert "Traceback" not in said, (line, said)
        told = [text for text in said.splitlines() if "error: " in text]
        assert len(told) == (status == 2), (line[:8], said[:2000])
        assert all(text.isprintable() and len(text) < 4000 for text in told), line
    assert not (tmp_path / "state").exists()


def numbers_of(kind: type[Any], key: str = "") -> Iterator[str]:
    """Yield the dotted keys of all numbers of a configuration; those of lists with their length."""
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        yield from _numbers_in(hints[item.name], f"{key}{item.name}")


def _numbers_in(hint: Any, key: str) -> Iterator[str]:
    arguments = [one for one in typing.get_args(hint) if one not in (type(None), Ellipsis)]
    if hint in (int, float):
        yield key
    elif is_dataclass(hint) and isinstance(hint, type):
        yield from numbers_of(hint, f"{key}.")
    elif typing.get_origin(hint) is tuple and arguments[0] in (int, float):
        yield f"{key}[{len(arguments)}]"
    elif typing.get_origin(hint) in (types.UnionType, typing.Union):
        yield from _numbers_in(arguments[0], key)


@pytest.mark.parametrize("key", [*numbers_of(StudyConfig)])
def test_any_number_of_a_study_is_taken_or_refused_in_a_line(
    key: str, capsys: Captured, tmp_path: Path
) -> None:
    name, _, length = key.rstrip("]").partition("[")
    for value in ("1e308", "nan", "-inf", "0", MANY[:400]):
        given = f"[{','.join([value] * int(length))}]" if length else value
        status = cli.main(["plan", STUDY, f"{name}={given}"])
        said = capsys.readouterr()

        assert status in (0, 2), (name, value[:20], said.err[-2000:])
        assert len(said.err.splitlines()) == (status == 2), (name, value[:20], said.err[-2000:])
        assert all(len(line) < 1000 for line in (said.out + said.err).splitlines())
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "key",
    [
        *(f"load.{name}_s" for name in ("block", "request_timeout", "stall_timeout")),
        *(f"engine.{name}_s" for name in ("expected_boot", "boot_timeout", "stop_timeout")),
        *("load.block_silence_s", "policy.canary_s", "policy.soak_s", "production.deadline_s"),
    ],
)
def test_time_of_more_than_a_day_was_meant_in_other_units(key: str, capsys: Captured) -> None:
    assert cli.main(["plan", STUDY, f"{key}=86400"]) == 0
    capsys.readouterr()

    assert cli.main(["plan", STUDY, f"{key}=86401"]) == 2
    assert f"{key}: 86401 is not " in capsys.readouterr().err
