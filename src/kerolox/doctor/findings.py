"""What the doctor may find: each kind has a code, which never changes, and a severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad it is; a greater one is worse."""

    NOTE = 0
    """Something could not be examined. No sign of illness."""
    WARNING = 1
    """It works, and will hurt."""
    ERROR = 2
    """Clients fail, wait or lose something."""


_SEVERITIES: Mapping[Severity, str] = {
    Severity.ERROR: """
        name-unknown unreachable not-rocketmq silent not-a-name-server tls-needed tls-not-spoken
        tls-expired tls-not-yet-valid tls-unknown-authority tls-wrong-name tls-refused
        account-refused name-servers-differ no-broker no-master two-brokers-of-one-name
        not-registered address-of-another advertised-loopback vip-port-clash disk-full
        open-files-exhausted sends-not-accepted no-slave slave-not-following
        subscriptions-differ client-ids-clash group-pulls-and-pops
        queue-stuck ordered-queue-stuck queue-without-owner queues-not-read messages-in-lost-queues
        setting-unknown setting-wrong controller-silent controller-no-leader controller-failed
        controller-put-back controller-behind set-without-master
    """,
    Severity.WARNING: """
        tls-expires-soon ipv6-half address-families-differ routes-differ order-differs
        vip-port-closed versions-differ version-unsafe clock-off disk-cleaning disk-filling
        disk-full-soon
        dispatch-behind sends-wait map-limit-low open-files-low broker-permission long-polling-off
        ha-heartbeats-rare settings-differ slave-behind group-offline group-paused dead-letters
        popped-for-long pops-behind fifo-not-in-order retries-dropped timer-behind timer-ahead
        setting-without-effect setting-not-in-force setting-twice settings-contradict
        account-doubtful secret-readable check-failed grpc-unreachable grpc-clients-denied
        dedup-window-cut dedup-window-off controller-alone controller-learning set-of-one
    """,
    Severity.NOTE: "not-looked-at no-name-server",
}

CODES: Mapping[str, Severity] = {
    code: severity for severity, codes in _SEVERITIES.items() for code in codes.split()
}
"""Code → severity of all kinds; ``docs/guides/doctor.md`` explains them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    code: str
    """One of :data:`CODES`."""
    where: str
    """An address, a group, a file ..."""
    what: str
    """What is wrong there."""
    advice: str
    """What to do next."""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"{self.code!r} is no kind of finding")

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return CODES[self.code]


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Each finding once, errors first, those of one place together."""
    return sorted(dict.fromkeys(findings), key=lambda each: (-each.severity, each.where, each.code))
