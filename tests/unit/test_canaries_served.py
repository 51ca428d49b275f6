"""What a server's own word means, and how a picture and a long prompt are made."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.canaries.long_context import CODE, lines_for, question
from orchestrator.canaries.picture import png
from orchestrator.canaries.served import read_served


def listed(**item: Any) -> dict[str, Any]:
    return {"data": [{"id": "other", "max_model_len": 1}, {"id": "target"} | item]}


def resolved(multimodal: object) -> dict[str, Any]:
    return {"vllm_config": {"model_config": {"multimodal_config": multimodal}}}


@pytest.mark.parametrize(
    ("item", "config", "limit", "images"),
    [
        ({"max_model_len": 4096}, None, 4096, None),
        ({"max_model_len": 4096}, resolved(None), 4096, False),
        ({"max_model_len": 4096}, resolved({"limit_per_prompt": {}}), 4096, True),
        ({}, resolved({"limit_per_prompt": {"image": {"count": 0}}}), None, False),
        ({}, resolved({"limit_per_prompt": {"image": 0}}), None, False),
        ({}, resolved({"limit_per_prompt": {"image": {"count": 4}}}), None, True),
        ({}, resolved({"language_model_only": True}), None, False),
        ({"context_length": 9}, None, 9, None),
        ({"input_modalities": ["text"]}, resolved({}), None, False),
        ({"architecture": {"input_modalities": ["text", "image"]}}, None, None, True),
        ({"capabilities": ["completion", "multimodal"]}, None, None, True),
        ({"max_model_len": "4096", "capabilities": "all"}, {"vllm_config": []}, None, None),
        ({"max_model_len": -1, "architecture": None}, [], None, None),
    ],
)
def test_read_served_understands_the_forms_of_servers(
    item: dict[str, Any], config: object, limit: int | None, images: bool | None
) -> None:
    served = read_served("target", listed(**item), config)

    assert (served.max_model_len, served.takes_images) == (limit, images)
    assert bool(served.source) is (images is not None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["data", "id", "vllm_config", "model_config", "multimodal_config"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_read_served_of_any_json_is_no_error(models: object, config: object) -> None:
    read_served("target", models, config)


def test_png_is_a_square_of_the_colour_with_right_checksums() -> None:
    picture, parts = png((10, 20, 30), side=3), {}
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    start = 8
    while start < len(picture):
        (size,) = struct.unpack(">I", picture[start : start + 4])
        kind, data = picture[start + 4 : start + 8], picture[start + 8 : start + 8 + size]
        (checksum,) = struct.unpack(">I", picture[start + 8 + size : start + 12 + size])
        assert checksum == zlib.crc32(kind + data)
        parts[kind] = data
        start += 12 + size

    assert struct.unpack(">II", parts[b"IHDR"][:8]) == (3, 3)
    assert zlib.decompress(parts[b"IDAT"]) == (b"\0" + bytes((10, 20, 30)) * 3) * 3
    assert parts[b"IEND"] == b""


@given(st.integers(1, 60), st.integers(0, 400), st.integers(600, 200_000))
def test_lines_for_two_measured_prompts_hits_the_length(
    per_line: int, rest: int, tokens: int
) -> None:
    def length(lines: int) -> int:
        return rest + per_line * lines

    second = lines_for(1000, (4, length(4)))
    assert second >= 8
    lines = lines_for(tokens, (4, length(4)), (second, length(second)))

    assert lines == 0 or tokens - per_line < length(lines) <= tokens
    assert lines > 0 or tokens < length(1)


def test_long_question_holds_its_code_once_and_asks_for_it() -> None:
    ask = question(200)
    text = str(ask.messages[0]["content"])

    assert text.count(CODE) == 1
    assert 0 < text.index(CODE) < 0.2 * len(text)
    assert text.index("What is the code") > 0.9 * len(text)
    assert json.dumps(text).isascii()
