"""Who a request is from, and whether it may come in."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from serve_apps.router.keys import OPEN, KeyRing, KeysError, bearer
from serve_apps.router.policy import APP_HEADER, HEALTH, OWN_HEADER, Refusal

logger = logging.getLogger(__name__)

_CHALLENGE = 'Bearer realm="specpilot"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks."""

    is_own: bool
    """Whether it is specpilot itself: no place is kept for it, and it is in no record."""
    pinned: str | None
    """Engine application that it wants and no other."""


class Gate:
    """Tells clients with a key, specpilot itself, and others apart.

    specpilot proves itself by a token of this process, which is handed out over Ray alone. It needs
    no client's key, so a driver that cannot read the keys can still promote and go back.
    """

    def __init__(self) -> None:
        self.own_token = secrets.token_urlsafe(32)
        self._keys = KeyRing(OPEN)

    def take_keys(self, source: str) -> None:
        """Take another source of keys; the same one keeps what was read.

        Raises:
            ValueError: It is no source.
        """
        if source != self._keys.source:
            self._keys = KeyRing(source)

    def visitor(
        self, path: str, headers: Mapping[str, str], engines: Collection[str]
    ) -> Visitor | Refusal:
        """Return who asks, or why nobody may.

        Args:
            path: Below the route; ``/health`` is open.
            headers: By lower-case name.
            engines: Engine applications that a client may pin where no key is asked for.
        """
        shown, pinned = headers.get(OWN_HEADER), headers.get(APP_HEADER)
        is_own = shown is not None and hmac.compare_digest(
            shown.encode(errors="replace"), self.own_token.encode()
        )
        if not self._keys.is_open:
            if path == HEALTH and not is_own:
                return Visitor(is_own=False, pinned=None)
            refused = self._refusal(bearer(headers.get("authorization")), is_own=is_own)
            if refused is not None:
                return refused
            if pinned is not None and not is_own:
                return Refusal(403, f"{APP_HEADER} is not for clients", "forbidden")
        if pinned is not None and not is_own and pinned not in engines:
            # A trial's engine, say, whose measurement must not meet a client.
            return Refusal(404, f"{APP_HEADER} names no engine that serves here")
        return Visitor(is_own=is_own, pinned=pinned)

    def _refusal(self, key: str | None, *, is_own: bool) -> Refusal | None:
        try:
            # Asked for our own requests too: a promotion must not pass a route that refuses all.
            is_known = self._keys.holds(key or "")
        except KeysError:
            return Refusal(503, "the router cannot read its API keys; its log says why")
        if is_known or is_own:
            return None
        if key is None:
            text, detail = "an API key is missing: Authorization: Bearer KEY", ""
        else:
            text, detail = "the API key is not one of this service's", ', error="invalid_token"'
        return Refusal(
            401, text, "invalid_api_key", headers={"WWW-Authenticate": _CHALLENGE + detail}
        )
