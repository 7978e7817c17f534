"""Options of jobs: what their declaration says is checked, and errors name the option."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from kerolox.errors import ConfigError
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.frame.options import JobOptions, fields_of, option
from kerolox.spark.options import SourceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(JobOptions):
    topics: tuple[str, ...] = option("topics to read", flag="topic")
    kind: str = option("a kind", default="a", choices=("a", "b"))
    rate: float | None = option("rows a second", default=None, minimum=0.1)
    rows: int = option("rows", default=5, minimum=1, maximum=9)
    is_dry: bool = option("do nothing", default=False, flag="dry-run")
    sets: Mapping[str, str] = option("changes", default={}, flag="set")

    def check(self) -> None:
        if self.kind == "b" and self.is_dry:
            raise self.error("is_dry", "has no meaning with --kind b")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": ()}, "option --topic: give at least one: topics to read"),
        ({"topics": ("a", " ")}, "option --topic: is blank"),
        ({"topics": "abc"}, "option --topic: 'abc' must be a tuple of texts"),
        ({"topics": (1,)}, "option --topic: 1 must be a text"),
        ({"kind": "c"}, "option --kind: 'c' must be one of a, b"),
        ({"rate": 0.0}, "option --rate: 0.0 must be 0.1 or more"),
        ({"rate": float("nan")}, "option --rate: nan must be"),
        ({"rate": "fast"}, "option --rate: 'fast' must be a number"),
        ({"rows": 10}, "option --rows: 10 must be 9 or less"),
        ({"rows": True}, "option --rows: True must be a whole number"),
        ({"rows": None}, "option --rows: None must be a whole number"),
        ({"is_dry": "yes"}, "option --dry-run: 'yes' must be true or false"),
        ({"sets": {"a": 1}}, "option --set: .* must be a mapping of texts"),
        ({"kind": "b", "is_dry": True}, "option --dry-run: has no meaning with --kind b"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_option(given, text):
    with pytest.raises(ConfigError, match=text):
        Options(**{"topics": ("a",), **given})


def test_values_that_their_options_can_have_are_kept():
    made = Options(topics=("a", "b"), rate=3, rows=9, is_dry=True, sets={"tags": "'x'"})
    assert made.topics == ("a", "b")
    assert made.rate == 3
    assert Options(topics=("a",)).rate is None


def test_fields_know_their_flag_kind_and_default():
    topics, kind, rate, *_, sets = fields_of(Options)
    assert (topics.flag, topics.kind, topics.is_required) == ("--topic", tuple, True)
    assert (kind.flag, kind.default, kind.is_optional) == ("--kind", "a", False)
    assert (rate.kind, rate.is_optional) == (float, True)
    assert (sets.kind, sets.is_required) == (dict, False)


def test_account_and_tls_are_options_of_the_source():
    options = ClusterOptions(
        name_server="n:1;m:2",
        credentials=Credentials("account", "secret-of-it", "token"),
        tls=TlsSettings(ca="ca.pem", verify=False),
    )
    parsed = SourceOptions.parse({**options.source_options(), "subscribe": "t"})
    assert parsed.name_servers == ("n:1", "m:2")
    assert parsed.credentials == options.credentials
    assert parsed.tls == options.tls
    assert ClusterOptions(tls=True).source_options()["tls"] == "true"
    assert "tls" not in ClusterOptions().source_options()
