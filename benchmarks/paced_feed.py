"""Claim: no feed of the kernel waits for a helper thread or the disk, at a steady 100 MB/s.

Chunks of 16 sends of 1 KiB are fed when they are due, without sockets, and each feed is timed. The
feeding thread is a real-time one where that is allowed, so that other programs count little; the
kernel's own threads are not.

    python benchmarks/paced_feed.py [--seconds 14] [--megabytes 100] [--kernel native|python]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.stores.bench import send

from kerolox.kernel.choice import load_kernel
from kerolox.kernel.settings import StoreSettings
from kerolox.message import pack_host

HOST = pack_host("127.0.0.1", 10911)
BODY_BYTES = 1_024
CHUNK_SENDS = 16
PRIORITY = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=14.0)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--kernel", choices=("native", "python"), default="native")
    chosen = parser.parse_args()
    kernel = load_kernel(chosen.kernel)
    chunk = bytearray(b"".join(send(bytes(BODY_BYTES), e=i % 4) for i in range(CHUNK_SENDS)))
    period = CHUNK_SENDS * BODY_BYTES / (chosen.megabytes * 1e6)
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder:
        store = kernel.Store(StoreSettings(store_path_root_dir=folder))
        store.open()
        store.set_identity(cluster="C", region="R", trace_on=True, store_host=HOST, broker_id=0)
        store.set_topic("T", 4, 4, 6, True)
        connection = kernel.Connection(store, 1, HOST)
        with contextlib.suppress(PermissionError):
            policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(PRIORITY))
        start = time.perf_counter()
        while (now := time.perf_counter()) - start < chosen.seconds:
            due = start + len(times) * period
            if now < due:
                time.sleep(due - now)
            begin = time.perf_counter()
            connection.feed(chunk, len(chunk))
            times.append(time.perf_counter() - begin)
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        store.close()
    sizes = len(times) * CHUNK_SENDS * BODY_BYTES / chosen.seconds / 1e6
    times.sort()
    shown = ((part, times[int(len(times) * part)] * 1e6) for part in (0.5, 0.99, 0.999, 0.9999))
    text = "  ".join(f"p{100 * part:g} {value:,.0f}" for part, value in shown)
    print(f"{sizes:.1f} MB/s, one feed in us: {text}  max {times[-1] * 1e6:,.0f}")


if __name__ == "__main__":
    main()
