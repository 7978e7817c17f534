"""Requests of Kerolox's own, which no release of RocketMQ has."""
