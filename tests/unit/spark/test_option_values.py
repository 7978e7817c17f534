from enum import Enum
from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.option_values import CONNECTION_OPTIONS, OF_SPARK, WHOLE_MAX, OptionValues


class Mode(Enum):
    FAST = "fast"
    SAFE = "atLeastOnce"
    EXACT = "exact"


KNOWN = {**CONNECTION_OPTIONS, "size": "s", "count": "c", "mode": "m", "time": "t", "items": "i"}


def values(**given: str) -> OptionValues:
    return OptionValues("stones", KNOWN, given)


def read(kind: str, text: str, **limits: int) -> object:
    return getattr(values(size=text), kind)("size", **limits)


def test_names_count_without_case_and_unknown_ones_name_the_nearest():
    assert values(SIZE="5").positive("size") == 5
    with pytest.raises(ConfigError, match="format stones has no option 'cuont'; did you mean coun"):
        values(cuont="5")
    with pytest.raises(ConfigError, match="no option 'qqqqqq'; known are nameServer, accessKey"):
        values(qqqqqq="5")


def test_options_that_spark_adds_by_itself_are_ignored_when_asked():
    made = OptionValues(
        "stones", KNOWN, {"checkpointLocation": "/c", "path": "p"}, ignored=OF_SPARK
    )
    assert "path" not in made
    with pytest.raises(ConfigError, match="no option 'checkpointLocation'"):
        values(checkpointLocation="/c")


def test_options_that_are_not_given_have_no_value():
    made = values()
    for kind in ("positive", "whole", "byte_size", "duration_ms", "timestamp_ms", "raw"):
        assert getattr(made, kind)("size") is None
    assert made.text("mode", "default") == "default"
    assert made.items("items") == ()
    assert made.choice("mode", Mode.SAFE) is Mode.SAFE
    assert made.boolean("count", default=True) is True
    assert made.credentials() is None
    assert made.tls() is False
    with pytest.raises(ConfigError, match="option nameServer is missing: addresses of"):
        made.name_servers()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("positive", " 1 ", 1),
        ("positive", str(WHOLE_MAX), WHOLE_MAX),
        ("whole", "0", 0),
        ("byte_size", "1", 1),
        ("byte_size", "1024", 1024),
        ("byte_size", "64k", 65536),
        ("byte_size", "10 M", 10 * 2**20),
        ("byte_size", "2g", 2 * 2**30),
        ("byte_size", "1T", 2**40),
        ("duration_ms", "250", 250),
        ("duration_ms", "250ms", 250),
        ("duration_ms", "30s", 30_000),
        ("duration_ms", "15m", 900_000),
        ("duration_ms", "15 min", 900_000),
        ("duration_ms", "2H", 7_200_000),
        ("duration_ms", "1d", 86_400_000),
        ("timestamp_ms", "0", 0),
        ("timestamp_ms", "1700000000123", 1_700_000_000_123),
        ("timestamp_ms", "2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("timestamp_ms", "2023-11-14T23:13:20.123+01:00", 1_700_000_000_123),
        ("boolean", "TRUE", True),
        ("boolean", " false", False),
    ],
)
def test_a_right_text_is_read(kind: str, text: str, value: object):
    assert read(kind, text, **({"default": 0} if kind == "boolean" else {})) == value


@pytest.mark.parametrize(
    ("kind", "texts", "advice"),
    [
        ("positive", ["0", "-1", "", "1.5", "1e3", "٣", "+1", "x"], "a whole number from 1 up"),
        ("positive", [str(WHOLE_MAX + 1), "9" * 5000], "a whole number from 1 up"),
        ("byte_size", ["0", "0k", "-1", "", "5x", "1.5g", "k", "9" * 19 + "t"], "64k, 100m or 2g"),
        (
            "duration_ms",
            ["0", "0s", "", "soon", "5 weeks", "-1s", "9" * 19 + "d"],
            "without a unit",
        ),
        ("timestamp_ms", ["", "-1", "now", "2023-11-14", "2023-11-14T22:13:20"], "with its zone"),
        ("timestamp_ms", ["1969-12-31T00:00:00Z", "9" * 19], "milliseconds since 1970"),
    ],
)
def test_a_wrong_text_is_an_error_that_names_the_option(kind: str, texts: list[str], advice: str):
    for text in texts:
        with pytest.raises(ConfigError, match=rf"^option size='.*{advice}"):
            read(kind, text)


def test_numbers_have_the_bounds_that_their_reader_gives():
    assert read("whole", "3", minimum=2, maximum=3) == 3
    for text in ("1", "4"):
        with pytest.raises(ConfigError, match="must be a whole number from 2 to 3"):
            read("whole", text, minimum=2, maximum=3)
    with pytest.raises(ConfigError, match="option size='11' must be a whole number from 1 to 10"):
        read("positive", "11", maximum=10)


def test_a_choice_is_a_value_of_its_enumeration_in_any_case():
    assert values(mode="ATLEASTONCE").choice("mode", Mode.FAST) is Mode.SAFE
    with pytest.raises(ConfigError, match="option mode='x' must be fast, atleastonce or exact"):
        values(mode="x").choice("mode", Mode.FAST)


def test_wrong_booleans_are_errors_that_name_the_option():
    with pytest.raises(ConfigError, match="option size='yes' must be true or false"):
        values(size="yes").boolean("size", default=False)


def test_lists_are_split_trimmed_and_have_each_item_once():
    assert values(items=" a,b ,,a").items("items") == ("a", "b")
    assert values(items="a, b; c").items("items", ";") == ("a, b", "c")


def test_name_servers_are_checked_when_the_query_is_planned():
    made = values(nameServer="a:1; b:2,a:1")
    assert made.name_servers() == ("a:1", "b:2")
    for text in ("", " ; "):
        with pytest.raises(ConfigError, match="option nameServer is empty; write host:port"):
            values(nameServer=text).name_servers()
    for text in ("localhost", "a:b", "a:70000"):
        with pytest.raises(ConfigError, match="option nameServer: "):
            values(nameServer=text).name_servers()


def test_an_account_needs_both_keys_and_no_error_shows_a_secret():
    assert values(accessKey="a", secretKey="s").credentials() == Credentials("a", "s", "")
    for given, missing in [({"accessKey": "a"}, "secretKey"), ({"secretKey": "hush"}, "accessKey")]:
        with pytest.raises(ConfigError, match=f"option {missing} is missing") as caught:
            values(**given).credentials()
        assert "hush" not in str(caught.value)


def test_an_account_of_a_file_stands_alone_and_no_error_shows_a_secret(tmp_path: Path):
    tools = tmp_path / "tools.yml"
    tools.write_text("accessKey: a\nsecretKey: hush\n")
    given = {"credentialsFile": str(tools)}
    assert values(**given).credentials() == Credentials("a", "hush", "")
    with pytest.raises(ConfigError, match="option accessKey and credentialsFile exclude"):
        values(**given, accessKey="a").credentials()
    tools.write_text("secretKey: hush\n")
    with pytest.raises(ConfigError, match=r"option credentialsFile: .*has no accessKey") as caught:
        values(**given).credentials()
    assert "hush" not in str(caught.value)


def test_a_file_of_tls_stands_alone(tmp_path: Path):
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.authServer=false\ntls.client.checkHostName=false\n")
    given = {"tlsConfigFile": str(file)}
    assert values(**given).tls() == TlsSettings(verify=False, check_host_name=False)
    assert values(**given, tls="true").tls() == TlsSettings(verify=False, check_host_name=False)
    with pytest.raises(ConfigError, match="option tlsVerify and tlsConfigFile exclude"):
        values(**given, tlsVerify="true").tls()


def test_options_of_tls_that_contradict_each_other_are_errors():
    with pytest.raises(ConfigError, match="option tlsCaFile is given, but tls=false"):
        values(tls="false", tlsCaFile="ca.pem").tls()
    with pytest.raises(ConfigError, match="tlsKeyFile is given, but not tlsCertificateFile"):
        values(tlsKeyFile="k.pem").tls()


def test_a_hostile_text_is_shown_on_one_line_and_cut():
    with pytest.raises(ConfigError) as caught:
        values(count="1\n2" + "x" * 10_000).positive("count")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
