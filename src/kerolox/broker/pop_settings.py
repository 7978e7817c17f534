"""The part of a broker's settings that is about pops, under the keys of RocketMQ 5.3.3."""

from __future__ import annotations

from dataclasses import field

from kerolox.broker.controller_mode_settings import ControllerModeSettings
from kerolox.role_settings import LATER, LIVE
from kerolox.settings_class import settings_dataclass

_INT: dict[str, object] = {"max": (1 << 31) - 1}


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class PopSettings(ControllerModeSettings):
    """Settings of pops."""

    pop_polling_size: int = field(default=1024, metadata=LIVE | {"min": 0} | _INT)
    """Pops and notifications of a group that wait for one queue of a topic, or for all of them."""
    max_pop_polling_size: int = field(default=100_000, metadata=LIVE | {"min": 0, "max": 100_000})
    """Those that wait in all."""
    pop_from_retry_probability: int = field(default=20, metadata=LIVE | {"min": 0, "max": 100})
    """Of a hundred pops, those that read retries first; the others read them last."""
    enable_retry_topic_v2: bool = field(default=False, metadata=LIVE)
    """New topics of retries are ``%RETRY%group+topic``, else ``%RETRY%group_topic``."""
    retrieve_message_from_pop_retry_topic_v1: bool = field(default=True, metadata=LIVE)
    """With enableRetryTopicV2: topics of version 1 are still read."""
    pop_response_return_actual_retry_topic: bool = field(default=False, metadata=LIVE)
    """Retries have their own topic in the answer, and no receipt among their properties."""
    init_pop_offset_by_check_msg_in_mem: bool = field(default=True, metadata=LIVE)
    """A group begins at the first message of a queue that is still whole in memory."""
    pop_inflight_message_threshold: int = field(
        default=10_000, metadata=LATER | {"min": 1, "max": 100_000}
    )
    """Messages of a queue that a group may have out, always (``enablePopMessageThreshold``)."""
    default_message_request_mode: str = field(
        default="PULL", metadata=LIVE | {"choices": ("PULL", "POP")}
    )
    """How members consume that leave it to the broker (QUERY_ASSIGNMENT)."""
    default_pop_share_queue_num: int = field(default=-1, metadata=LIVE | {"min": -1} | _INT)
    """With POP: how many of the members after it each one helps; 0 or less: all."""
