"""Notes of handled messages in Redis, by its client."""

from __future__ import annotations

from typing import Protocol

from kerolox.idempotency.core import Claim, ClaimOutcome, new_token

RETENTION_SECONDS = 7 * 86_400.0

_DONE = "done"
_COMPLETE = """if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2]) return 1 end return 0"""
_RELEASE = """if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1]) end return 0"""


class RedisClient(Protocol):
    """What is asked of ``redis.Redis``."""

    def set(self, name: str, value: str, /, *, px: int, nx: bool) -> object:
        """SET, with a time limit, unless it is there."""

    def get(self, name: str, /) -> object:
        """GET."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: str) -> object:
        """EVAL."""


class RedisProcessed:
    """Notes as keys ``kerolox:processed:GROUP:KEY``, which Redis forgets by itself. What a Redis
    without persistence loses is handled again."""

    def __init__(
        self, client: RedisClient, *, retention_seconds: float = RETENTION_SECONDS
    ) -> None:
        """``client``: of the package redis. ``retention_seconds``: how long a note is kept."""
        self._client = client
        self._retention_ms = int(retention_seconds * 1_000)

    def claim(self, group: str, key: str, lease_seconds: float) -> Claim:
        """See :class:`~kerolox.idempotency.ProcessedMessages`."""
        token, name = new_token(), _name(group, key)
        if self._client.set(name, token, nx=True, px=max(int(lease_seconds * 1_000), 1)):
            return Claim(group, key, token, ClaimOutcome.NEW)
        value = self._client.get(name)
        text = value.decode() if isinstance(value, bytes) else value
        return Claim(group, key, token, ClaimOutcome.DONE if text == _DONE else ClaimOutcome.BUSY)

    def complete(self, claim: Claim) -> bool:
        """See :class:`~kerolox.idempotency.ProcessedMessages`."""
        name = _name(claim.group, claim.key)
        return bool(self._client.eval(_COMPLETE, 1, name, claim.token, str(self._retention_ms)))

    def release(self, claim: Claim) -> None:
        """See :class:`~kerolox.idempotency.ProcessedMessages`."""
        self._client.eval(_RELEASE, 1, _name(claim.group, claim.key), claim.token)


def _name(group: str, key: str) -> str:
    return f"kerolox:processed:{group}:{key}"
