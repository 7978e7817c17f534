"""Queues that a push consumer takes on and gives up: shares, locks, offsets, callbacks."""
