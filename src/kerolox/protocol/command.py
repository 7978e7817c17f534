"""One request or response: ``RemotingCommand``, and its way to and from the bytes of a frame.

A frame is: 4 bytes length of the rest, 1 byte serialize type, 3 bytes header length, header, body.
``encode`` gives the whole frame, ``decode`` takes what follows the length (as the frame decoder and
the kernel hand it out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kerolox.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from kerolox.protocol.codes import (
    BINARY_CODE_MAX,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    VERSION,
    LanguageCode,
    ResponseCode,
    SerializeType,
)
from kerolox.protocol.framing import encode_frame, split_frame
from kerolox.protocol.names import SECURITY_TOKEN_FIELD, SIGNATURE_FIELD
from kerolox.protocol.serialize import (
    HeaderFields,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
)

_JSON = SerializeType.JSON
_SERIALIZE_TYPES = {int(each): each for each in SerializeType}


@dataclass(slots=True)
class RemotingCommand:
    """A request (``code`` is a request code) or a response (``code`` is a response code)."""

    code: int
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: LanguageCode = LanguageCode.PYTHON
    version: int = VERSION
    serialize_type: SerializeType = SerializeType.JSON

    def __repr__(self) -> str:
        """All but what a signed request must not tell in a log."""
        hidden = (SECURITY_TOKEN_FIELD, SIGNATURE_FIELD)
        fields = {name: "***" if name in hidden else text for name, text in self.ext_fields.items()}
        return (
            f"RemotingCommand(code={self.code}, ext_fields={fields}, body={self.body!r},"
            f" opaque={self.opaque}, flag={self.flag}, remark={self.remark!r},"
            f" language={self.language!r}, version={self.version},"
            f" serialize_type={self.serialize_type!r})"
        )

    @classmethod
    def request(
        cls,
        code: int,
        ext_fields: Mapping[str, object] | None = None,
        *,
        body: bytes = b"",
        oneway: bool = False,
    ) -> RemotingCommand:
        """A request. Values become text as Java writes them; a None value is left out."""
        return cls(code, wire_fields(ext_fields), body, flag=FLAG_ONEWAY if oneway else 0)

    def response(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext_fields: Mapping[str, object] | None = None,
        *,
        body: bytes = b"",
    ) -> RemotingCommand:
        """The response to this request: same opaque, same encoding."""
        return RemotingCommand(
            code,
            wire_fields(ext_fields),
            body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            serialize_type=self.serialize_type,
        )

    def not_supported(self) -> RemotingCommand:
        """The response to a request whose code nobody handles."""
        return self.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {self.code} not supported"
        )

    @property
    def is_response(self) -> bool:
        """It answers a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Nobody waits for an answer."""
        return bool(self.flag & FLAG_ONEWAY)

    def raise_for_code(self, address: str = "") -> None:
        """BrokerError, which names ``address``, unless it is a response of code 0."""
        if self.code != ResponseCode.SUCCESS:
            raise BrokerError.from_response(self.code, self.remark, address)

    def encode(self) -> bytes:
        """The whole frame. LocalProtocolError: it would be longer than ``FRAME_BYTES_MAX``, or a
        text has no encoding: it has half of a surrogate pair.
        """
        fields = HeaderFields(
            self.code,
            self.language,
            self.version,
            self.opaque,
            self.flag,
            self.remark,
            self.ext_fields,
        )
        kind = self.serialize_type if self.code <= BINARY_CODE_MAX else _JSON
        try:
            header = encode_json_header(fields) if kind == _JSON else encode_binary_header(fields)
        except UnicodeEncodeError:
            raise LocalProtocolError(
                f"the header of code {self.code} has a text with half of a surrogate pair, which"
                " no encoding has; remove it"
            ) from None
        size = 4 + len(header) + len(self.body)
        if size > FRAME_BYTES_MAX:
            raise LocalProtocolError(
                f"frame of {size} bytes for code {self.code}; the limit is {FRAME_BYTES_MAX}"
            )
        return encode_frame(header, self.body, kind)

    @classmethod
    def decode(cls, frame: bytes | memoryview) -> RemotingCommand:
        """Decode a frame without its length field; RemoteProtocolError: the header is malformed."""
        serialize_type, header, body = split_frame(frame)
        known = _SERIALIZE_TYPES.get(serialize_type)
        if known is _JSON:
            fields = decode_json_header(header)
        elif known is not None:
            fields = decode_binary_header(header)
        else:
            raise RemoteProtocolError(f"unknown serialize type {serialize_type}")
        return cls(
            fields.code,
            fields.ext_fields,
            bytes(body),
            opaque=fields.opaque,
            flag=fields.flag,
            remark=fields.remark,
            language=fields.language,
            version=fields.version,
            serialize_type=known,
        )


def wire_fields(values: Mapping[str, object] | None) -> dict[str, str]:
    """Header values as text, as Java's ``toString`` gives it; None values are left out."""
    if not values:
        return {}
    return {key: _wire_text(value) for key, value in values.items() if value is not None}


def _wire_text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(int(value))
    return str(value)
