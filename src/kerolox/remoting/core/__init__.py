"""What a connection decides about its requests: events in, actions out; no I/O, no clock.

Times come in as arguments, in seconds of one clock that only goes on. Actions are functions that
are given: arm a timer, have another iteration, check once more whether a peer is silent.
"""
