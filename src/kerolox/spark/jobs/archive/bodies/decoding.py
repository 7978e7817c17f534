"""Adds two columns to rows: what the body is decoded to, and why it could not be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kerolox.spark.jobs.archive.options import ArchiveOptions, Body

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

SCHEMA_BYTES_MAX = 4 * 1024 * 1024


class Decoder(Protocol):
    """Decodes bodies of one schema. It is pickled: it keeps the schema as text or bytes."""

    def value_type(self) -> DataType:
        """Of column ``value``."""

    def decode(self, frame: DataFrame) -> DataFrame:
        """The rows with columns ``value`` and ``reason``; one of both is null."""


def decoder_of(options: ArchiveOptions) -> Decoder | None:
    """The decoder that options ask for; None: bodies stay as they are. ConfigError: the file of the
    schema can't be read, or has no schema that can be used.
    """
    body = Body(options.body)
    if body is Body.BINARY:
        return None
    schema = _read(options)
    try:
        match body:
            case Body.JSON:
                from kerolox.spark.jobs.archive.bodies.json_bodies import JsonDecoder

                return JsonDecoder(schema.decode())
            case Body.AVRO:
                from kerolox.spark.jobs.archive.bodies.avro_bodies import AvroDecoder

                return AvroDecoder(schema.decode())
            case Body.PROTOBUF:
                from kerolox.spark.jobs.archive.bodies.protobuf_bodies import ProtobufDecoder

                return ProtobufDecoder(schema, options.body_message)
    except ImportError as error:
        raise options.error(
            "body", f"{body} needs {error.name}; install kerolox[lakehouse]"
        ) from None
    except ValueError as error:
        raise options.error("body_schema", f"{options.body_schema}: {error}") from None


def _read(options: ArchiveOptions) -> bytes:
    path = Path(options.body_schema)
    try:
        with path.open("rb") as file:
            data = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise options.error("body_schema", f"{path} can't be read: {error.strerror}") from None
    if len(data) > SCHEMA_BYTES_MAX:
        raise options.error("body_schema", f"{path} is over {SCHEMA_BYTES_MAX} bytes")
    return data
