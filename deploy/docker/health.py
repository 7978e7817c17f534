#!/usr/bin/env python3
"""Is the server of this container alive? Exit code 0: yes, 1: no, with the reason.

It asks each URL of ``$KEROLOX_HEALTH``, or those of all roles, of which a container mostly has one:
then whatever answers has to answer well, and something has to.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

SECONDS_MAX = 3.0
OF_ROLES = (
    "http://127.0.0.1:5557/health/live",  # broker
    "http://127.0.0.1:5558/health/live",  # name server
    "http://127.0.0.1:8089/health",  # console
)


def main() -> int:
    """The exit code."""
    given = os.environ.get("KEROLOX_HEALTH", "").split()
    # No proxy that the environment names has to do with this machine's own addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answered = False
    for url in given or OF_ROLES:
        try:
            with opener.open(url, timeout=SECONDS_MAX):
                answered = True
        except urllib.error.HTTPError as error:
            return fail(f"{url}: {error.code}")
        except OSError as error:
            reason = getattr(error, "reason", error)
            if given or not isinstance(reason, ConnectionRefusedError):
                return fail(f"{url}: {reason}")
    return 0 if answered else fail("no role answers on its port of health checks")


def fail(text: str) -> int:
    """Say why."""
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
