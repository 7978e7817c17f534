"""The console: pages in a browser for who operates a cluster, Kerolox's or Java's.

It is a process of its own and a client of the cluster, by :mod:`kerolox.admin` alone. Pages are
made here and not in the browser; what changes something is a POST that needs a role, a token and
``actions``. Needs the extra ``console``.
"""
