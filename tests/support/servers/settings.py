"""Files of settings for the brokers that tests start."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ANY_DISK", "ANY_DISK_JAVA", "small_store", "write_settings"]

ANY_DISK_JAVA = {"diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": "false"}
"""Deletes nothing on a disk that is up to 95% full, the highest border there is: how full the disk
of the machine is does not matter to what a test asks. Above 90% writes are refused; a Java broker
lets nobody move that border further up."""

ANY_DISK = {**ANY_DISK_JAVA, "diskSpaceWarningLevelRatio": 1.0}
"""Deletes nothing up to 95%, and takes writes on any disk."""


def write_settings(path: Path, **settings: object) -> Path:
    """A broker.conf for the loopback and for any disk, with more settings."""
    lines = {"brokerIP1": "127.0.0.1", **ANY_DISK, **settings}
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def small_store(folder: Path, **settings: object) -> Path:
    """A broker.conf whose files are small, so that tests do not fill the disk."""
    small = {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
    }
    return write_settings(folder / "broker.conf", **{**small, **settings})
