"""FastStream's base tests of the router for FastAPI."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from kerolox.integrations.faststream import KeroloxRouter
from kerolox.integrations.faststream.fastapi import KeroloxRouter as FastAPIRouter
from tests.integrations.faststream.brokers import InMemory, OnServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # FastAPI's client for tests on httpx
    from faststream_tests.brokers.base import fastapi

pytestmark = [
    pytest.mark.xdist_group("faststream"),
    pytest.mark.filterwarnings("default"),
]


class TestFastAPI(OnServer, fastapi.FastAPITestcase):
    broker_router_class = KeroloxRouter

    def router_class(self, **options: Any) -> FastAPIRouter:
        return FastAPIRouter(self.server.name_server, create_topics=True, **options)


class TestFastAPIInMemory(InMemory, fastapi.FastAPILocalTestcase):
    router_class = FastAPIRouter
    broker_router_class = KeroloxRouter
