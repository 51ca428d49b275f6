"""HTTP client of one engine on its node's loopback interface, for its supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

HttpError = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What a request to an engine that is not (yet, any more) there raises."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status and body."""

    status: int
    body: bytes


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without those that concern one connection only."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


class EngineHttp:
    """Requests to one engine; the session is made in the loop that first uses it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # No limit on connections: the engine does the queueing, and no environment proxies:
            # this is loopback.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self, method: str, path: str, *, timeout_s: float, body: dict[str, Any] | None = None
    ) -> Answer:
        """Return a whole answer.

        Raises:
            HttpError: One of its members, when there is none within `timeout_s`.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._open().request(
            method, self.base_url + path, json=body, timeout=timeout
        ) as response:
            return Answer(response.status, await response.read())

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[tuple[int, dict[str, str], AsyncIterator[bytes]]]:
        """Open a request and yield (status, headers, chunks as the engine sent them).

        Leaving the context before the last chunk closes the connection, which makes the engine
        abort the request.
        """
        async with self._open().request(
            method,
            self.base_url + path,
            headers=end_to_end(headers),
            data=body or None,
            allow_redirects=False,
        ) as response:
            yield response.status, end_to_end(response.headers), _chunks(response)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the body chunk by chunk, as framed by the sender: one SSE event stays one chunk."""
    parts: list[bytes] = []
    async for data, ends_chunk in response.content.iter_chunks():
        parts.append(data)
        if ends_chunk:
            whole = b"".join(parts)
            parts.clear()
            if whole:
                yield whole
    rest = b"".join(parts)
    if rest:
        yield rest
