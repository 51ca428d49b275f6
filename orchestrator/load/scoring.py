"""Tokens of one server and their probabilities by another, over HTTP, as whole answers.

Nothing is timed here: what is wanted are token ids and probabilities, all of them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import aiohttp

from orchestrator.core.lines import folded
from orchestrator.core.secrecy import hide_key
from orchestrator.errors import ConfigError, MeasurementError, TransientError
from orchestrator.load.answer import error_message, shorten
from orchestrator.load.call import Call, request_body
from orchestrator.load.client import (
    MAX_ERROR_BODY_BYTES,
    NO_ROOM,
    HttpClient,
    check_api_key,
    new_session,
    server_root,
)
from orchestrator.load.token_answers import Sample, Scores, parse_sample, parse_scores

MAX_ANSWER_BYTES = 512 << 20
"""Longest answer that is read. A probability has some 70 bytes in JSON: 64 of each of 8,192 tokens
are 37 MB, a whole vocabulary of 250,000 for one token 18 MB."""

NUM_ATTEMPTS = 5
"""How often a request is made that finds no server, no room or no answer."""

PROBE = tuple(range(1, 17))
"""A text to ask with: ids that every vocabulary has. Not shorter: vLLM 0.32.0 on a CPU in bfloat16
was seen to die of a prompt of two tokens when that was its first request."""

_ALLOWED = re.compile(r"prompt logprobs of \d+.*max allowed: (\d+)")
"""vLLM's refusal of more prompt_logprobs than its --max-logprobs."""


_T = TypeVar("_T")


class Refused(MeasurementError):  # noqa: N818  named by what happened
    """The server refuses this request and would again, with status 4xx."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenServer:
    """A server and what it is to the test."""

    base_url: str
    """With or without ``/v1``."""
    model: str
    name: str
    """For messages: ``the arm`` or ``the control``."""
    api_key: str | None = field(default=None, repr=False)


class TokenClient(HttpClient):
    """Asks one server for tokens and for probabilities.

    Args:
        server: Which one.
        timeout_s: Longest time of one request.
        wait_s: Before a request is made again; twice as long each time.

    Raises:
        ConfigError: The address is none of HTTP, or the key cannot be sent.
    """

    def __init__(
        self, server: TokenServer, *, timeout_s: float = 600.0, wait_s: float = 0.5
    ) -> None:
        self._url = server_root(server.base_url) + "/v1"
        if server.api_key is not None:
            check_api_key(server.api_key, "api_key")
        self.server = server
        self._timeout_s = timeout_s
        self._wait_s = wait_s

    async def __aenter__(self) -> Self:
        """Open the connection pool; how many requests there are at a time is the caller's."""
        key = self.server.api_key
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._session = new_session(aiohttp.ClientTimeout(total=self._timeout_s), headers)
        return self

    async def sample(self, call: Call, *, num_logprobs: int = 0) -> Sample:
        """Return the tokens of an answer.

        Args:
            call: Of the completions endpoint, in vLLM's dialect.
            num_logprobs: Of how many of the likeliest tokens to say the probability that they had
                when the answer was sampled.

        Raises:
            Refused: The server takes no such request, for example a prompt that is too long.
            MeasurementError: The answer has no tokens, or contradicts itself.
            TransientError: There is no answer, however often one asks.
        """
        body = request_body(call)
        del body["stream_options"]
        body |= {"stream": False, "return_token_ids": True}
        if num_logprobs:
            body |= {"logprobs": num_logprobs, "return_tokens_as_token_ids": True}
        answer = await self._ask(body)
        return _named(
            f"{self.server.name}, prompt {call.prompt_id}",
            lambda: parse_sample(answer, num_logprobs=num_logprobs),
        )

    async def score(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], *, num_top: int
    ) -> Scores:
        """Return the probabilities of an answer's tokens, each given all before it.

        The text is sent as a prompt: a prefill, which does not speculate whatever the server does.

        Args:
            prompt_ids: Tokens before the answer, at least one.
            output_ids: Tokens of the answer, at least one.
            num_top: How many of the likeliest tokens; ``WHOLE`` for the vocabulary.

        Raises:
            Refused: The server takes no such request.
            MeasurementError: The probabilities are missing, of other tokens, or contradictory.
            TransientError: There is no answer, however often one asks.
        """
        sent = [*prompt_ids, *output_ids]
        answer = await self._ask(self._score_body(sent, num_top))
        return _named(
            self.server.name,
            lambda: parse_scores(answer, sent=sent, num_output=len(output_ids), num_top=num_top),
        )

    async def widest_top(self, wanted: int) -> int:
        """Return how many ``prompt_logprobs`` the server gives, ``wanted`` at most.

        Raises:
            ConfigError: It gives none, or what it gives cannot be read; no token was sampled.
            TransientError: There is no answer, however often one asks.
        """
        num_top = wanted
        for _ in range(2):
            try:
                await self.score(PROBE[:1], PROBE[1:], num_top=num_top)
            except Refused as error:
                allowed = _ALLOWED.search(str(error))
                if allowed is None or int(allowed[1]) < 1:
                    raise self._cannot_score(str(error)) from error
                num_top = int(allowed[1])
            except MeasurementError as error:
                raise self._cannot_score(str(error)) from error
            else:
                return num_top
        raise self._cannot_score(f"it allows {num_top} prompt_logprobs and then refuses them")

    async def max_model_len(self) -> int | None:
        """Return the longest prompt and answer together, in tokens; None where it is not said.

        Raises:
            TransientError: There is no answer, however often one asks.
        """
        try:
            found = await self._ask(None)
        except Refused:
            return None  # some proxies list no models
        items = found.get("data")
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("id") == self.server.model:
                length = item.get("max_model_len")
                return length if type(length) is int else None
        return None

    def _cannot_score(self, problem: str) -> ConfigError:
        return ConfigError(
            "control_url", f"cannot score tokens: {problem}",
            "use a vLLM server of the target without speculation, with --max-logprobs -1 or 64",
        )  # fmt: skip

    def _score_body(self, sent: Sequence[int], num_top: int) -> dict[str, Any]:
        return {
            "model": self.server.model,
            "prompt": list(sent),
            # One token is the fewest that vLLM generates.
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": num_top,
            "return_token_ids": True,
        }

    async def _ask(self, body: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer to a completion's body, or the list of models where there is none."""
        data = None if body is None else json.dumps(body).encode()
        problem = ""
        for attempt in range(NUM_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._wait_s * 2 ** (attempt - 1))
            try:
                return await self._request(data)
            except TransientError as error:
                problem = str(error)
            except TimeoutError:
                problem = f"no answer within {self._timeout_s:g} s"
            except (aiohttp.ClientError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
        shown = shorten(folded(hide_key(problem, self.server.api_key)))
        raise TransientError(f"{self.server.name}: {shown} ({NUM_ATTEMPTS} attempts)")

    async def _request(self, data: bytes | None) -> dict[str, Any]:
        assert self._session is not None
        method, path = ("GET", "/models") if data is None else ("POST", "/completions")
        async with self._session.request(
            method,
            self._url + path,
            data=data,
            headers={"Content-Type": "application/json"},
            # To another address would be to test another server.
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                await self._raise_status(response)
            text = await self._read(response, MAX_ANSWER_BYTES)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeasurementError(
                f"{self.server.name}: the answer is not JSON: {error}"
            ) from error
        if not isinstance(found, dict):
            raise MeasurementError(f"{self.server.name}: the answer is no JSON object")
        return found

    async def _raise_status(self, response: aiohttp.ClientResponse) -> None:
        text = await self._read(response, MAX_ERROR_BODY_BYTES, is_error=True)
        said = hide_key(error_message(text.decode(errors="replace")), self.server.api_key)
        message = f"HTTP {response.status}: {shorten(folded(said))}"  # half a key would be shown
        if response.status in NO_ROOM or response.status >= 500:
            raise TransientError(message)
        raise Refused(f"{self.server.name}: {message}")

    async def _read(
        self, response: aiohttp.ClientResponse, limit: int, *, is_error: bool = False
    ) -> bytes:
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > limit:
                if is_error:
                    break
                raise MeasurementError(
                    f"{self.server.name}: an answer has more than {limit >> 20} MiB: ask for "
                    "fewer prompt_logprobs or shorter answers"
                )
        return bytes(body)


def _named(name: str, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except MeasurementError as error:
        raise MeasurementError(f"{name}: {error}") from error
