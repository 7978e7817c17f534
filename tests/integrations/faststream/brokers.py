"""How FastStream's tests make our broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kerolox.integrations.faststream import KeroloxBroker, KeroloxRouter, TestKeroloxBroker
from kerolox.testing import LocalBroker
from tests.integrations.faststream import upstream  # noqa: F401  # has the next one found

from faststream_tests.brokers.base.basic import BaseTestcaseConfig  # isort: skip


class OnServer(BaseTestcaseConfig):
    """On a broker of ours; topics are made when they are first read."""

    @pytest.fixture(autouse=True)
    async def _server(self, server: LocalBroker) -> AsyncIterator[None]:
        self.server, self.made = server, []
        yield
        for broker in self.made:  # some tests leave theirs running
            await broker.stop()

    def get_broker(self, apply_types: bool = False, **options: Any) -> KeroloxBroker:
        address = self.server.name_server
        broker = KeroloxBroker(address, create_topics=True, apply_types=apply_types, **options)
        self.made.append(broker)
        return broker

    def get_router(self, **options: Any) -> KeroloxRouter:
        return KeroloxRouter(**options)


class InMemory(OnServer):
    """With nothing behind it, but for a few tests that take a real one in any case."""

    def patch_broker(self, *brokers: KeroloxBroker, **options: Any) -> Any:
        return TestKeroloxBroker(*brokers, **options)
