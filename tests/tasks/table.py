"""All tasks, in the order of the guide."""

from __future__ import annotations

from tests.tasks.brokers import BROKER_TASKS
from tests.tasks.groups import LOOK_TASKS, MAKE_TASKS, DeleteGroup, Pause
from tests.tasks.kept import DEAD_TASKS, WAITING_TASKS
from tests.tasks.messages import FIND_TASKS
from tests.tasks.offsets import OFFSET_TASKS
from tests.tasks.task import Task
from tests.tasks.topics import TOPIC_TASKS

__all__ = ["TASKS"]

TASKS: tuple[type[Task], ...] = (
    *BROKER_TASKS,
    *TOPIC_TASKS,
    *MAKE_TASKS,
    *LOOK_TASKS,
    Pause,
    *OFFSET_TASKS,
    DeleteGroup,
    *FIND_TASKS,
    *DEAD_TASKS,
    *WAITING_TASKS,
)
