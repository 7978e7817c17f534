"""Each constant of the wire stands once: in its home, and in what is generated from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox._pykernel import headers as fast_headers
from kerolox.message import ITEM_END, NAME_END, PropertyKey
from kerolox.protocol import codes, names, records
from kerolox.protocol.headers import SEND_LONG_NAMES, PullMessageHeader, SendMessageHeader
from tests.support.parsed import parsed

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parent.parent
PYTHON, RUST = ROOT / "src" / "kerolox", ROOT / "kernel" / "core" / "src"

ORDINARY_WORDS = frozenset(("topic", "queueId", "flag", "properties", "batch", "subscription"))
"""Header fields whose names are those of columns, settings or members of bodies too."""

SHARED_NAMES = frozenset(
    (
        *("consumerGroup", "producerGroup", "queueOffset", "bornTimestamp", "sysFlag"),
        *("reconsumeTimes", "commitOffset", "expressionType", "subVersion"),
        *("defaultTopic", "defaultTopicQueueNums", "unitMode", "maxReconsumeTimes"),
    )
)
"""Fields that the headers of other requests, and bodies, have too: replies, send-backs, topics."""

KEYS = frozenset(value for name, value in vars(PropertyKey).items() if name.isupper())
FIELDS = (
    frozenset(
        (
            *SEND_LONG_NAMES.values(),
            *PullMessageHeader.__struct_encode_fields__,
            *SendMessageHeader.__struct_encode_fields__,
        )
    )
    - ORDINARY_WORDS
)
OWN_FIELDS = FIELDS - SHARED_NAMES
NUMBERS = {
    names.PROPERTIES_BYTES_MAX: "PROPERTIES_BYTES_MAX",
    names.TOPIC_BYTES_MAX: "TOPIC_BYTES_MAX",
    records.MESSAGE_MAGIC: "MESSAGE_MAGIC",
    records.BLANK_MAGIC: "BLANK_MAGIC",
    codes.HEADER_SIZE_MASK: "HEADER_SIZE_MASK",
    codes.VERSION: "VERSION",
    codes.COMPRESSION_TYPE_MASK: "COMPRESSION_TYPE_MASK",
    codes.COMPRESSION_ZLIB: "COMPRESSION_ZLIB",
}

HOMES = {
    "message.py": "properties and their separators",
    "protocol/attributes.py": "attributes and their values",
    "protocol/codes.py": "codes, flags, limits of frames",
    "protocol/names.py": "limits and names of texts",
    "protocol/records.py": "the record",
    "protocol/headers.py": "header fields",
    "_pykernel/headers.py": "which header fields the fast path takes",
    "client/core/tracing/trace.py": "separators of the trace's own text",
}


def literals(path: Path) -> Iterator[tuple[int, object]]:
    """(line, value) of each literal of a module, its docstrings aside."""
    tree = parsed(path)
    texts = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in texts:
            yield node.lineno, node.value


def fault(value: object) -> str | None:
    """What a literal repeats; None for an ordinary one."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if isinstance(text, str):
        if text in KEYS:
            return f"the property {text}"
        if text in (NAME_END, ITEM_END):
            return "a separator of properties"
        if text in OWN_FIELDS:
            return f"the header field {text}"
    if type(value) is int and value in NUMBERS:
        return NUMBERS[value]
    return None


def test_no_module_of_python_repeats_a_constant_of_the_wire() -> None:
    found = []
    for path in sorted(PYTHON.rglob("*.py")):
        name = str(path.relative_to(PYTHON))
        if name not in HOMES and not name.startswith("client/sync/"):
            found += [
                f"{name}:{line}: {what}"
                for line, value in literals(path)
                if (what := fault(value)) is not None
            ]
    assert found == []


def test_request_codes_are_given_by_name() -> None:
    found = []
    for path in sorted(PYTHON.rglob("*.py")):
        tree = parsed(path) if "RemotingCommand" in path.read_text() else ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and "RemotingCommand" in ast.unparse(node.func):
                codes_given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "code")]
                if any(isinstance(code, ast.Constant) for code in codes_given):
                    found.append(f"{path.relative_to(PYTHON)}:{node.lineno}")
    assert found == []


def rust_code(path: Path) -> str:
    """A source file without its comments and its tests."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return re.split(r"#\[cfg\(test\)\]\s*(?:pub\(crate\) )?mod tests \{", text)[0]


def test_no_module_of_the_engine_repeats_a_constant_of_the_wire() -> None:
    texts = KEYS | (FIELDS - SHARED_NAMES)
    found = []
    for path in sorted(RUST.rglob("*.rs")):
        name = str(path.relative_to(RUST))
        if name == "protocol.rs" or "tests" in name:
            continue
        code = rust_code(path)
        found += [f"{name}: {text}" for text in re.findall(r'b?"([^"\n]*)"', code) if text in texts]
        for number in re.findall(r"(?<![\w.])-?(?:0x[0-9A-Fa-f_]+|\d[\d_]*)(?![\w.])", code):
            digits = number.replace("_", "")
            value = int(digits, 16 if "x" in digits else 10) & 0xFFFF_FFFF
            if value in NUMBERS:
                found.append(f"{name}: {NUMBERS[value]} as {number}")
    assert found == []


@pytest.mark.parametrize(
    ("fast", "typed", "further"),
    [
        (fast_headers.PullFields, PullMessageHeader, {"bname", "maxMsgBytes"}),
        (fast_headers.SendFieldsV1, SendMessageHeader, {"bname"}),
    ],
)
def test_the_fast_path_knows_the_fields_of_the_typed_header(
    fast: type, typed: type, further: set[str]
) -> None:
    known = set(fast.__struct_encode_fields__)  # type: ignore[attr-defined]
    known -= set(fast_headers.SIGNING_FIELDS)
    assert known == set(typed.__struct_encode_fields__) | further  # type: ignore[attr-defined]


STORED = frozenset(("FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"))
"""Codes of answers to a send that is stored, but less safely than the broker is set to."""

REFUSED_FOR_NOW = frozenset(
    ("SYSTEM_ERROR", "SYSTEM_BUSY", "SERVICE_NOT_AVAILABLE", "TOPIC_NOT_EXIST", "NO_PERMISSION")
)
"""Codes that some rule tries again."""

CODE_SET_HOMES = {
    "client/core/sending/send.py": "what counts as stored",
    "client/core/sending/retry.py": "what may be tried again",
    "broker/grpc/answers.py": "which code of gRPC stands for one of remoting",
}


def code_sets(tree: ast.Module) -> Iterator[int]:
    """The lines of collections of response codes that state one of these rules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            members = list(filter(None, node.keys))
        elif isinstance(node, ast.Set | ast.List | ast.Tuple):
            members = node.elts
        else:
            continue
        codes_in = {
            each.attr
            for each in members
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "ResponseCode"
        }
        if len(codes_in & STORED) > 1 or len(codes_in & REFUSED_FOR_NOW) > 1:
            yield node.lineno


def test_what_is_stored_and_what_is_tried_again_stand_once() -> None:
    found, homes = [], set()
    for path in sorted(PYTHON.rglob("*.py")):
        name = str(path.relative_to(PYTHON))
        lines = list(code_sets(parsed(path)))
        if lines and name in CODE_SET_HOMES:
            homes.add(name)
        else:
            found += [f"{name}:{line}" for line in lines]
    assert found == []
    assert homes == CODE_SET_HOMES.keys()


def answer_headers(tree: ast.Module) -> Iterator[int]:
    """The lines of structs that read the header of an answer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(b) for b in node.bases):
            fields = {ast.unparse(each.target) for each in node.body if type(each) is ast.AnnAssign}
            if {"code", "opaque"} <= fields:
                yield node.lineno


HEADER_HOMES = {
    "protocol/serialize.py": "a whole header",
    "codec/python_answers.py": "fast-path answers",
}


def test_the_header_of_an_answer_has_one_decoder_on_each_path() -> None:
    found = {
        str(path.relative_to(PYTHON)): len(list(answer_headers(parsed(path))))
        for path in sorted(PYTHON.rglob("*.py"))
    }
    assert {name: count for name, count in found.items() if count} == dict.fromkeys(HEADER_HOMES, 1)


def test_a_second_statement_of_a_rule_would_be_found() -> None:
    for text in (
        "A = (ResponseCode.SYSTEM_BUSY, ResponseCode.TOPIC_NOT_EXIST)",
        "A = {ResponseCode.FLUSH_DISK_TIMEOUT: 1, ResponseCode.SLAVE_NOT_AVAILABLE: 2}",
    ):
        assert list(code_sets(ast.parse(text)))
    ordinary = ast.parse("A = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)")
    assert not list(code_sets(ordinary))
    header = ast.parse("class A(msgspec.Struct):\n    code: int\n    opaque: int")
    assert list(answer_headers(header))


def test_a_repeated_constant_would_be_found() -> None:
    for value in (b"WAIT", "UNIQ_KEY", "\x01", "maxMsgNums", 32_767, 127, 0xDAA320A7):
        assert fault(value) is not None
    for value in ("wait", "queueId", 128, True, None):
        assert fault(value) is None
