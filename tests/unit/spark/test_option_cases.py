"""Each option of each format, planned as Spark does it: edges are taken, wrong texts are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql.types import BinaryType, StructType

from kerolox.errors import ConfigError
from kerolox.spark.options import OPTIONS as SOURCE_OPTIONS
from kerolox.spark.positions.read_limits import HAS_READ_LIMITS
from kerolox.spark.sink.options import OPTIONS as SINK_OPTIONS
from kerolox.spark.source import RocketMQDataSource
from kerolox.spark.store.options import OPTIONS as STORE_OPTIONS
from kerolox.spark.store.source import RocketMQStoreDataSource
from tests.support.servers.tls import Authority, locked
from tests.unit.spark.option_cases import HOSTILE, SINK, SOURCE, STORE, Case, Cases

ROWS = StructType().add("body", BinaryType())


class Format(NamedTuple):
    """What is planned by options."""

    options: Mapping[str, str]
    cases: Cases
    needed: dict[str, str]
    plan: Callable[[dict[str, str], bool], object]

    def given(self, name: str, text: str, case: Case, files: Mapping[str, str]) -> dict[str, str]:
        """All options of a query with one at a text."""
        all_of_them = {**self.needed, **case.beside, name: text}
        return {
            each: files.get(value, value)
            for each, value in all_of_them.items()
            if value is not None
        }


def read_from(kind: type) -> Callable[[dict[str, str], bool], object]:
    def plan(given: dict[str, str], is_stream: bool) -> object:
        source = kind(given)
        schema = source.schema()
        if not is_stream:
            return source.reader(schema)
        # The first thing that Spark asks checks the options; this one asks no server.
        return source.streamReader(schema).getDefaultReadLimit()

    return plan


def write(given: dict[str, str], is_stream: bool) -> object:
    source = RocketMQDataSource(given)
    return (source.streamWriter if is_stream else source.writer)(ROWS, overwrite=False)


NAME_SERVER = {"nameServer": "127.0.0.1:9876"}
FORMATS = {
    "source": Format(
        SOURCE_OPTIONS,
        SOURCE,
        {**NAME_SERVER, "subscribe": "flights"},
        read_from(RocketMQDataSource),
    ),
    "store": Format(STORE_OPTIONS, STORE, {"path": "/s"}, read_from(RocketMQStoreDataSource)),
    "sink": Format(SINK_OPTIONS, SINK, {**NAME_SERVER, "topic": "flights"}, write),
}
OPTIONS = [(name, option) for name, each in FORMATS.items() for option in each.options]


TEXTS = {
    "tools": ("tools.yml", "accessKey: a\nsecretKey: s\n"),
    "session": ("session", "AccessKey=a\nSecretKey=s\nSecurityToken=t\n"),
    "tls_config": (
        "tls.properties",
        "tls.server.mode=enforcing\ntls.client.trustCertPath={ca}\n"
        "tls.client.certPath={certificate}\ntls.client.keyPath={key}\n",
    ),
    "wrong_tls_config": ("wrong.properties", "tls.client.trustCertPath={key}\n"),
}
"""Files of settings: what stands for each in the tables, its name and its text."""


def cases_of(name: str, option: str) -> tuple[Case, ...]:
    found = FORMATS[name].cases[option]
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files by what stands for them in the tables."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    certificate, key = authority.files("ours")
    other, other_key = authority.files("others")
    (folder / "locked").write_bytes(locked(key, b"right-one"))
    (folder / "empty").touch()
    paths: dict[str, Path] = {
        **{"ca": authority.ca, "certificate": certificate, "key": key, "locked": folder / "locked"},
        **{"empty": folder / "empty", "nowhere": folder / "nowhere"},
        **{"other": other, "other_key": other_key},
        **{name: folder / file for name, (file, _) in TEXTS.items()},
    }
    for file, text in TEXTS.values():
        (folder / file).write_text(text.format(ca=authority.ca, certificate=certificate, key=key))
    return {f"{{{name}}}": str(path) for name, path in paths.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_each_option_has_texts_at_its_edges_and_wrong_ones(name: str):
    assert set(FORMATS[name].cases) == set(FORMATS[name].options)
    for option in FORMATS[name].options:
        assert any(case.taken for case in cases_of(name, option)), option
        assert any(case.wrong for case in cases_of(name, option)), option


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_texts_at_the_edge_of_an_option_are_taken(name: str, option: str, files: dict[str, str]):
    each = FORMATS[name]
    for case in cases_of(name, option):
        for text in case.taken:
            each.plan(each.given(option, text, case, files), case.is_stream)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_a_wrong_text_is_an_error_at_planning_that_names_the_option(
    name: str, option: str, files: dict[str, str]
):
    each = FORMATS[name]
    for case in cases_of(name, option):
        for text, says in case.wrong:
            with pytest.raises(ConfigError, match=says) as caught:
                each.plan(each.given(option, text, case, files), case.is_stream)
            shown = str(caught.value)
            assert option in shown, f"{option}={text[:80]!r}: {shown}"
            assert shown.startswith("option"), shown
            assert shown.isprintable(), shown
            assert len(shown) < 1000, shown[:1000]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_hostile_texts_are_taken_or_told_of_in_a_plain_error(
    name: str, option: str, files: dict[str, str]
):
    each = FORMATS[name]
    for case in cases_of(name, option):
        for text in HOSTILE:
            told = ""
            try:
                each.plan(each.given(option, text, case, files), case.is_stream)
            except ConfigError as error:
                told = str(error)
            assert not told or told.startswith("option"), told[:1000]
            assert told.isprintable(), ascii(told[:1000])
            assert len(told) < 1000, told[:1000]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_a_misspelt_option_of_each_format_names_the_right_one(name: str, option: str):
    each = FORMATS[name]
    misspelt = option.lower()[:-1] + "x"
    with pytest.raises(ConfigError, match=f"no option '{misspelt}'; did you mean {option}"):
        each.plan({**each.needed, misspelt: "1"}, False)


@pytest.mark.parametrize(
    ("name", "option"), [("source", "maxOffsetsPerTrigger"), ("store", "maxBytesPerTrigger")]
)
def test_a_bound_of_micro_batches_is_taken_where_pyspark_has_them(name: str, option: str):
    each = FORMATS[name]
    if HAS_READ_LIMITS:
        each.plan({**each.needed, option: "5"}, True)
    else:
        with pytest.raises(ConfigError, match=f"option {option} needs PySpark 4.2 or newer"):
            each.plan({**each.needed, option: "5"}, True)
