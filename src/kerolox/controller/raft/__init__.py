"""Raft for metadata: decides without I/O, threads and clocks.

``messages`` has what is sent and stored, ``log`` the entries, ``progress`` what a leader knows of
the others, ``raft`` the rules. Names are those of the Raft paper and of etcd's library.
"""
