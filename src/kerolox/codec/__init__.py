"""What clients encode and decode for each message, in Python and native, equal to the byte.

The slow path (:class:`kerolox.protocol.command.RemotingCommand`) is complete. A codec is faster for
ordinary messages, and free to decline all else: its caller takes the slow path then. ``choice.py``
and ``messages.py`` choose the codec of a process, by the rule of the kernel.
"""
