from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.fakes.openai import SseServer, serving


@pytest.fixture
def sse_server() -> Iterator[SseServer]:
    with serving() as server:
        yield server
