"""The files of timer messages, byte for byte those of RocketMQ 5.3.3: read and written as bytes,
with no file opened and no clock read.

They are an index: the messages lie in the log, and the queue of ``rmq_sys_wheel_timer`` leads to
them. ``docs/design/timer.md`` says who reads and writes what.
"""
