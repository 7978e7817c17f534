"""What a member of a group says of itself when it stores an offset and waits for the answer."""

MEMBER_FIELD = "member"
"""``true`` in UPDATE_CONSUMER_OFFSET (15): a member sends it, not an operator. A broker that was
started anew knows no members before their heartbeats. Brokers of RocketMQ pass over it; its Java
clients store their offsets one-way."""
