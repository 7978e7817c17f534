"""What clients encode and decode for each message, in Python and native, equal to the byte.

The general way (:class:`kerolox.protocol.command.RemotingCommand`) is complete. A codec is faster
for what is plain, and free to decline all else: its caller takes the general way then.
``choice.py`` and ``messages.py`` say whose codec a process uses, by the rule of the kernel.
"""
