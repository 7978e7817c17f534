import pickle

import pytest

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.options import EARLIEST, LATEST, OPTIONS, Bound, SourceOptions, parse_bound

REQUIRED = {"nameServer": "127.0.0.1:9876", "subscribe": "flights"}


def test_required_options_are_enough_and_the_others_have_their_defaults():
    options = SourceOptions.parse(REQUIRED)
    assert options.name_servers == ("127.0.0.1:9876",)
    assert options.topics == ("flights",)
    assert options.tags == ()
    assert options.fail_on_data_loss is True
    assert options.starting_offsets is None
    assert options.poll_timeout_ms == 120_000


def test_names_in_lower_case_are_the_same_options():
    assert SourceOptions.parse({name.lower(): value for name, value in REQUIRED.items()}) == (
        SourceOptions.parse(REQUIRED)
    )


def test_several_topics_and_name_servers_are_split_and_trimmed():
    options = SourceOptions.parse({"nameServer": "a:1; b:2", "subscribe": "x, y ,x"})
    assert options.name_servers == ("a:1", "b:2")
    assert options.topics == ("x", "y")


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_misspelt_option_is_an_error_that_names_the_right_one(name: str):
    misspelt = name.lower()[:-1] + "x"
    with pytest.raises(ConfigError, match=f"no option '{misspelt}'; did you mean {name}"):
        SourceOptions.parse({**REQUIRED, misspelt: "1"})


def test_an_option_like_no_other_lists_what_there_is():
    with pytest.raises(ConfigError, match="known are nameServer, subscribe"):
        SourceOptions.parse({**REQUIRED, "qqqqqq": "1"})


@pytest.mark.parametrize("missing", ["nameServer", "subscribe"])
def test_a_missing_option_is_named(missing: str):
    given = {name: value for name, value in REQUIRED.items() if name != missing}
    with pytest.raises(ConfigError, match=f"option {missing} is missing"):
        SourceOptions.parse(given)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("subscribe", " , ", "names no topic"),
        ("nameServer", ";", "nameServer is empty"),
        ("maxOffsetsPerTrigger", "0", "from 1 up"),
        ("maxOffsetsPerTrigger", "1e3", "from 1 up"),
        ("minPartitions", "-1", "from 1 up"),
        ("pollTimeoutMs", "soon", "from 1 up"),
        ("failOnDataLoss", "yes", "must be true or false"),
        ("subExpression", " || ", "names no tag"),
        ("columns", "", "is empty or names a column twice"),
        ("columns", "body,body", "is empty or names a column twice"),
        ("startingOffsets", "erliest", "neither earliest, latest nor JSON"),
        ("startingOffsets", "[]", "is no object"),
        ("startingOffsets", '{"other":{"b":{"0":1}}}', "which subscribe does not name"),
        ("startingOffsets", '{"flights":{"0":1}}', "where an object must be"),
        ("startingOffsets", '{"flights":{"b":{"zero":1}}}', "has queue id 'zero'"),
        ("startingOffsets", '{"flights":{"b":{"0":-3}}}', "has offset -3"),
        ("startingOffsets", '{"flights":{"b":{"0":"1"}}}', "has offset '1'"),
        ("endingOffsets", '{"flights":{"b":{"0":true}}}', "has offset True"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_right(name: str, value: str, text: str):
    with pytest.raises(ConfigError, match=text):
        SourceOptions.parse({**REQUIRED, name: value})


def test_offsets_json_is_read_by_topic_broker_and_queue():
    bound = parse_bound('{"t":{"b":{"0":12,"3":-2}}}', ["t"], option="startingOffsets")
    assert bound == {MessageQueue("t", "b", 0): 12, MessageQueue("t", "b", 3): EARLIEST}


def test_words_for_offsets_are_read_in_any_case():
    assert parse_bound(" Earliest", ["t"], option="startingOffsets") is Bound.EARLIEST
    assert parse_bound("LATEST", ["t"], option="startingOffsets") is Bound.LATEST


@pytest.mark.parametrize("starting", ["latest", f'{{"flights":{{"b":{{"0":{LATEST}}}}}}}'])
def test_a_batch_that_starts_at_the_end_is_refused(starting: str):
    with pytest.raises(ConfigError, match="can't be latest"):
        SourceOptions.parse({**REQUIRED, "startingOffsets": starting}).check_batch()


def test_a_batch_that_ends_at_the_start_is_refused():
    with pytest.raises(ConfigError, match="can't be earliest"):
        SourceOptions.parse({**REQUIRED, "endingOffsets": "earliest"}).check_batch()


def offsets_json(*offsets: int) -> str:
    queues = ",".join(f'"{number}":{offset}' for number, offset in enumerate(offsets))
    return f'{{"flights":{{"broker-a":{{{queues}}}}}}}'


def test_a_start_behind_the_end_is_an_error_that_names_queue_and_offsets():
    given = {"startingOffsets": offsets_json(5, 7), "endingOffsets": offsets_json(5, 6)}
    text = "startingOffsets 7 of flights queue 1 on broker-a is behind its endingOffsets 6"
    with pytest.raises(ConfigError, match=text):
        SourceOptions.parse({**REQUIRED, **given}).check_batch()


@pytest.mark.parametrize(("start", "end"), [(5, 5), (5, -1), (-2, 0), (0, 1)])
def test_a_start_that_is_not_behind_the_end_is_taken(start: int, end: int):
    given = {"startingOffsets": offsets_json(start), "endingOffsets": offsets_json(end)}
    SourceOptions.parse({**REQUIRED, **given}).check_batch()


def test_a_limit_per_trigger_is_warned_of_in_a_batch(caplog):
    SourceOptions.parse({**REQUIRED, "maxOffsetsPerTrigger": "5"}).check_batch()
    assert "maxOffsetsPerTrigger has no effect in a batch" in caplog.text
    caplog.clear()
    SourceOptions.parse(REQUIRED).check_batch()
    SourceOptions.parse({**REQUIRED, "maxOffsetsPerTrigger": "5"}).check_stream()
    assert not caplog.records


@pytest.mark.parametrize("expression", ["a > 5", "a IS NULL", "k = 'v' AND b", "TAGS in ('x')"])
def test_a_condition_in_place_of_tags_is_refused(expression: str):
    with pytest.raises(ConfigError, match=r"is no tag expression.*SQL92.*subExpressionType"):
        SourceOptions.parse({**REQUIRED, "subExpression": expression})


def test_a_stream_with_an_end_is_refused():
    with pytest.raises(ConfigError, match="endingOffsets is for batches only"):
        SourceOptions.parse({**REQUIRED, "endingOffsets": "latest"}).check_stream()


def test_an_account_has_two_keys_and_is_not_shown():
    account = {"accessKey": "rocketmq2", "secretKey": "12345678", "securityToken": "a-token"}
    options = SourceOptions.parse({**REQUIRED, **account})
    assert options.credentials == Credentials("rocketmq2", "12345678", "a-token")
    assert "12345678" not in repr(options)
    assert "a-token" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigError, match="option secretKey is missing"):
        SourceOptions.parse({**REQUIRED, "accessKey": "rocketmq2"})


def test_tls_has_options_and_is_on_with_any_of_them():
    assert SourceOptions.parse(REQUIRED).tls is False
    assert SourceOptions.parse({**REQUIRED, "tls": "true"}).tls == TlsSettings()
    given = {"tlsCaFile": "ca.pem", "tlsCheckHostName": "false", "tlsKeyPassword": "word"}
    given |= {"tlsCertificateFile": "c.pem", "tlsKeyFile": "k.pem", "tlsVerify": "true"}
    options = SourceOptions.parse({**REQUIRED, **given})
    assert options.tls == TlsSettings(
        ca="ca.pem", certificate="c.pem", key="k.pem", key_password="word", check_host_name=False
    )
    assert "word" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigError, match="tlsCaFile is given, but tls=false"):
        SourceOptions.parse({**REQUIRED, "tls": "false", "tlsCaFile": "ca.pem"})
