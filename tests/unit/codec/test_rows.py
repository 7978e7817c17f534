"""The encoders of rows against each other and against the slow path."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.sending.send import outgoing_batch
from kerolox.codec import python_rows
from kerolox.codec.python_rows import (
    PROPERTIES_RESERVE_BYTES,
    RowColumns,
    RowIds,
    RowRules,
    check_row,
)
from kerolox.codec.rows import RowCodec, row_codec
from kerolox.errors import MessageRejectedError
from kerolox.message import RESERVED_PROPERTIES, Message, java_hash
from kerolox.protocol.names import PROPERTIES_BYTES_MAX
from kerolox.spark.sink.rows import text_column
from tests.support.kernels import INSTALLED

Row = tuple[Any, ...]
CODECS = [row_codec(name) for name in INSTALLED]
HEAD = "7F0000010ABC18B4AAC200000001"
RULES = RowRules(100, frozenset(name.encode() for name in RESERVED_PROPERTIES))
MAPS = pyarrow.map_(pyarrow.string(), pyarrow.string())

TEXTS = st.text(max_size=8) | st.sampled_from(["", " ", "\x1c", "\u2003", "a\1b", "\2", "TAGS"])
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\1\2"), max_size=12)
ROWS = st.lists(
    st.tuples(
        st.binary(max_size=110) | st.none(),
        TEXTS | st.none(),
        TEXTS | st.none(),
        st.integers(-(2**31), 2**31 - 1),
        st.dictionaries(TEXTS, TEXTS | st.none(), max_size=3) | st.none(),
    ),
    max_size=6,
)
LEGAL = st.lists(
    st.builds(
        Message,
        topic=st.just("T"),
        body=st.binary(min_size=1, max_size=64),
        tags=PLAIN,
        keys=PLAIN,
        flag=st.integers(-(2**31), 2**31 - 1),
        properties=st.dictionaries(PLAIN.map("u{}".format), PLAIN.map("v{}".format), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


def columns_of(rows: list[Row]) -> RowColumns:
    bodies, tags, keys, flags, properties = zip(*rows, strict=True) if rows else [()] * 5
    maps = pyarrow.array(
        [None if each is None else list(each.items()) for each in properties], MAPS
    )
    validity, offsets, *_ = maps.buffers()
    names, values = text_column(maps.keys), text_column(maps.items)
    return RowColumns(
        text_column(pyarrow.array(bodies, pyarrow.binary())),
        text_column(pyarrow.array(tags, pyarrow.string())),
        text_column(pyarrow.array(keys, pyarrow.string())),
        pyarrow.array(flags, pyarrow.int32()).buffers()[1] or b"",
        python_rows.MapColumn(validity, offsets or bytes(4), names, values),
    )


@given(rows=LEGAL, first=st.integers(0, 0xFFFF))
def test_rows_are_encoded_as_the_messages_of_a_batch(rows: list[Message], first: int):
    columns = columns_of([(m.body, m.tags, m.keys, m.flag, m.properties) for m in rows])
    ids = [python_rows.id_of(RowIds(HEAD, first), index).decode() for index in range(len(rows))]
    for codec in CODECS:
        assert codec.first_fault(columns, 0, len(rows), RULES) == -1
        items, ends = codec.encode_rows(columns, 0, len(rows), RULES, RowIds(HEAD, first))
        assert items == outgoing_batch(rows, ids).body
        assert memoryview(ends).cast("I")[-1] == len(items)


@given(rows=ROWS, drops=st.booleans(), default=st.booleans())
def test_the_encoders_agree_on_every_row(rows: list[Row], drops: bool, default: bool):
    columns = columns_of(rows)
    rules = RULES._replace(
        drops_reserved=drops, default_properties=b"d\1e" * default, tail=b"x\1y" * drops
    )
    faults = {codec.first_fault(columns, 0, len(rows), rules) for codec in CODECS}
    assert len(faults) == 1
    stop = max(faults.pop(), 0)
    encoded = {codec.encode_rows(columns, 0, stop, rules, RowIds(HEAD, 7)) for codec in CODECS}
    assert len(encoded) == 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ((None, None, None, 0, None), "body is null"),
        ((b"", None, None, 0, None), "body is empty"),
        ((b"b" * 101, None, None, 0, None), "body has 101 bytes; the limit is 100"),
        ((b"b", "a\1", None, 0, None), "tags has U\\+0001"),
        ((b"b", None, "a\2", 0, None), "keys has U\\+0002"),
        ((b"b", None, None, 0, {"": "v"}), "blank name"),
        ((b"b", None, None, 0, {"n": " "}), "'n' has a blank value"),
        ((b"b", None, None, 0, {"n": None}), "'n' has no value"),
        ((b"b", None, None, 0, {"UNIQ_KEY": "v"}), "'UNIQ_KEY' is reserved"),
        ((b"b", None, None, 0, {"n": "v\2w"}), "property 'n' has U\\+0002"),
        ((b"b", None, None, 0, {"n": "v" * 33_000}), "properties have 33\\d{3} bytes"),
    ],
)
def test_a_row_that_no_broker_takes_is_found(codec: RowCodec, row: Row, fault: str):
    columns = columns_of([(b"b", "t", "k", 1, {"n": "v"}), row])
    assert codec.first_fault(columns, 0, 2, RULES) == 1
    with pytest.raises(MessageRejectedError, match=fault):
        check_row(columns, 1, RULES)


@pytest.mark.parametrize("codec", CODECS)
def test_properties_are_legal_up_to_the_last_byte(codec: RowCodec):
    def fault(length: int) -> int:
        rows = [(b"b", None, None, 0, {"n": "v" * length})]
        return codec.first_fault(columns_of(rows), 0, 1, RULES)

    others = len("n\1\2WAIT\1true\2UNIQ_KEY\1") + 56
    most = PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE_BYTES - others
    assert (fault(most), fault(most + 1)) == (-1, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_reserved_properties_are_left_out_where_that_is_asked(codec: RowCodec):
    columns = columns_of([(b"b", None, None, 0, {"UNIQ_KEY": "old", "city": "Žilina"})])
    rules = RULES._replace(drops_reserved=True)
    items, _ends = codec.encode_rows(columns, 0, 1, rules, RowIds("H", 0))
    assert items.endswith("city\1Žilina\2WAIT\1true\2UNIQ_KEY\1H0000".encode())


@given(st.lists(st.text(max_size=20) | st.none(), max_size=5))
def test_texts_have_the_hash_of_java(texts: list[str | None]):
    column = text_column(pyarrow.array(texts, pyarrow.string()))
    for codec in CODECS:
        found = memoryview(codec.hash_texts(column, len(texts))).cast("i").tolist()
        assert found == [java_hash(text or "") for text in texts]


@pytest.mark.parametrize("codec", [each for each in CODECS if each is not python_rows])
def test_buffers_that_contradict_each_other_are_an_error(codec: RowCodec):
    columns = columns_of([(b"b", None, None, 0, None)])
    torn = columns._replace(body=columns.body._replace(data=b""))
    with pytest.raises(ValueError, match="contradict"):
        codec.encode_rows(torn, 0, 1, RULES, RowIds("H", 0))
    with pytest.raises(ValueError, match="contradict"):
        codec.encode_rows(columns, 0, 2, RULES, RowIds("H", 0))
