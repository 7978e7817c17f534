"""POP: the broker chooses offsets and remembers what is out (``PopMessageProcessor``).

What is delivered, to whom it is invisible until when, what comes again, how far a group is: all of
it is decided here, without I/O and without a clock. A caller reads the store, gives the time, and
does what comes back: copies to topics of retries, commits of offsets. See ``docs/design/pop.md``.
"""
