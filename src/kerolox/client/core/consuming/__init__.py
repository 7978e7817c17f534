"""Consuming, without I/O: pulls, offsets, process queues, rebalance."""
