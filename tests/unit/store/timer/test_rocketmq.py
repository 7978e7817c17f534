"""The same five messages, written here and by RocketMQ 5.3.3 (``TimerWheel``, ``TimerLog``,
``TimerCheckpoint``, ``TimerMetrics``): a wheel of 20 slots of a second, files of 176 bytes.
"""

from __future__ import annotations

from kerolox.message import java_hash
from kerolox.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint
from kerolox.store.timer.log import TimerLogFile, TimerUnit, UnitMagic, place, unit_at
from kerolox.store.timer.metrics import TimerMetrics, TimerVersion, TopicWaiting, decode_metrics
from kerolox.store.timer.wheel import Slot, TimerWheel, wheel_bytes

NOW = 1_700_000_000_000
FILE_BYTES = 176
DELAYS = (3_000, 5_000, 3_000, 3_000, 5_000)
DELETE = 3
"""The message of this number is a command to delete one."""
POSITIONS = (0, 52, 104, 176, 228)

SLOTS = {
    3: "000000006553f103000000000000000000000000000000b00000000100000000",
    5: "000000006553f105000000000000003400000000000000e40000000200000000",
}
UNITS = (
    "00000034ffffffffffffffff000000010000018bcfe5680000000bb800000000000003e8000000c8"
    "421df6110000000000000000",
    "00000034ffffffffffffffff000000010000018bcfe568000000138800000000000003e9000000c9"
    "421df6110000000000000000",
    "000000340000000000000000000000010000018bcfe5680000000bb800000000000003ea000000ca"
    "421df6110000000000000000",
    "000000340000000000000068000000050000018bcfe5680000000bb800000000000003eb000000cb"
    "421df6110000000000000000",
    "000000340000000000000034000000010000018bcfe568000000138800000000000003ec000000cc"
    "421df6110000000000000000",
)
BLANK = "000000140000000000000000cbd4319400000000"
CHECKPOINT = (
    "0000018bcfe56800000000000000011800000000000000050000000000000006"
    "00000000000000020000018bcfe568010000000000000009"
)
METRICS = (
    b'{"dataVersion":{"counter":9,"stateVersion":2,"timestamp":1700000000000},'
    b'"timingCount":{"RealTopic":{"count":3,"timeStamp":1700000000000}}}'
)


def wheel_of_rocketmq() -> bytearray:
    data = bytearray(wheel_bytes(10))
    for index, slot in SLOTS.items():
        data[index * 32 : index * 32 + 32] = bytes.fromhex(slot)
    return data


def log_of_rocketmq() -> bytes:
    units = [bytes.fromhex(each) for each in UNITS]
    first = b"".join(units[:3]) + bytes.fromhex(BLANK)
    return first + b"".join(units[3:]).ljust(FILE_BYTES, b"\0")


def test_wheel_and_log_are_written_as_by_rocketmq() -> None:
    data, log, end, found = bytearray(wheel_bytes(10)), bytearray(2 * FILE_BYTES), 0, []
    wheel = TimerWheel(data, 1_000, slots=10)
    for number, delay in enumerate(DELAYS):
        magic = UnitMagic.DEFAULT | (UnitMagic.DELETE if number == DELETE else 0)
        unit = TimerUnit(
            wheel.previous(NOW + delay),
            magic,
            NOW,
            delay,
            1_000 + number,
            200 + number,
            java_hash("RealTopic"),
        )
        position, blank = place(end, FILE_BYTES)
        log[end : end + len(blank)] = blank
        log[position : position + 52] = unit.pack()
        wheel.add(unit.time_ms, position, unit.weight)
        found.append(position)
        end = position + 52
    assert tuple(found) == POSITIONS
    assert data == wheel_of_rocketmq()
    assert log == log_of_rocketmq()


def test_wheel_and_log_of_rocketmq_are_read() -> None:
    wheel = TimerWheel(wheel_of_rocketmq(), 1_000, slots=10)
    log = log_of_rocketmq()
    assert wheel.slot(NOW + 3_000) == Slot(NOW + 3_000, 0, 176, 1)
    assert wheel.slot(NOW + 5_000) == Slot(NOW + 5_000, 52, 228, 2)
    assert wheel.waiting(NOW) == 3
    assert wheel.forget_lost(280) is None
    files = [TimerLogFile(log[start : start + FILE_BYTES], start) for start in (0, FILE_BYTES)]
    units = [found for file in files for found in file]
    assert [position for position, _ in units] == list(POSITIONS)
    assert [unit.time_ms - NOW for _, unit in units] == list(DELAYS)
    assert [(file.end, file.is_full) for file in files] == [(156, True), (280, False)]

    def read(position: int) -> TimerUnit | None:
        return unit_at(log, position, position)

    for delay, last in ((3_000, 176), (5_000, 228)):
        numbers = [number for number, each in enumerate(DELAYS) if each == delay]
        offsets, position = [], last
        while (unit := read(position)) is not None:
            offsets.append(unit.offset - 1_000)
            position = unit.previous
        assert offsets == numbers[::-1]


def test_a_wheel_is_built_again_from_the_log_of_rocketmq() -> None:
    data = bytearray(wheel_bytes(10))
    wheel = TimerWheel(data, 1_000, slots=10)
    for start in (0, FILE_BYTES):
        for position, unit in TimerLogFile(log_of_rocketmq()[start : start + FILE_BYTES], start):
            wheel.revise(unit.time_ms, position, unit.weight)
    assert data == wheel_of_rocketmq()


def test_check_point_and_metrics_of_rocketmq_are_read_and_written() -> None:
    point = TimerCheckpoint(NOW, 280, 5, 6, 2, NOW + 1, 9)
    data = bytes.fromhex(CHECKPOINT)
    assert decode_checkpoint(data.ljust(4_096, b"\0")) == point
    assert point.encode() == data
    metrics = TimerMetrics(
        data_version=TimerVersion(counter=9, state_version=2, timestamp=NOW),
        timing_count={"RealTopic": TopicWaiting(count=3, time_stamp=NOW)},
    )
    assert decode_metrics(METRICS) == metrics
    assert metrics.encode() == METRICS
