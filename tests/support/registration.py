"""A registration's body as a name server takes it in, in one piece."""

from __future__ import annotations

from kerolox.protocol.bodies import TopicConfigTable
from kerolox.protocol.registration import RegisterBody, RegistrationReader


def decode_registration(data: bytes, *, compressed: bool) -> RegisterBody:
    """What ``encode_registration`` was given.

    Raises:
        BodyError: as :meth:`RegistrationReader.pieces`.
    """
    reader = RegistrationReader(data, compressed=compressed)
    topics = {topic.topic_name: topic for piece in reader.pieces() for topic in piece}
    return RegisterBody(
        filter_server_list=reader.filter_servers,
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=reader.data_version, topic_config_table=topics
        ),
    )
