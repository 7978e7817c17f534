"""Claim: at 100 MB/s of 1 KiB for a minute, default flush: p99.9 of 5 ms, memory that stays.

The load generator sends at a fixed rate, and counts each latency from when its message was due. The
broker's own memory (``RssAnon``) is examined all the while; its maps of files are page cache.

    python benchmarks/steady.py [--seconds 60] [--megabytes 100] [--broker native|python|java]
        [--folder /tmp] [--setting transientStorePoolEnable=true] [--cold]

The page cache is filled first, unless ``--cold`` (see ``against_java.py``). Wants 9 GB of free
disk. Exits with 1 below the floor.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.against_java import fill_page_cache
from benchmarks.peers import build_loadgen, java_broker, our_broker

BODY_BYTES = 1_024
P999_US_MAX = 5_000
GROWTH_BYTES_MAX = 16 << 20
"""RssAnon may be so much larger at the end than after the first quarter."""
SAMPLE_SECONDS = 0.5
# The run fills a good part of a small disk: what that does is not the subject.
DISK = ("diskSpaceWarningLevelRatio=0.99", "diskSpaceCleanForciblyRatio=0.98")


def memory(pid: int) -> dict[str, int]:
    """RssAnon and RssFile of a process, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: int(size) * 1024 for name, size in re.findall(r"(Rss\w+):\s+(\d+) kB", text)}


class Sampler(threading.Thread):
    """Examines a process's memory until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int, int]] = []
        """(seconds since the start, RssAnon, RssFile)."""
        self._pid = pid
        self._stop_event = threading.Event()

    def run(self) -> None:
        begin = time.monotonic()
        while not self._stop_event.wait(SAMPLE_SECONDS):
            found = memory(self._pid)
            sample = (time.monotonic() - begin, found["RssAnon"], found["RssFile"])
            self.samples.append(sample)

    def stop(self) -> None:
        self._stop_event.set()
        self.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--broker", choices=("native", "python", "java"), default="native")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--setting", action="append", default=[])
    parser.add_argument("--cold", action="store_true")
    chosen = parser.parse_args()
    loadgen = build_loadgen() / "target" / "release" / "loadgen"
    rate = round(chosen.megabytes * 1e6 / BODY_BYTES)
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-", dir=chosen.folder) as name:
        data, settings = Path(name) / "data", chosen.setting
        if chosen.broker == "java":
            broker = java_broker(data, *settings)
        else:
            broker = our_broker(data, chosen.broker, *DISK, *settings)
        if not chosen.cold:
            fill_page_cache(Path(name))
        with broker as target:
            command = [str(loadgen), "produce", "--create", "--broker", target.address]
            command += ["--topic", "steady", "--queues", "4", "--connections", "4"]
            command += ["--inflight", "512", "--size", str(BODY_BYTES), "--rate", str(rate)]
            command += ["--warmup", "2", "--seconds", str(chosen.seconds)]
            command += ["--pid", str(target.pid), "--json"]
            sampler = Sampler(target.pid)
            sampler.start()
            try:
                done = subprocess.run(command, capture_output=True, text=True)
            finally:
                sampler.stop()
    if not done.stdout:
        print(done.stderr, file=sys.stderr)
        return 1
    found = json.loads(done.stdout)
    anonymous = [size for _, size, _ in sampler.samples]
    settled = anonymous[len(anonymous) // 4 :]
    growth = max(settled) - settled[0]
    latency = found["send_latency"]
    print(f"{found['msgs_per_s']:,.0f} messages/s of {rate:,}, {found['broker_cpu_us_per_msg']} us")
    print(f"latency in us: {latency}")
    print(f"RssAnon MiB: {' '.join(f'{size / 2**20:.1f}' for size in anonymous[::4])}")
    result = {"rate": found["msgs_per_s"], "wanted": rate, "latency": latency, "growth": growth}
    print(json.dumps({**result, "errors": found["errors"], "memory": sampler.samples[::4]}))
    is_steady = found["msgs_per_s"] >= 0.99 * rate and latency["p999_us"] <= P999_US_MAX
    return 0 if is_steady and growth <= GROWTH_BYTES_MAX and not found["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
