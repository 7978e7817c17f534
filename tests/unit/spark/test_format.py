"""What never changes: columns with their types and meaning, and checkpoints of each version.

The golden files are what a released Kerolox wrote. A test that fails here means that tables or
checkpoints of users would change; mend the code, and leave the files as they are. A new column goes
behind the others, a new version of offsets gets a file of its own.
"""

import importlib.util
import json
from datetime import datetime
from pathlib import Path

import pytest

from kerolox.kernel.choice import load_kernel
from kerolox.message import MessageQueue
from kerolox.spark.positions.offsets import Mark
from kerolox.spark.positions.position import VERSION, SourcePosition
from kerolox.spark.rows.decoding import ColumnDecoder
from kerolox.spark.rows.schema import full_schema, schema_of

GOLDEN = Path(__file__).parent / "golden"
KERNELS = ["python"] + ["native"] * (importlib.util.find_spec("kerolox_kernel") is not None)
Q0, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)


def golden(name: str):
    return json.loads((GOLDEN / name).read_text())


def plain(value: object) -> object:
    """A value of a row as JSON has it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, list) else value


def test_columns_keep_their_place_name_and_type():
    columns = golden("columns.json")["columns"]
    fields = full_schema().fields
    now = [[field.name, field.dataType.simpleString(), field.nullable] for field in fields]
    assert now[: len(columns)] == columns


@pytest.mark.parametrize("kernel", KERNELS)
def test_columns_keep_their_meaning(kernel: str):
    kept = golden("columns.json")
    names = [name for name, _, _ in kept["columns"]]
    decoder = ColumnDecoder(schema_of(names), kernel=load_kernel(kernel))
    queue = MessageQueue("Orders", "broker-a", 3)
    ((batch, _),) = decoder.decode(bytes.fromhex(kept["records"]), queue)
    rows = [{name: plain(value) for name, value in row.items()} for row in batch.to_pylist()]
    assert rows == kept["rows"]


def test_a_checkpoint_of_version_1_is_read():
    position = SourcePosition.parse(golden("position-1.json"))
    assert position.offsets == {Q0: 7, Q1: 0, MessageQueue("version", "b", 0): 4}
    assert (position.starts, position.marks, position.first) == ({}, {}, False)


def test_a_checkpoint_of_version_2_is_read_and_written_the_same():
    document = golden("position-2.json")
    position = SourcePosition.parse(document)
    assert position.offsets == {Q0: 7, Q1: 0}
    assert position.starts == {Q0: -2, Q1: 0}
    assert position.marks == {Q0: Mark(9, 1_700_000_000_456)}
    assert position.first
    assert position.to_json() == document


def test_each_version_of_checkpoints_has_a_golden_file():
    files = {path.name for path in GOLDEN.glob("position-*.json")}
    assert files == {f"position-{version}.json" for version in range(1, VERSION + 1)}
