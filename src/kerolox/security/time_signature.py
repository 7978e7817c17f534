"""The header ``authorization`` of gRPC clients: an account, and the HMAC-SHA1 of the header
``x-mq-date-time`` alone (``MQv2-HMAC-SHA1``).

Nothing else of a call is signed, so whoever reads a call can repeat its signature: TLS protects it.
The time is a text: clients write it in local time, in UTC, and in several forms.
"""

from __future__ import annotations

import hmac

HEADER_CHARACTERS_MAX = 4_096


class TimeSignatureError(ValueError):
    """The header is malformed."""


def parse_authorization(header: str) -> tuple[str, bytes]:
    """Access key and signature. The key is empty where a client has no credentials.
    TimeSignatureError: the header is none of this kind.
    """
    if len(header) > HEADER_CHARACTERS_MAX:
        raise TimeSignatureError(f"authorization has more than {HEADER_CHARACTERS_MAX} characters")
    _, _, text = header.strip().partition(" ")
    members: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign:
            raise TimeSignatureError("authorization has a member without a value")
        members[name] = value
    # Behind the key some clients name a region and a service.
    access_key = members.get("Credential", "").partition("/")[0]
    try:
        return access_key, bytes.fromhex(members.get("Signature", ""))
    except ValueError:
        raise TimeSignatureError("the Signature of authorization is not hexadecimal") from None


def is_signed_by(secret_key: str, date_time: str, signature: bytes) -> bool:
    """Whether the holder of a secret signed a time."""
    made = hmac.digest(secret_key.encode("utf-8", "replace"), date_time.encode(), "sha1")
    return bool(date_time) and hmac.compare_digest(made, signature)
