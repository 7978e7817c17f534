"""Tools for agents by the Model Context Protocol, over stdio: ``kerolox mcp``.

They ask the cluster as the console does, by :mod:`kerolox.admin` and :mod:`kerolox.doctor`, and act
by the console's actions, with their roles and audit lines. Needs the extra ``mcp``.
"""
