"""Consumption, decided without I/O: pulls, offsets, process queues, shares of queues."""
