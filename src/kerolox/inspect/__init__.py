"""A store from outside: check, dump, info, backup, and rebuilding queues and index.

All but :mod:`~kerolox.inspect.rebuild` only read. They lock nothing, and work beside a running
broker, Java's or ours. They take the sizes of files from the files.
"""
