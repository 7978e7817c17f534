"""Which broker is the master: reading it and changing it.

``steps`` is a planned change as a sequence of requests, ``loss`` judges what an emergency may cost;
both know no sockets. ``listing`` asks whether name servers list the new master. ``changing`` has
the functions for users.
"""
