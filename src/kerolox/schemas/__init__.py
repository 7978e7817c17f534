"""Schemas of bodies: Confluent's wire format, and a client of registries that speak its REST.

``wire`` is bytes alone. ``registry`` asks, and needs urllib3; ``serializers`` makes what writes and
reads values, and needs fastavro or protobuf: all come with the extra ``schemas``.
"""
