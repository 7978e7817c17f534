"""Inspecting a store from outside: check, dump, info; and making queues and index anew.

All but :mod:`~kerolox.inspect.rebuild` only read: they open files for reading, lock nothing,
and work beside a running broker, Java's or ours. Sizes of files are taken from the files.
"""
