"""JSON that is nested too deeply is refused where any other bad JSON is, and in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.adapters.model_folder import chat_template_digest, read_config
from orchestrator.core.engine_config import reduced_arguments
from orchestrator.errors import ConfigError
from orchestrator.load.answer import parse
from orchestrator.load.workload_card import read_card
from orchestrator.results.files import FACTS_FILE, ReadOptions, read_raw
from serve_apps.audit.records import RecordError, attachment, read_records
from serve_apps.engine.questions import complete_once, get_json

DEEP = '{"a": ' * 100_000


def _facts(folder: Path) -> object:
    (folder / FACTS_FILE).write_text(DEEP)
    blocks = folder / "blocks.json"
    blocks.write_text('[{"cell": "c1"}]')
    return read_raw(blocks, ReadOptions())


def _at(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    def reader(folder: Path) -> object:
        (folder / name).write_text(DEEP)
        return read(folder / name)

    return reader


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (_at("config.json", lambda path: read_config(path.parent, "target.path")), ConfigError),
        (_at("a.card.json", read_card), ConfigError),
        (_facts, ConfigError),
        (_at("audit-1.rows", read_records), RecordError),
        (_at("audit-1.json", lambda path: attachment(path.parent)), RecordError),
        (lambda _: parse(" " + DEEP), ValueError),
        (lambda _: parse(DEEP), ValueError),
    ],
    ids=("model", "card", "facts", "records", "note", "event, indented", "event"),
)
def test_deep_json_is_an_error_of_its_reader(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        read(tmp_path)


def test_deep_json_in_an_engine_argument_is_a_text() -> None:
    assert isinstance(reduced_arguments({"mm_processor_kwargs": DEEP})["mm_processor_kwargs"], str)


def test_deep_json_is_no_chat_template(tmp_path: Path) -> None:
    assert chat_template_digest(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(DEEP)
    assert chat_template_digest(tmp_path) is None


class DeepEngine:
    async def request(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(status=200, body=DEEP.encode())


def test_deep_json_of_an_engine_is_no_answer() -> None:
    http = cast("Any", DeepEngine())

    assert asyncio.run(get_json(http, "/server_info", timeout_s=1.0)) is None
    told = asyncio.run(complete_once(http, model="m", prompt="p", max_tokens=1, timeout_s=1.0))
    assert told is not None
    assert told.startswith("a completion came back without tokens")
