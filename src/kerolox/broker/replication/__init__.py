"""Copies of the commit log: the master's side and the slave's (``HAService`` of RocketMQ).

``wire``, ``master`` and ``slave`` decide and do no I/O. ``server`` and ``follower`` own the
sockets.
"""
