"""Offsets of many queues: their JSON, shares of a batch, lives of a topic."""
