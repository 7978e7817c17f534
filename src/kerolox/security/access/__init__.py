"""Access control of a broker (``aclEnable``): who may send, read and manage what.

Names and rules are those of RocketMQ's plain ACL (``PlainPermissionManager``).
"""
