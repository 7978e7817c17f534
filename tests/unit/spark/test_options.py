import pickle
from itertools import combinations

import pytest

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.bounds import EARLIEST, LATEST, Bound, Since, parse_bound
from kerolox.spark.options import SourceOptions
from kerolox.spark.selection import Selection
from tests.support.servers.tls import Authority

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


def test_an_option_like_no_other_lists_what_there_is():
    with pytest.raises(ConfigError, match="known are nameServer, subscribe"):
        SourceOptions.parse({**REQUIRED, "qqqqqq": "1"})


def given_with(name: str, value: str) -> dict[str, str]:
    """The required options and one more; what reads other topics takes the place of subscribe."""
    given = {**REQUIRED, name: value}
    if name in ("subscribePattern", "assign"):
        del given["subscribe"]
    return given


@pytest.mark.parametrize("missing", ["nameServer", "subscribe"])
def test_a_missing_option_is_named(missing: str):
    given = {name: value for name, value in REQUIRED.items() if name != missing}
    with pytest.raises(ConfigError, match=f"option {missing} is missing"):
        SourceOptions.parse(given)


def test_edges_of_offsets_times_and_queue_ids_are_taken():
    for offset in (-2, -1, 0, 2**63 - 1):
        text = f'{{"flights":{{"b":{{"65534":{offset}}}}}}}'
        made = SourceOptions.parse({**REQUIRED, "startingOffsets": text})
        assert made.starting_offsets == {MessageQueue("flights", "b", 65534): offset}
    for time in (0, 2**63 - 1):
        made = SourceOptions.parse({**REQUIRED, "startingTimestamp": str(time)})
        assert made.starting_offsets == Since(time, "startingTimestamp")


def test_topics_are_said_in_one_way_only():
    for other in ({"subscribePattern": "f.*"}, {"assign": '{"flights":{"b":[0]}}'}):
        with pytest.raises(ConfigError, match="and subscribe exclude each other"):
            SourceOptions.parse({**REQUIRED, **other})
    given = {"nameServer": "n:1", "subscribePattern": "f", "assign": '{"t":{"b":[0]}}'}
    with pytest.raises(ConfigError, match="option assign and subscribePattern exclude each other"):
        SourceOptions.parse(given)


def test_assigned_queues_and_patterns_are_read():
    made = SourceOptions.parse(given_with("assign", '{"t":{"b":[0,3],"c":[0]},"u":{"b":[65534]}}'))
    assert made.topics == ("t", "u")
    assert made.selection.queues == {
        MessageQueue("t", "b", 0),
        MessageQueue("t", "b", 3),
        MessageQueue("t", "c", 0),
        MessageQueue("u", "b", 65534),
    }
    made = SourceOptions.parse(given_with("subscribePattern", " flights-[0-9]+ "))
    assert made.selection.pattern == "flights-[0-9]+"
    assert made.topics == ()


def test_offsets_are_only_given_for_what_is_read():
    offsets = '{"flights":{"b":{"0":5}}}'
    for name, value in (
        ("assign", '{"flights":{"b":[1]}}'),
        ("assign", '{"other":{"b":[0]}}'),
        ("subscribePattern", "flight"),
    ):
        given = given_with(name, value) | {"startingOffsets": offsets}
        with pytest.raises(ConfigError, match=f"option startingOffsets .*which {name} does not"):
            SourceOptions.parse(given)
    given = given_with("subscribePattern", "fl.*") | {"startingOffsets": offsets}
    assert SourceOptions.parse(given).starting_offsets == {MessageQueue("flights", "b", 0): 5}


@pytest.mark.parametrize("end", ["starting", "ending"])
def test_one_end_is_said_in_one_way_only(end: str):
    ways = {
        f"{end}Offsets": "latest",
        f"{end}Timestamp": "5",
        f"{end}OffsetsByTimestamp": '{"flights":{"b":{"0":5}}}',
    }
    for first, second in combinations(ways, 2):
        given = {**REQUIRED, first: ways[first], second: ways[second]}
        with pytest.raises(ConfigError, match=f"option {second} and {first} exclude each other"):
            SourceOptions.parse(given)


def test_times_are_read_whole_and_per_queue():
    queue = MessageQueue("flights", "b", 0)
    text = '{"flights":{"b":{"0":5}}}'
    made = SourceOptions.parse({**REQUIRED, "startingTimestamp": "7", "endingTimestamp": "9"})
    assert made.starting_offsets == Since(7, "startingTimestamp")
    assert made.ending_offsets == Since(9, "endingTimestamp")
    made = SourceOptions.parse({**REQUIRED, "startingOffsetsByTimestamp": text})
    assert made.starting_offsets == Since({queue: 5}, "startingOffsetsByTimestamp")
    seconds = text.replace("5", "1795826213")
    with pytest.raises(ConfigError, match="1795826213 looks like seconds since 1970"):
        SourceOptions.parse({**REQUIRED, "startingOffsetsByTimestamp": seconds})
    made = SourceOptions.parse({**REQUIRED, "endingOffsetsByTimestamp": text})
    assert made.ending_offsets == Since({queue: 5}, "endingOffsetsByTimestamp")


def test_a_batch_that_ends_before_it_starts_in_time_is_refused():
    given = {"startingTimestamp": "9", "endingTimestamp": "8"}
    text = "option startingTimestamp=9 is later than endingTimestamp=8"
    with pytest.raises(ConfigError, match=text):
        SourceOptions.parse({**REQUIRED, **given}).check_batch()
    SourceOptions.parse({**REQUIRED, **given, "endingTimestamp": "9"}).check_batch()


@pytest.mark.parametrize("name", ["endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_with_an_end_in_time_is_refused(name: str):
    value = "5" if name == "endingTimestamp" else '{"flights":{"b":{"0":5}}}'
    with pytest.raises(ConfigError, match=f"option {name} is for batches only"):
        SourceOptions.parse({**REQUIRED, name: value}).check_stream()


def test_a_minimum_over_the_maximum_is_refused():
    given = {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger=6 is over maxOffsetsPerTrigger=5"):
        SourceOptions.parse({**REQUIRED, **given})
    made = SourceOptions.parse({**REQUIRED, **given, "minOffsetsPerTrigger": "5"})
    assert made.max_trigger_delay_ms == 15 * 60 * 1000


def test_a_group_whose_offsets_count_has_a_name_that_brokers_take():
    given = {"startingOffsets": "group", "consumerGroup": "a b"}
    with pytest.raises(ConfigError, match=r"option consumerGroup: .*illegal character"):
        SourceOptions.parse({**REQUIRED, **given})
    made = SourceOptions.parse({**REQUIRED, **given, "consumerGroup": "orders"})
    assert made.starting_offsets is Bound.GROUP
    assert made.consumer_group == "orders"


def test_offsets_of_a_group_are_stored_by_streams_only():
    given = {"commitGroupOffsets": "true", "consumerGroup": "orders"}
    with pytest.raises(ConfigError, match="option commitGroupOffsets is for streams only"):
        SourceOptions.parse({**REQUIRED, **given}).check_batch()
    SourceOptions.parse({**REQUIRED, **given}).check_stream()


def test_offsets_json_is_read_by_topic_broker_and_queue():
    bound = parse_bound(
        '{"t":{"b":{"0":12,"3":-2}}}', Selection(topics=("t",)), option="startingOffsets"
    )
    assert bound == {MessageQueue("t", "b", 0): 12, MessageQueue("t", "b", 3): EARLIEST}


def test_words_for_offsets_are_read_in_any_case():
    assert (
        parse_bound(" Earliest", Selection(topics=("t",)), option="startingOffsets")
        is Bound.EARLIEST
    )
    assert parse_bound("LATEST", Selection(topics=("t",)), option="startingOffsets") is Bound.LATEST


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
def test_a_condition_needs_its_type(expression: str):
    with pytest.raises(ConfigError, match=r"is no tag expression.*subExpressionType=SQL92"):
        SourceOptions.parse({**REQUIRED, "subExpression": expression})
    given = {"subExpression": expression, "subExpressionType": "sql92"}
    made = SourceOptions.parse({**REQUIRED, **given})
    assert made.sub_expression == expression
    assert made.tags == ()
    assert made.is_filtered


def test_without_an_expression_nothing_is_filtered():
    assert not SourceOptions.parse(REQUIRED).is_filtered
    assert SourceOptions.parse({**REQUIRED, "subExpression": "a"}).is_filtered
    with pytest.raises(ConfigError, match="subExpressionType=SQL92 needs subExpression"):
        SourceOptions.parse({**REQUIRED, "subExpressionType": "SQL92"})


def test_a_condition_that_does_not_compile_is_an_error():
    given = {"subExpressionType": "SQL92", "subExpression": "a >"}
    with pytest.raises(ConfigError, match=r"option subExpression='a >' is no condition \(SQL92\)"):
        SourceOptions.parse({**REQUIRED, **given})


def test_a_namespace_stands_before_topics_queues_and_groups():
    queue = MessageQueue("ns%flights", "b", 0)
    given = {**REQUIRED, "namespace": "ns", "startingOffsets": '{"flights":{"b":{"0":5}}}'}
    made = SourceOptions.parse({**given, "consumerGroup": "g"})
    assert made.topics == ("ns%flights",)
    assert made.consumer_group == "ns%g"
    assert made.starting_offsets == {queue: 5}
    assigned = given_with("assign", '{"flights":{"b":[0]}}') | {"namespace": "ns"}
    assert SourceOptions.parse(assigned).selection.queues == {queue}
    for value in ("", " ", "a b", "a%b", "%"):
        with pytest.raises(ConfigError, match="option namespace="):
            SourceOptions.parse({**REQUIRED, "namespace": value})


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


def test_tls_has_options_and_is_on_with_any_of_them(tmp_path):
    assert SourceOptions.parse(REQUIRED).tls is False
    assert SourceOptions.parse({**REQUIRED, "tls": "true"}).tls == TlsSettings()
    authority = Authority(tmp_path)
    ca, (certificate, key) = str(authority.ca), map(str, authority.files("ours"))
    given = {"tlsCaFile": ca, "tlsCheckHostName": "false", "tlsKeyPassword": "word"}
    given |= {"tlsCertificateFile": certificate, "tlsKeyFile": key, "tlsVerify": "true"}
    options = SourceOptions.parse({**REQUIRED, **given})
    assert options.tls == TlsSettings(
        ca=ca, certificate=certificate, key=key, key_password="word", check_host_name=False
    )
    assert "word" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigError, match="tlsCaFile is given, but tls=false"):
        SourceOptions.parse({**REQUIRED, "tls": "false", "tlsCaFile": "ca.pem"})
