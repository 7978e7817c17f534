"""What only the native module has: shapes, buffers, errors; the rest is in tests/kernel."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Appended, Read, Record, RecoveryReport

native = pytest.importorskip("kerolox_kernel")

HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))
SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}


def settings(path: Path, **changes: object) -> StoreSettings:
    return StoreSettings(store_path_root_dir=str(path), **(SMALL | changes))  # type: ignore[arg-type]


def test_values_are_those_of_the_interface(tmp_path: Path) -> None:
    store = native.Store(settings(tmp_path))
    report = store.open()
    assert isinstance(report, RecoveryReport)
    assert report.clean
    appended = store.append(Record(b"T", 0, 0, 0, 1, HOST, HOST, 0, 0, b"body", b""))
    assert appended == (0, 0, 0, appended.size, appended.store_timestamp)
    assert isinstance(appended, Appended)
    assert isinstance(store.read("T", 0, 0, 1, None), Read)
    assert store.queues() == [("T", 0, 0, 1)]
    store.close()


def test_a_record_without_all_its_members_or_with_others_is_refused(tmp_path: Path) -> None:
    store = native.Store(settings(tmp_path))
    store.open()
    whole = Record(b"T", 0, 0, 0, 1, HOST, HOST, 0, 0, b"body", b"")
    with pytest.raises(IndexError):
        store.append(tuple(whole[:10]))
    with pytest.raises(TypeError):
        store.append(list(whole))
    with pytest.raises(TypeError):
        store.append(whole._replace(topic="T"))
    with pytest.raises(OverflowError):
        store.append(whole._replace(queue_id=1 << 31))
    with pytest.raises(ValueError, match="a host has 8 bytes"):
        store.append(whole._replace(born_host=b"short"))
    assert store.max_physical_offset == 0
    store.close()


@pytest.mark.parametrize("size", [-1, 5, 1 << 40])
def test_a_size_outside_the_buffer_is_refused(tmp_path: Path, size: int) -> None:
    connection = native.Connection(native.Store(settings(tmp_path)), 1, HOST)
    for data in (b"four", bytearray(b"four"), memoryview(b"four")):
        with pytest.raises((ValueError, OverflowError)):
            connection.feed(data, size)


def test_a_buffer_with_gaps_and_an_object_without_one_are_refused(tmp_path: Path) -> None:
    connection = native.Connection(native.Store(settings(tmp_path)), 1, HOST)
    with pytest.raises(BufferError):
        connection.feed(memoryview(bytearray(8))[::2], 4)
    with pytest.raises(TypeError):
        connection.feed("text", 4)
    assert tuple(connection.feed(bytearray(), 0)) == (b"", None, 0, None)


def test_a_store_that_another_process_holds_raises_blocking_io_error(tmp_path: Path) -> None:
    code = (
        "import sys, kerolox_kernel\n"
        "from kerolox.kernel.settings import StoreSettings\n"
        f"store = kerolox_kernel.Store(StoreSettings(store_path_root_dir={str(tmp_path)!r}))\n"
        "try:\n    store.open()\n"
        "except BlockingIOError as error:\n    print(error.errno, error)\n"
    )
    store = native.Store(settings(tmp_path))
    store.open()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    store.close()
    assert ran.stdout.startswith(str(errno.EAGAIN))
    assert str(tmp_path) in ran.stdout


def test_a_file_of_another_size_raises_value_error_that_names_it(tmp_path: Path) -> None:
    store = native.Store(settings(tmp_path))
    store.open()
    store.append(Record(b"T", 0, 0, 0, 1, HOST, HOST, 0, 0, b"body", b""))
    store.close()
    with pytest.raises(ValueError, match="00000000000000000000"):
        native.Store(settings(tmp_path, mapped_file_size_commit_log=1 << 17)).open()


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ASYNC_FLUSH.*LATER"):
        native.Store(settings(tmp_path, flush_disk_type="LATER"))
    with pytest.raises(OverflowError):
        native.Store(settings(tmp_path, sync_flush_timeout=-1))
    with pytest.raises(AttributeError):
        native.Store(object())


def test_flush_of_a_store_that_is_not_open_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="open"):
        native.Store(settings(tmp_path)).flush()
