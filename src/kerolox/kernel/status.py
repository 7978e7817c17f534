"""Results of the store's operations: RocketMQ's enums, with the numbers the kernel's face uses.

The numbers are ours (RocketMQ has names only); both kernels return them as plain ints.
What a pull is answered with for each result of its read is here, too.
"""

from __future__ import annotations

from enum import IntEnum

from kerolox.protocol.codes import ResponseCode


class PutMessageStatus(IntEnum):
    """What became of a record that was to be stored."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPEDFILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGECACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 10


class GetMessageStatus(IntEnum):
    """What a read of a consume queue found."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class AppendMessageStatus(IntEnum):
    """What one file of the commit log said to a record."""

    PUT_OK = 0
    END_OF_FILE = 1
    MESSAGE_SIZE_EXCEEDED = 2
    PROPERTIES_SIZE_EXCEEDED = 3
    UNKNOWN_ERROR = 4


_PULL_CODES: dict[int, int] = {
    GetMessageStatus.FOUND: int(ResponseCode.SUCCESS),
    GetMessageStatus.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.OFFSET_FOUND_NULL: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.OFFSET_OVERFLOW_ONE: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: int(ResponseCode.PULL_OFFSET_MOVED),
    GetMessageStatus.OFFSET_TOO_SMALL: int(ResponseCode.PULL_OFFSET_MOVED),
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: int(ResponseCode.PULL_NOT_FOUND),
}
_QUEUE_IS_EMPTY = int(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)


def pull_code(status: int, offset: int) -> int:
    """The response code for a read at ``offset`` that gave ``status``."""
    if offset != 0 and status >= _QUEUE_IS_EMPTY:
        # No such queue, or nothing in it: only its start can be waited for.
        return int(ResponseCode.PULL_OFFSET_MOVED)
    return _PULL_CODES[status]
