"""The tests of dramatiq itself, with our broker in the place of its own.

Runs with ``KEROLOX_SOFTWARE=all``; in each run ``test_dramatiq.py`` holds the facts of ours alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from kerolox.testing import LocalBroker
from tests.support.unpacked import unpack_archive

pytestmark = [pytest.mark.software, pytest.mark.timeout(900)]

FILES = [
    f"tests/test_{name}.py"
    for name in (
        "actors barrier broker callbacks composition concurrent_rate_limiter generic_actors"
        " messages rabbitmq redis results stub_broker worker"
    ).split()
]

LEFT_OUT = {
    # What a broker keeps in Python, Redis, RabbitMQ, which the test looks into.
    "test_actors.py": [
        "test_actors_can_be_sent_messages",
        "test_messages_belonging_to_missing_actors_are_rejected",
        "test_worker_handles_non_numeric_eta_and_logs_warning",
        "test_worker_handles_none_eta",
        # It leaves less than a second to a busy machine; the one of actors leaves two.
        "test_actor_messages_can_be_assigned_time_limits",
    ],
    "test_stub_broker.py": [
        "test_stub_broker_can_be_flushed",
        "test_stub_broker_respects_prefetch",
    ],
    # Messages come in the order of their queue, and a topic has several.
    "test_worker.py": ["test_workers_process_messages_in_order"],
    "test_results.py": ["test_messages_without_actor_not_crashing_lookup_options"],
    "test_redis.py": [
        "test_redis_unacked_messages_can_be_requeued",
        "test_redis_messages_can_be_dead_lettered",
        "test_redis_dead_lettered_messages_are_cleaned_up",
        "test_redis_messages_belonging_to_missing_actors_are_rejected",
        "test_redis_requeues_unhandled_messages_on_shutdown",
        "test_redis_requeues_unhandled_delay_messages_on_shutdown",
        "test_redis_broker_can_connect_via_url",
        "test_redis_broker_can_connect_via_client",
        "test_redis_broker_raises_attribute_error_when_given_an_invalid_attribute",
        "test_redis_consumer_ack_can_retry_on_connection_error",
        "test_redis_consumer_nack_can_retry_on_connection_error",
        "test_redis_join_race_condition",
    ],
    "test_rabbitmq.py": [
        "test_rabbitmq_broker_raises_an_error_if_given_invalid_parameter_combinations",
        "test_rabbitmq_broker_stops_retrying_declaring_queues_when_max_attempts_reached",
        "test_rabbitmq_broker_reconnects_after_enqueue_failure",
        "test_rabbitmq_workers_handle_rabbit_failures_gracefully",
        "test_rabbitmq_connections_can_be_deleted_multiple_times",
        "test_rabbitmq_channels_can_be_deleted_multiple_times",
        "test_ignore_scary_logs_filter_ignores_logs",
        "test_rabbitmq_close_only_registers_ignore_filter_once",
        "test_rabbitmq_broker_retries_declaring_queues_when_connection_related_errors_occur",
        "test_rabbitmq_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears",
        "test_rabbitmq_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears",
        # Ours raises QueueNotFound, as the documentation of `Broker.consume` wants.
        "test_rabbitmq_consumers_ignore_unknown_messages_in_ack_and_nack",
        # Topics have no priorities.
        "test_rabbitmq_broker_can_enqueue_messages_with_priority",
    ],
}

PASSED_MIN = 110

COMMON = """
import contextlib

import pytest
from dramatiq import Worker

RABBITMQ_USERNAME = RABBITMQ_PASSWORD = "guest"
RABBITMQ_CREDENTIALS = None


@contextlib.contextmanager
def worker(*args, **more):
    made = Worker(*args, **more)
    made.start()
    try:
        yield made
    finally:
        made.stop()


skip_in_ci = skip_on_windows = skip_on_pypy = pytest.mark.skipif(False, reason="")
skip_with_gevent = pytest.mark.skipif(False, reason="")
skip_without_gevent = skip_unless_rabbit_mq = pytest.mark.skip("of another broker")
"""
"""Of the file that its source package lacks."""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The source package of the version that is installed, with our fixtures."""
    wanted = f"dramatiq=={version('dramatiq')}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(tmp_path), wanted], check=True)
    [package] = tmp_path.glob("*.tar.gz")
    with tarfile.open(package) as source:
        unpack_archive(source, tmp_path)
    [folder] = (each for each in tmp_path.iterdir() if each.is_dir())
    (folder / "pyproject.toml").unlink()
    tests = folder / "tests"
    (tests / "__init__.py").touch()
    (tests / "common.py").write_text(COMMON)
    shutil.copy(Path(__file__).with_name("dramatiq_conftest.py"), tests / "conftest.py")
    return folder


def test_the_tests_of_dramatiq_pass_with_our_broker(suite: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--timeout", "60"]
    for file, names in LEFT_OUT.items():
        options += [f"--deselect=tests/{file}::{name}" for name in names]
    with LocalBroker() as local:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *FILES],
            cwd=suite,
            env={**os.environ, "SERVER": local.name_server},
            capture_output=True,
            text=True,
        )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    passed = done.stdout.rpartition(" passed")[0].split()[-1]
    assert int(passed) >= PASSED_MIN
