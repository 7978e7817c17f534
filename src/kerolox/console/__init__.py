"""The console: pages in a browser for operators of a cluster, Kerolox's or Java's.

It is a process of its own and a client of the cluster, by :mod:`kerolox.admin` and
:mod:`kerolox.doctor` alone. It renders pages here and not in the browser. A change is a POST that
needs a role, a token and ``actions``. Needs the extra ``console``.
"""
