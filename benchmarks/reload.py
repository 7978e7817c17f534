"""Claim: accounts and certificates change under load, in force within 2 s, and no request is lost.

Clients send one message after the other, plain and over TLS, signed by an account that stays.
Beside them the file of accounts is changed, and the certificate with its key: half of the times in
place, half by renaming another file. Prints how long each change took until it was in force, what
the sends were answered, and how many had no answer or another one than success.

    python benchmarks/reload.py [--changes 1000] [--accounts 100] [--kernel native]

``--accounts 10000 --changes 20`` is the largest file that is taken.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.servers.reloads import Changing

from benchmarks.peers import our_broker
from kerolox.protocol.codes import ResponseCode


def row(name: str, seconds: list[float]) -> str:
    """One line."""
    ordered = sorted(seconds)
    return (
        f"{name:13} {len(seconds):6} changes, in force after {statistics.median(ordered):.2f} s, "
        f"p99 {ordered[int(0.99 * (len(ordered) - 1))]:.2f} s, at most {ordered[-1]:.2f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--accounts", type=int, default=100, help="others in the file")
    parser.add_argument("--kernel", default="native")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as name:
        folder = Path(name)
        changing = Changing(folder / "home", accounts=chosen.accounts)
        settings = [f"{key}={value}" for key, value in changing.settings.items()]
        data = folder / "broker"
        with our_broker(data, chosen.kernel, *settings, home=changing.home) as target:
            seen = changing.run(target.address, chosen.changes)
    lost = len(seen.lost) + seen.answers.total() - seen.answers[ResponseCode.SUCCESS]
    print(row("accounts", seen.accounts_seconds))
    print(row("certificates", seen.certificates_seconds))
    print(
        f"sends         {seen.answers.total():6} answered, {lost} lost, "
        f"the longest wait {seen.longest_seconds * 1000:.0f} ms {dict(seen.answers)} {seen.lost}"
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
