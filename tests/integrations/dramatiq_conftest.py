"""The ``conftest.py`` for the tests of dramatiq itself: its fixtures give our broker instead of
theirs. ``test_dramatiq_suite.py`` copies it beside them; the server is ``$SERVER``."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import dramatiq
import pytest
from dramatiq import Middleware, Worker
from dramatiq.rate_limits.backends import StubBackend as RateBackend
from dramatiq.results.backends import StubBackend as ResultBackend

from kerolox.integrations.dramatiq import KeroloxBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

# Clients of other brokers, which the tests import.
for name in ("redis", "pika", "pika.exceptions", "pylibmc"):
    sys.modules.setdefault(name, MagicMock())

numbers = itertools.count()


class Failures(Middleware):
    """Keeps why messages became dead letters."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []

    def before_nack(self, broker: Any, message: Any) -> None:
        if message._exception is not None:
            self.found.append(message._exception)


class SuiteBroker(KeroloxBroker):
    """What their broker for tests does on top: a join raises what an actor raised."""

    raises = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(os.environ["SERVER"], namespace=f"suite{next(numbers)}", **settings)
        self.failures = Failures()
        self.add_middleware(self.failures)

    def join(self, queue_name: str, *, fail_fast: bool | None = None, **more: Any) -> None:
        more.pop("min_successes", None)  # of RabbitMQ, which can't count what is worked on
        super().join(queue_name, **more)
        if self.failures.found and (self.raises if fail_fast is None else fail_fast):
            raise self.failures.found.pop(0)
        self.failures.found.clear()

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """As of the broker for RabbitMQ: what is ready, delayed and dead."""
        from kerolox.admin.sync import Admin

        topic = self.queues[queue_name]
        with Admin(os.environ["SERVER"]) as admin:
            [summary] = [s for s in admin.dead_letter_summaries() if s.group == topic]
            return 0, 0, summary.waiting


def broker_of(**settings: Any) -> Iterator[SuiteBroker]:
    broker = SuiteBroker(**settings)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_broker() -> Iterator[SuiteBroker]:
    for broker in broker_of():
        broker.raises = True
        yield broker


@pytest.fixture
def redis_broker() -> Iterator[SuiteBroker]:
    yield from broker_of()


@pytest.fixture
def rabbitmq_broker() -> Iterator[SuiteBroker]:
    yield from broker_of()


def worker_of(broker: SuiteBroker) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=100, worker_threads=8)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def stub_worker(stub_broker: SuiteBroker) -> Iterator[Worker]:
    yield from worker_of(stub_broker)


@pytest.fixture
def redis_worker(redis_broker: SuiteBroker) -> Iterator[Worker]:
    yield from worker_of(redis_broker)


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: SuiteBroker) -> Iterator[Worker]:
    yield from worker_of(rabbitmq_broker)


@pytest.fixture
def rate_limiter_backend() -> RateBackend:
    return RateBackend()


@pytest.fixture
def result_backend() -> ResultBackend:
    return ResultBackend()


@pytest.fixture
def stub_rate_limiter_backend() -> RateBackend:
    return RateBackend()


@pytest.fixture
def result_backends(result_backend: ResultBackend) -> dict[str, ResultBackend]:
    return {"stub": result_backend}


@pytest.fixture
def rate_limiter_backends(rate_limiter_backend: RateBackend) -> dict[str, RateBackend]:
    return {"stub": rate_limiter_backend}


@pytest.fixture
def info_logging() -> Iterator[None]:
    logging.getLogger().setLevel(logging.INFO)
    yield
    logging.getLogger().setLevel(logging.DEBUG)
