"""What the router's specification lets clients send, and does not, by schemathesis."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)

from infra.fuzz.router_app import SPEC
from infra.fuzz.router_site import (
    KEY,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    MODEL,
    Site,
    serving,
)
from infra.fuzz.target import Target
from serve_apps.router.policy import APP_HEADER, HEALTH, OWN_HEADER, VERSION_HEADER

DEADLINE_S = 20.0
"""Of one answer; nothing here takes time."""
_CHECKS = [
    # Not that what the schema excludes is refused, nor that what it has is taken: the router
    # leaves all but the JSON object to the engine.
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
_HEADERS: tuple[dict[str, str], ...] = (
    {APP_HEADER: "engine-v1"}, {APP_HEADER: ""}, {OWN_HEADER: "x"}, {OWN_HEADER: "\u00e9"},
    {"cookie": "a=b"}, {"x-long": "a" * 3_000}, {"x-high": "\u00ff" * 9}, {"te": "trailers"},
    {"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-16"},
    {"content-type": ""}, {"content-type": "multipart/form-data"}, {"content-encoding": "gzip"},
    {"accept": "text/event-stream"}, {"accept": "image/png"}, {"accept-encoding": "gzip, br"},
    {"host": "["}, {"connection": "close"}, {"connection": "upgrade", "upgrade": "h2c"},
    {"range": "bytes=0-1"}, {"if-none-match": "*"}, {"x-http-method-override": "DELETE"},
)  # fmt: skip
"""Not those that say how long the body is: then it is the sender that waits."""
_AUTHORIZATIONS = (f"bearer {KEY}", f"Bearer  {KEY} ", "Bearer x", KEY, "Basic YTpi", "Bearer", "")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: a case of schemathesis, and headers that are set beside its own."""

    case: Case[Any]
    headers: Mapping[str, str]


def spec_target() -> Target:
    """Return requests within and beside the router's specification, to a running router."""
    asker = _Asker()
    return Target(
        name="router by its spec", make=_make, check=asker.check, cost=100, close=asker.close
    )


@cache
def _document() -> dict[str, Any]:
    return dict(json.loads(SPEC.read_text(encoding="utf-8")))


@cache
def _schema() -> schemathesis.BaseSchema:
    # A configuration of its own: else one would be looked for in the folders above.
    return schemathesis.openapi.from_dict(_document(), config=schemathesis.Config())


@cache
def _operations() -> list[Any]:
    return [each.ok() for each in _schema().get_all_operations() if isinstance(each, Ok)]


@cache
def edges() -> list[Case[Any]]:
    """Return schemathesis' own list: each field of each wrong type, missing ones, other methods."""
    modes, generation = list(GenerationMode), _schema().config.generation
    return [
        case
        for operation in _operations()
        for case in _schema().iter_coverage_cases(
            operation, generation_modes=modes, generation_config=generation
        )
    ]


@cache
def _strategy(operation: Any, mode: GenerationMode) -> Any:
    return operation.as_strategy(generation_mode=mode)


def _drawn(source: random.Random) -> Case[Any]:
    with_body = [each for each in _operations() if each.method == "post"]
    operation = source.choice(with_body)
    mode = source.choice(list(GenerationMode))
    kept: list[Case[Any]] = []

    # The first example of hypothesis is the plainest one, whatever the seed.
    @seed(source.getrandbits(64))
    @settings(
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_strategy(operation, mode))
    def draw(case: Case[Any]) -> None:
        kept.append(case)

    draw()
    case = kept[-1]
    if isinstance(case.body, dict):
        _make_likely(case.body, source)
    return case


def _make_likely(body: dict[str, Any], source: random.Random) -> None:
    """Give a body now and then what an engine needs to answer it."""
    if source.random() < 0.6:
        body["model"] = MODEL
    if source.random() < 0.5 and isinstance(body.get("messages"), list):
        body["messages"] = [{"role": "user", "content": str(each)} for each in body["messages"]]
    if source.random() < 0.3:
        body["stream_options"] = source.choice(({"include_usage": True}, None, {}, [], "x", 3))
    if source.random() < 0.3:
        body["stream"] = source.choice((True, True, False, None, "yes", 0))


def _make(source: random.Random) -> Asked:
    case = source.choice(edges()) if source.random() < 0.25 else _drawn(source)
    headers = dict(source.choice(_HEADERS)) if source.random() < 0.2 else {}
    if source.random() < 0.85:
        headers["authorization"] = f"Bearer {KEY}"
    elif source.random() < 0.5:
        headers["authorization"] = source.choice(_AUTHORIZATIONS)
    return Asked(case, headers)


class _Asker:
    """A site and what asks it, both from the first check on."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._found: tuple[Site, requests.Session] | None = None

    def check(self, asked: Asked) -> str | None:
        """Return what is wrong with the answer, or with an honest client's after it, or None."""
        if self._found is None:
            site = self._stack.enter_context(serving())
            session = self._stack.enter_context(requests.Session())
            session.trust_env = False
            self._found = site, session
        site, session = self._found
        return fault_of(site, session, asked) or honest_fault(site, session)

    def close(self) -> None:
        """End the site."""
        self._found = None
        self._stack.close()


def fault_of(site: Site, session: requests.Session, asked: Asked) -> str | None:
    """Ask and return what is wrong with the answer, or None.

    Args:
        site: What is asked.
        session: What asks.
        asked: The request.
    """
    answer = _sent(session, site.routed, asked)
    return (
        _unlike_the_spec(asked, answer)
        or _unlike_what_is_due(asked, answer)
        or _unlike_the_engine(site, session, asked, answer)
    )


def _sent(session: requests.Session, base_url: str, asked: Asked) -> requests.Response:
    ready = asked.case.as_transport_kwargs(base_url=base_url)
    headers = {name: value.encode("latin-1") for name, value in asked.headers.items()}
    ready["headers"] = {**ready["headers"], **headers}
    # Not by the case itself: that reads no more than the first events of a stream.
    return session.request(**ready, timeout=DEADLINE_S, allow_redirects=False)


def _unlike_the_spec(asked: Asked, answer: requests.Response) -> str | None:
    try:
        asked.case.validate_response(answer, checks=_CHECKS)
    except FailureGroup as group:
        return "; ".join(f"{each.title}: {each.message}" for each in group.exceptions)
    return None


def _due(sent: requests.PreparedRequest) -> int | None:
    """Return the status with which the router has to refuse a request; None for none."""
    path, body = urlsplit(sent.url or "").path, _bytes(sent.body)
    headers = {name.lower(): _text(value) for name, value in sent.headers.items()}
    methods = _document()["paths"].get(str(path), {})
    size = sum(len(name) + len(value) + 4 for name, value in headers.items())
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if size > MAX_HEADER_BYTES:
        return 431
    if (sent.method or "").lower() not in methods:
        return 405
    if path == HEALTH:
        return None
    if scheme.lower() != "bearer" or key.strip() != KEY:
        return 401
    if APP_HEADER in headers:
        return 403
    return _due_of_body(body) if sent.method == "POST" else None


def _due_of_body(body: bytes) -> int | None:
    if len(body) > MAX_BODY_BYTES:
        return 413
    try:
        return None if isinstance(json.loads(body), dict) else 400
    except (ValueError, RecursionError):
        return 400


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _unlike_what_is_due(asked: Asked, answer: requests.Response) -> str | None:
    due, is_engines = _due(answer.request), VERSION_HEADER in answer.headers
    if answer.status_code >= 500:
        return f"{answer.status_code} where nothing is amiss: {answer.content!r:.200}"
    if is_engines is not (due is None):
        who = "engine" if is_engines else "router"
        return f"{answer.status_code} by the {who}, due is {due}: {answer.content!r:.200}"
    if due is None:
        return None
    if answer.status_code != due:
        return f"{answer.status_code}, due is {due}"
    if due == 405:
        allowed = [each.upper() for each in _document()["paths"][asked.case.path]]
        if answer.headers.get("allow") != ", ".join(allowed):
            return f"405 allows {answer.headers.get('allow')} in place of {allowed}"
    elif str(due) not in asked.case.operation.definition.raw["responses"]:
        return f"{due} is not named by the specification"
    if answer.request.method != "HEAD" and not answer.json()["error"]["message"].isprintable():
        return f"no printable message: {answer.content!r:.200}"
    return None


def _unlike_the_engine(
    site: Site, session: requests.Session, asked: Asked, answer: requests.Response
) -> str | None:
    """Return what the router made of an engine's answer, or counted in it, that is not so."""
    if VERSION_HEADER not in answer.headers:
        return None
    record = site.last_record()
    kept = {name: text for name, text in asked.headers.items() if name != "content-encoding"}
    direct = _sent(session, site.direct, replace(asked, headers=kept))
    if (answer.status_code, _kind(answer)) != (direct.status_code, _kind(direct)):
        return f"{answer.status_code} {_kind(answer)}, the engine says {direct.status_code}"
    if not (answer.ok and (answer.request.url or "").partition("?")[0].endswith("/completions")):
        return None
    usage, own, counted = _usage(answer), _usage(direct), (record or {}).get("output_tokens")
    if usage != own:
        return f"usage is {usage}, the engine's {own}"
    # A stream that does not say it has a token in each event but the one that names the speaker.
    told = usage["completion_tokens"] if usage is not None else len(_with_answer(answer))
    return None if counted == told else f"{counted} tokens are recorded of {told}"


def _kind(answer: requests.Response) -> str:
    return answer.headers.get("content-type", "")


def _events(answer: requests.Response) -> Sequence[dict[str, Any]]:
    texts = answer.content.split(b"\n\n")
    return [json.loads(text[6:]) for text in texts if text.startswith(b"data: {")]


def _with_answer(answer: requests.Response) -> list[dict[str, Any]]:
    choices = [choice for event in _events(answer) for choice in event["choices"]]
    return [choice for choice in choices if "role" not in choice.get("delta", {})]


def _usage(answer: requests.Response) -> dict[str, Any] | None:
    """Return an answer's counts, None where it has none."""
    if not _kind(answer).startswith("text/event-stream"):
        return dict(answer.json()["usage"])
    found = [event["usage"] for event in _events(answer) if "usage" in event]
    return dict(found[-1]) if found else None


_HONEST: dict[str, Any] = {
    "model": MODEL, "prompt": "one two three", "max_tokens": 5, "temperature": 0, "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


def honest_fault(site: Site, session: requests.Session) -> str | None:
    """Return what is wrong with an honest client's stream, or None.

    It has all its tokens, they are recorded as what they are, and it finds all places free.
    """
    site.last_record()  # until what was before has left its place
    answer = session.post(
        f"{site.routed}/v1/completions",
        json=_HONEST,
        headers={"authorization": f"Bearer {KEY}"},
        timeout=DEADLINE_S,
    )
    if answer.status_code != 200 or not answer.content.endswith(b"data: [DONE]\n\n"):
        return f"an honest client is answered {answer.status_code}: {answer.content!r:.200}"
    record, usage = site.last_record() or {}, _usage(answer) or {}
    found = (len(_with_answer(answer)), usage.get("completion_tokens"), record.get("output_tokens"))
    if found != (5, 5, 5):
        return f"an honest client gets {found} tokens of 5"
    if record.get("streams_at_start") != 1:
        return f"{record.get('streams_at_start')} places are taken by one client"
    return None
