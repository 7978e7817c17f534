"""The requests of a connection: events in, actions out; no I/O, no clock.

Times are arguments, in seconds of a monotonic clock. Actions are functions that the caller gives:
arm a timer, have another iteration, check once more whether a peer is silent.
"""
