"""Texts at the edge of what each option of the Spark formats takes, and wrong ones.

Texts in braces are files, which the tests make.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["HOSTILE", "SINK", "SOURCE", "STORE", "Case", "Cases"]

MOST = 2**63 - 1
OVER = str(MOST + 1)
DAYS_30 = 30 * 24 * 60 * 60 * 1000
LONG_NAME = "t" * 127
TOO_LONG_NAME = "t" * 128
LONG_GROUP = "g" * 255
DEEP = '{"a":' * 100_000
DIGITS = "9" * 5000

HOSTILE = (
    *("[" * 100_000, DEEP, DIGITS, "x" * 100_000, "a\x00b", "\n", "\u202e", "é" * 40_000),
    *('{"a":"\\ud800"}', '{"\\ud800":{"b":{"0":1}}}', '{"a":{"b":{"' + DIGITS + '":1}}}'),
    *(
        '{"a":{"' + DIGITS + '":1}}',
        '{"a":{"b":{"0":' + DIGITS + "}}}",
        "null",
        "[]",
        "{}",
        '{"a":1}',
    ),
    *(
        '{"a":{"0":1e999}}',
        '{"a":{"b":[NaN]}}',
        "%s%n",
        "../../x",
        "file:///",
        "s3://[",
        "a\\",
        "(?i",
        "🐘",
    ),
)
"""Each option takes such a text, or says in a plain error that it does not."""


@dataclass(frozen=True)
class Case:
    """One option.

    Args:
        taken: texts at its edges.
        wrong: texts, each with what its error says (a regular expression).
        beside: further options of all these; None takes a required one away.
        is_stream: what they are planned for.
    """

    taken: tuple[str, ...]
    wrong: tuple[tuple[str, str], ...]
    beside: dict[str, str | None] = field(default_factory=dict)
    is_stream: bool = False


Cases = dict[str, Case | tuple[Case, ...]]


def _number(most: int = MOST, least: int = 1) -> Case:
    texts = ("x", "", "1.5", "1e3", "-1", "٣", DIGITS, str(most + 1), str(least - 1))
    wrong = tuple((text, f"must be a whole number from {least}") for text in dict.fromkeys(texts))
    return Case((str(least), str(most), f" {least} "), wrong)


def _wait() -> Case:
    return _number(DAYS_30)


def _choice(*texts: str, says: str) -> Case:
    taken = (*texts, texts[0].upper(), f" {texts[-1]} ")
    return Case(taken, tuple((text, says) for text in ("", "x", f"{texts[0]}x")))


def _boolean() -> Case:
    case = _choice("true", "false", says="must be true or false")
    more = tuple((text, "must be true or false") for text in ("yes", "1", "t"))
    return Case(case.taken, case.wrong + more)


def _size(least: str = "1", most: str = str(MOST), *more: tuple[str, str]) -> Case:
    says = "must be bytes from 1 up"
    wrong = tuple((text, says) for text in ("0", "", "-1", "1.5g", "5x", "k", OVER, DIGITS + "t"))
    return Case((least, most), (*wrong, *more))


def _time() -> Case:
    says = "must be milliseconds since 1970"
    wrong = ("", "-1", "now", "2023-11-14", "2023-11-14T22:13:20", OVER, "1969-12-31T23:59:59Z")
    taken = ("0", str(MOST), "1970-01-01T00:00:00Z", "2026-01-31T18:00:00.500+02:00")
    seconds = ("1795826213", "write 1795826213000 or 2026-11-28T00:36:53.00:00")
    return Case(taken, (*((text, says) for text in wrong), seconds))


def _pattern() -> Case:
    wrong = (("", "1 to 1000"), ("x" * 1001, "1 to 1000"), ("a(", "no regular expression"))
    more = (r"\p{Alpha}", "a{99999999999999}", "[")
    wrong += tuple((text, "no regular expression") for text in more)
    return Case(("x" * 1000, " [a-z]+-.* ", "%RETRY%.*"), wrong, {"subscribe": None})


def _topics(*more: tuple[str, str]) -> Case:
    names = ",".join(f"t{number}" for number in range(1001))
    wrong = ((" , ", "names no topic"), ("", "names no topic"), (names, "1001 topics, over 1000"))
    wrong += (("a b", "illegal character"), (TOO_LONG_NAME, "128 characters"), *more)
    taken = (LONG_NAME, " a ,b,,a", names.removesuffix(",t1000"), "%RETRY%g", "a|b")
    return Case(taken, wrong)


def _columns(*names: str) -> Case:
    wrong = (("", "empty"), (" , ", "empty"), ("body,BODY", "twice"), ("bodi", "did you mean body"))
    return Case(("body", "BODY", " topic , body ", ",".join(names)), wrong)


def _namespace() -> Case:
    says = "must be letters, digits"
    wrong = tuple((text, says) for text in ("", " ", "a b", "a%b", "%", "ä", "_", "a!"))
    return Case(("a", "MQ_INST_1-b", "0"), wrong)


NAME_SERVER = Case(
    ("h:1", "h:65535", " a:1 ; b:2 , a:1", "[::1]:9876", "127.0.0.1:9876"),
    (
        ("", "is empty"),
        (" ; ", "is empty"),
        ("localhost", "localhost"),
        ("h:0", "h:0"),
        ("h:65536", "h:65536"),
        ("h:x", "h:x"),
        (":9876", ":9876"),
    ),
)

CONNECTION = {
    "nameServer": NAME_SERVER,
    "accessKey": Case(("a", "ü" * 100), (("", "missing"), (" ", "missing")), {"secretKey": "s"}),
    "secretKey": Case(("s", "ü" * 100), (("", "missing"), (" ", "missing")), {"accessKey": "a"}),
    "securityToken": (
        Case(("", "t" * 1000), (), {"accessKey": "a", "secretKey": "s"}),
        Case((), (("t", "option accessKey is missing"),)),
    ),
    "credentialsFile": (
        Case(
            ("{tools}", "{session}"),
            (
                ("{nowhere}", "No such file"),
                ("{empty}", "has no AccessKey"),
                ("", "is empty"),
                (" ", "is empty"),
                ("a\0b", "null character"),
                (".", "Is a directory"),
            ),
        ),
        Case((), (("{tools}", "exclude each other"),), {"secretKey": "s"}),
    ),
    "tls": Case(("true", "FALSE"), (("", "true or false"), ("yes", "true or false"))),
    "tlsCaFile": Case(
        ("{ca}",), (("{nowhere}", "No such file"), ("{empty}", "can't use ca"), ("", "can't use"))
    ),
    "tlsCertificateFile": Case(
        ("{certificate}",),
        (("{nowhere}", "No such file"), ("{ca}", "can't use"), ("{other}", "mismatch")),
        {"tlsKeyFile": "{key}"},
    ),
    "tlsKeyFile": Case(
        ("{key}",),
        (("{nowhere}", "No such file"), ("{other_key}", "mismatch"), ("{locked}", "encrypted")),
        {"tlsCertificateFile": "{certificate}"},
    ),
    "tlsKeyPassword": Case(
        ("right-one",),
        (("wrong-one", "can't use"), ("", "can't use")),
        {"tlsCertificateFile": "{certificate}", "tlsKeyFile": "{locked}"},
    ),
    "tlsVerify": _boolean(),
    "tlsCheckHostName": _boolean(),
    "tlsConfigFile": (
        Case(
            ("{tls_config}", "{empty}"),
            (
                ("{nowhere}", "No such file"),
                ("{wrong_tls_config}", "can't use ca"),
                ("", "is empty"),
                ("a\0b", "null character"),
                (".", "Is a directory"),
            ),
        ),
        Case((), (("{tls_config}", "exclude each other"),), {"tlsCaFile": "{ca}"}),
        Case((), (("{tls_config}", "but tls=false"),), {"tls": "false"}),
    ),
}

OFFSETS = '{"flights":{"b":{"%s":%s}}}'


def _offsets(
    words: tuple[str, ...], least: int, what: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Texts that are taken, and wrong ones with their errors, of positions by queue."""
    taken = (*words, OFFSETS % (0, least), OFFSETS % (65_534, MOST), " " + OFFSETS % (0, 0))
    wrong = (
        *(("", "JSON"), ("erliest", "JSON"), ("[]", "is no object"), ("{}", "is no object")),
        *((DEEP, "JSON"), (OFFSETS % (0, DIGITS), "JSON"), ("5", "is no object")),
        ('{"other":{"b":{"0":1}}}', "which subscribe does not name"),
        ('{"flights":{"0":1}}', "where an object must be"),
        ('{"flights":1}', "where an object must be"),
        (OFFSETS % ("zero", 1), "has queue id 'zero'"),
        (OFFSETS % ("-1", 1), "has queue id '-1'"),
        (OFFSETS % ("65535", 1), "has queue id '65535'"),
        (OFFSETS % (DIGITS, 1), "has queue id '999"),
        (OFFSETS % (0, least - 1), f"has {what} {least - 1}"),
        (OFFSETS % (0, OVER), f"has {what} {OVER}"),
        (OFFSETS % (0, '"1"'), f"has {what} '1'"),
        (OFFSETS % (0, "1.5"), f"has {what} 1.5"),
        (OFFSETS % (0, "true"), f"has {what} True"),
    )
    return taken, wrong


LATEST_ONLY = ("latest", "LATEST ")
NO_STREAM = "is for batches only"
ASSIGNED = '{"flights":{"b":%s}}'

SOURCE: Cases = {
    **CONNECTION,
    "subscribe": (
        _topics(),
        Case((), (("a", "and subscribe exclude"),), {"subscribePattern": "a"}),
    ),
    "subscribePattern": _pattern(),
    "assign": Case(
        (ASSIGNED % "[0]", ASSIGNED % "[65534,0,0]", '{"a":{"b":[1],"c":[0]},"d":{"b":[2]}}'),
        (
            *(("flights", "is no JSON"), ("", "is no JSON"), ("{}", "is no object")),
            *(("[]", "is no object"), ("[" * 100_000, "is no JSON"), (DIGITS, "is no JSON")),
            ('{"t":[0]}', "where an object must be"),
            (ASSIGNED % "0", "where a list of queue ids must be"),
            (ASSIGNED % '["0"]', "has queue id '0'"),
            (ASSIGNED % "[true]", "has queue id True"),
            (ASSIGNED % "[-1]", "has queue id -1"),
            (ASSIGNED % "[65535]", "has queue id 65535"),
            (ASSIGNED % "[]", "names no queue"),
            ('{"a b":{"b":[0]}}', "illegal character"),
        ),
        {"subscribe": None},
    ),
    "startingOffsets": (
        Case(*_offsets(("earliest", " Earliest"), -2, "offset")),
        Case(
            (),
            (
                ("latest", "can't be latest"),
                (OFFSETS % (0, -1), "can't be latest"),
                ("group", "needs consumerGroup"),
            ),
        ),
        Case((*LATEST_ONLY, OFFSETS % (0, -1)), (), is_stream=True),
        Case(("group",), (), {"consumerGroup": "g"}),
    ),
    "endingOffsets": (
        Case(_offsets(LATEST_ONLY, 0, "offset")[0], ()),
        Case((), _offsets((), -2, "offset")[1]),
        Case(
            (),
            (
                ("earliest", "can't be earliest"),
                (OFFSETS % (0, -2), "can't be earliest"),
                ("group", "neither earliest, latest nor JSON"),
            ),
        ),
        Case((), (("latest", NO_STREAM),), is_stream=True),
    ),
    "startingTimestamp": (
        _time(),
        Case(("8",), (("9", "is later than endingTimestamp=8"),), {"endingTimestamp": "8"}),
    ),
    "endingTimestamp": (_time(), Case((), (("5", NO_STREAM),), is_stream=True)),
    "startingOffsetsByTimestamp": Case(*_offsets((), 0, "time")),
    "endingOffsetsByTimestamp": (
        Case(*_offsets((), 0, "time")),
        Case((), ((OFFSETS % (0, 5), NO_STREAM),), is_stream=True),
    ),
    "startingOffsetsByTimestampStrategy": _choice(
        "error", "latest", says="must be error or latest"
    ),
    "subExpression": (
        Case(
            ("*", "a", " a || b ", "a||" * 50 + "z", ""),
            ((" || ", "names no tag"), ("a > 5", "is no tag expression")),
        ),
        Case(
            ("a > 5", "TAGS IN ('x')"),
            (("a >", "is no condition"), ("(" * 5000, "is no condition")),
            {"subExpressionType": "SQL92"},
        ),
    ),
    "subExpressionType": (
        _choice("TAG", says="must be tag or sql92"),
        Case(("SQL92",), (), {"subExpression": "a > 5"}),
        Case((), (("SQL92", "needs subExpression"),)),
    ),
    "pushFilters": (_boolean(), Case((), (("true", NO_STREAM),), is_stream=True)),
    "maxOffsetsPerTrigger": _number(),
    "minOffsetsPerTrigger": (
        _number(),
        Case(("5",), (("6", "over maxOffsetsPerTrigger=5"),), {"maxOffsetsPerTrigger": "5"}),
    ),
    "maxTriggerDelay": (
        Case(
            ("1", "1ms", "15 min", f"{MOST}", "1d"),
            tuple(
                (text, "must be a time from 1 ms up")
                for text in ("0", "0s", "", "soon", "5 weeks", "-1s", OVER, "9" * 19 + "d")
            ),
            {"minOffsetsPerTrigger": "1"},
        ),
        Case((), (("1m", "needs minOffsetsPerTrigger"),)),
    ),
    "minPartitions": _number(),
    "maxRecordsPerPartition": _number(),
    "failOnDataLoss": _boolean(),
    "bodyErrors": _choice("fail", "null", "raw", says="must be fail, null or raw"),
    "columns": _columns("topic", "brokerName", "queueId", "properties"),
    "consumerGroup": (
        Case(
            ("g", LONG_GROUP, "%RETRY%g", "a|b"),
            (
                ("a b", "illegal character"),
                ("g" * 256, "256 characters"),
                ("DEFAULT_CONSUMER", "is reserved"),
                ("ä", "illegal character"),
            ),
        ),
        Case((), ((LONG_GROUP, "258 characters"),), {"namespace": "ns"}),
    ),
    "commitGroupOffsets": (
        Case(("true", "false"), (("", "true or false"),), {"consumerGroup": "g"}, is_stream=True),
        Case((), (("true", "needs consumerGroup"), ("yes", "must be true or false"))),
        Case((), (("true", "is for streams only"),), {"consumerGroup": "g"}),
    ),
    "namespace": _namespace(),
    "readFromSlaves": _boolean(),
    "pollTimeoutMs": _wait(),
    "pollIntervalMs": _wait(),
}

STORE_OFFSETS = '{"flights":{"%s":%s}}'
TWO_STORES: dict[str, str | None] = {"path": None, "paths": '["/a","/b"]'}


def _store_offsets(name: str) -> tuple[Case, ...]:
    wrong = (
        *(("", "JSON"), ("earliest", f"{name}Timestamp"), ("[]", "no object"), (DEEP, "JSON")),
        *(("{}", "no object"), (STORE_OFFSETS % (0, DIGITS), "JSON")),
        ('{"flights":3}', "where an object must be"),
        (STORE_OFFSETS % ("x", 3), "queue id 'x'"),
        (STORE_OFFSETS % ("65535", 3), "queue id '65535'"),
        (STORE_OFFSETS % (DIGITS, 3), "queue id '999"),
        (STORE_OFFSETS % (0, -1), "has offset -1"),
        (STORE_OFFSETS % (0, OVER), f"has offset {OVER}"),
        (STORE_OFFSETS % (0, "true"), "has offset True"),
    )
    taken = (STORE_OFFSETS % (0, 0), STORE_OFFSETS % (65_534, MOST))
    other = (('{"other":{"0":1}}', "which subscribe does not name"),)
    return Case(taken, wrong), Case(taken, other, {"subscribe": "flights"})


STORE: Cases = {
    "path": (
        Case(("/s", " /s ", "s", "file:///s", "hdfs://n/s"), ((" ", "storePathRootDir"),)),
        Case(("/c",), (), {"paths": '["/a","/a"]'}),
        Case((), (("/x", "names 1001 stores"),), {"paths": str(list(range(1000)))}),
    ),
    "commitLogPath": (
        Case(("/l", " /l , /m "), (("", "is empty"), (" , ", "is empty"))),
        Case((), (("/l", "is for one store"),), TWO_STORES),
    ),
    "brokerName": (
        Case((" a ", "broker-a"), (("", "is empty"), (" , ", "is empty"), ("a,b", "1 stores"))),
        Case(("a,b",), (("a", "for 2 stores"), ("a,a", "for 2 stores")), TWO_STORES),
    ),
    "subscribe": (
        _topics(),
        Case((), (("a", "subscribePattern and subscribe exclude"),), {"subscribePattern": "a"}),
    ),
    "subscribePattern": _pattern(),
    "includeSystemTopics": _boolean(),
    "startingTimestamp": (
        _time(),
        Case(("8",), (("9", "is behind endingTimestamp"),), {"endingTimestamp": "8"}),
    ),
    "endingTimestamp": _time(),
    "startingPhysicalOffset": (
        _number(least=0),
        Case(("8",), (("9", "is behind endingPhysicalOffset"),), {"endingPhysicalOffset": "8"}),
        Case((), (("1", "is for one store"),), TWO_STORES),
    ),
    "endingPhysicalOffset": (
        _number(least=0),
        Case((), (("1", NO_STREAM),), is_stream=True),
        Case((), (("1", "is for one store"),), TWO_STORES),
    ),
    "startingOffsets": _store_offsets("starting"),
    "endingOffsets": _store_offsets("ending"),
    "columns": _columns("size", "crcOk", "physicalOffset", "properties"),
    "bodyErrors": _choice("fail", "null", "raw", says="must be fail, null or raw"),
    "failOnDataLoss": _boolean(),
    "consumeQueues": (
        _choice("auto", "always", "never", says="must be auto, always or never"),
        Case(("auto", "never"), (("always", NO_STREAM),), is_stream=True),
    ),
    "splitBytes": _size("64k", str(MOST), ("65535", "is below 65536")),
    "maxBytesPerTrigger": _size(),
    "pollIntervalMs": _wait(),
}

MESSAGE_MOST = 15 * 1024 * 1024
PROPERTIES_MOST = 32_767 - 1024
EXACT: dict[str, str | None] = {
    "transactional": "true",
    "transactionLocation": "/tmp/decisions",
    "transactionId": "day-1",
}


def _text() -> Case:
    wrong = (("a\x01", "control character"), ("x" * (PROPERTIES_MOST + 1), "31744 bytes"))
    return Case(("", "a", " ä ", "x" * PROPERTIES_MOST), (*wrong, ("a\nb", "control character")))


SINK: Cases = {
    **CONNECTION,
    "topic": Case(
        (LONG_NAME, " a ", "a|b%c"),
        (
            ("", "is empty"),
            (" ", "is empty"),
            ("a b", "illegal character"),
            (TOO_LONG_NAME, "128 characters"),
            ("RMQ_SYS_TRANS_HALF_TOPIC", "written by the broker only"),
        ),
    ),
    "tags": _text(),
    "keys": _text(),
    "properties": Case(
        ("", "{}", '{"a":"b"}', '{"ä":"ž"}', '{"a":"%s"}' % ("x" * (PROPERTIES_MOST - 3))),
        (
            *(("[]", "is no object"), ("{", "is no JSON"), (DEEP, "is no JSON")),
            ('{"TAGS":"a"}', "reserved"),
            ('{"a":1}', "texts"),
            ('{"a":"\\u0001"}', "U\\+0001|control character"),
            ('{"a":"%s"}' % ("x" * PROPERTIES_MOST), "bytes; the properties of a message"),
        ),
    ),
    "flag": Case(
        ("0", "-2147483648", "2147483647", ""),
        tuple(
            (text, "must be a whole number of 32 bits")
            for text in ("x", "1.5", "-2147483649", "2147483648", "--5", "-", "²", DIGITS)
        ),
    ),
    "delayLevel": (
        _number(64, least=0),
        Case((), (("1", "rows of a transaction can't be delayed"),), EXACT),
    ),
    "deliverTime": (
        _time(),
        Case((), (("1", "rows of a transaction can't be delayed"),), EXACT),
    ),
    "queueId": _number(65_534, least=0),
    "brokerName": Case(("broker-a", " b "), (("a\x01", "control character"),)),
    "orderingKey": Case(("", "k", " ü "), (("a\x7f", "control character"),)),
    "reservedProperties": _choice("fail", "drop", says="must be fail or drop"),
    "producerGroup": (
        Case(
            ("", "g", LONG_GROUP),
            (
                ("a b", "illegal character"),
                ("g" * 256, "256 characters"),
                ("DEFAULT_PRODUCER", "is reserved"),
            ),
        ),
        Case((), ((LONG_GROUP, "258 characters"),), {"namespace": "ns"}),
    ),
    "namespace": _namespace(),
    "sendTimeoutMs": _wait(),
    "schemaId": _number(2**31 - 1, least=0),
    "messageIndexes": (
        Case(
            ("0", "1,0", " 2 "),
            tuple((text, "must be numbers") for text in ("x", "1,", "-1", "1.5", "99999")),
            {"schemaId": "5"},
        ),
        Case((), (("0", "needs schemaId"),)),
    ),
    "maxMessageBytes": _size("1", str(MESSAGE_MOST), (str(MESSAGE_MOST + 1), "no frame holds")),
    "batchBytes": _size("1", str(MESSAGE_MOST), ("16m", "no frame holds more")),
    "inFlightBytes": _size(),
    "transactional": (
        Case(
            ("false", " FALSE "), (("", "must be true or false"), ("yes", "must be true or false"))
        ),
        Case(("TRUE",), (("", "true or false"),), {**EXACT, "transactional": None}),
        Case((), (("true", "transactionLocation is missing"),)),
        Case((), (("true", "needs a place for its decisions"),), is_stream=True),
    ),
    "transactionLocation": (
        Case(
            ("/d", "d/", "file:///d"),
            (("", "is missing"), ("nowhere://d", "nowhere")),
            {**EXACT, "transactionLocation": None},
        ),
        Case((), (("/d", "but not transactional=true"),)),
        Case(("/d",), (("nowhere://d", "nowhere"),), {"transactional": "true"}, is_stream=True),
    ),
    "transactionId": (
        Case(
            ("a", "0", "x" * 100, "day-1_2.3"),
            (
                *(("", "is missing"), ("x" * 101, "1 to 100 letters"), ("../a", "1 to 100")),
                *((".", "1 to 100"), ("ä", "1 to 100"), ("a b", "1 to 100")),
            ),
            {**EXACT, "transactionId": None},
        ),
        Case((), (("a", "but not transactional=true"),)),
        Case((), (("a", "is for batches"),), {"transactional": "true"}, is_stream=True),
    ),
}
