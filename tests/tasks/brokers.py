"""Tasks about brokers."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.admin import Account
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.support.servers.up import deaf_address
from tests.tasks.case import BROKER_NAME
from tests.tasks.task import Task

if TYPE_CHECKING:
    from tests.tasks.case import Case

ALLOWED = ("127.0.0.1", "10.9.8.*")
"""Addresses from which everything is allowed: from this machine at all times."""

SETTING, DEFAULT, OTHER = "fileReservedTime", "72", "71"


class WhichRun(Task):
    name = "See which brokers run, in which role and version"

    async def prepare(self, case: Case) -> None:
        async def has_figures() -> bool:  # a Java broker fails so long as it has no sample of rates
            [node] = await case.admin.cluster_status()
            return node.runtime is not None

        await until(has_figures, what="the broker's figures")

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("broker", "list")
        assert (row["broker"], row["address"]) == (BROKER_NAME, case.place.broker)
        assert (row["role"], row["error"]) == ("master", "")
        assert row["version"]

    async def console(self, case: Case) -> None:
        page = await case.look("/brokers")
        [node] = await case.admin.cluster_status()
        assert node.runtime is not None
        row = rf">{BROKER_NAME}</a></td><td>[^<]*</td><td>master</td><td>{case.place.broker}"
        assert re.search(rf"{row}</td>\s*<td>{re.escape(node.runtime.software)}</td>", page)


class Silent(Task):
    name = "Find a broker that does not answer"

    async def prepare(self, case: Case) -> None:
        # The connection on which it registers stays open, as long as the case lasts.
        address = case.stack.enter_context(deaf_address())
        self.fields = {
            "brokerName": "broker-gone",
            "brokerAddr": address,
            "clusterName": "DefaultCluster",
            "haServerAddr": address,
            "brokerId": 0,
        }
        await case.admin.access.ask_name_server(RequestCode.REGISTER_BROKER, self.fields)

    async def command_line(self, case: Case) -> None:
        rows = await case.json("cluster", "describe")
        errors = {row["broker"]: row["error"] for row in rows}
        assert errors["broker-gone"]
        assert not errors[BROKER_NAME]

    async def console(self, case: Case) -> None:
        # Not the overview: that keeps who is there for some seconds, and later cases would see it.
        page = await case.look("/brokers")
        gone = page.split(">broker-gone</a></td>")[1].split("</tr>")[0]
        assert '<span class="bad">' in gone
        running = page.split(f">{BROKER_NAME}</a></td>")[1].split("</tr>")[0]
        assert '<span class="bad">' not in running

    async def undo(self, case: Case) -> None:
        await case.admin.access.ask_name_server(RequestCode.UNREGISTER_BROKER, self.fields)
        info = await case.admin.cluster_info()
        assert "broker-gone" not in info.brokers


class Figures(Task):
    name = "See a broker's rates, disk and log"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("one")
        await WhichRun().prepare(case)

    async def command_line(self, case: Case) -> None:
        row = await case.json("broker", "describe", case.place.broker)
        assert row["logBytes"] > 0
        assert 0 < row["logDiskRatio"] < 1
        assert row["putTps"] >= 0

    async def console(self, case: Case) -> None:
        page = await case.look("/broker", address=case.place.broker)
        assert re.search(r"<dt>Fuller disk</dt><dd[^>]*>\d+<small>%", page)
        assert re.search(r"<dt>In</dt><dd>[\d.]+<small>/s", page)
        assert re.search(r"<dt>Log</dt><dd>[\d.]+ \w+<", page), page


class SeeSetting(Task):
    name = "See a setting of a broker"

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("broker", "config", "show", case.place.broker, SETTING)
        assert (row["value"], row["source"]) == (DEFAULT, "default")

    async def console(self, case: Case) -> None:
        page = await case.look("/broker", address=case.place.broker, q=SETTING)
        assert re.search(rf'<td>{SETTING}</td><td class="body">{DEFAULT}<', page)

    async def check(self, case: Case) -> None:
        assert (await case.admin.broker_settings(case.place.broker))[SETTING] == DEFAULT


class ChangeSetting(Task):
    name = "Change a setting while the broker runs"

    async def command_line(self, case: Case) -> None:
        change = ("broker", "config", "set", f"{SETTING}={OTHER}", "--broker", case.place.broker)
        [row] = await case.json(*change)
        assert (row["old"], row["new"], row["effective"]) == (DEFAULT, OTHER, True)

    async def console(self, case: Case) -> None:
        form = await case.form("/broker/set", "/broker", address=case.place.broker)
        assert "71" in await case.send_form(form, name=SETTING, value=OTHER)

    async def check(self, case: Case) -> None:
        assert (await case.admin.broker_settings(case.place.broker))[SETTING] == OTHER

    async def undo(self, case: Case) -> None:
        await case.admin.update_broker_settings({SETTING: DEFAULT}, broker=case.place.broker)


class Retire(Task):
    name = "Take a broker out of service and bring it back"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("left")
        await case.admin.update_group(case.group)
        await case.admin.reset_offsets(case.group, case.topic, 0)

    async def command_line(self, case: Case) -> None:
        retired = await case.json("broker", "retire", case.place.broker, "--force", "--no-wait")
        left = {(row["group"], row["topic"]): row["messages"] for row in retired["lag"]}
        assert left[case.group, case.topic] == 1
        await self._is_retired(case)
        await case.run("broker", "return", case.place.broker)

    async def console(self, case: Case) -> None:
        form = await case.form("/broker/retire", "/broker", address=case.place.broker)
        told = await case.send_form(form, force="1")
        assert f"{case.place.broker} gets no new messages" in told
        assert re.search(r"Left: \d+ messages? for groups", told)
        await self._is_retired(case)
        form = await case.form("/broker/return", "/broker", address=case.place.broker)
        assert "gets new messages again" in await case.send_form(form)

    async def _is_retired(self, case: Case) -> None:
        assert await self._permission(case) == "4"
        assert {q.perm for q in (await case.admin.describe_route(case.topic)).queues} == {4}

    async def _permission(self, case: Case) -> str:
        return (await case.admin.broker_settings(case.place.broker))["brokerPermission"]

    async def check(self, case: Case) -> None:
        assert await self._permission(case) == "6"
        assert {q.perm for q in (await case.admin.describe_route(case.topic)).queues} == {6}
        await case.send("taken again")

    async def undo(self, case: Case) -> None:
        if await self._permission(case) != "6":
            await case.admin.return_broker(case.place.broker)


class Accounts(Task):
    name = "See accounts and the white list"

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("acl", "list")
        assert (row["accessKey"], row["topicPerms"]) == ("shop-service", ["Orders=PUB|SUB"])
        [row] = await case.json("acl", "white-list")
        assert row["addresses"] == ["127.0.0.1"]

    async def console(self, case: Case) -> None:
        page = await case.look("/acl")
        assert "White list of all accounts: 127.0.0.1<" in page
        assert re.search(r"<td>shop-service</td>.*Orders=PUB\|SUB", page)
        assert "shop-secret" not in page

    async def check(self, case: Case) -> None:
        found = await case.admin.acl_config(case.place.broker)
        assert [each.access_key for each in found.accounts] == ["shop-service"]


class WhatIsSet(Task):
    name = "See what is set on a broker, and is no default"

    async def command_line(self, case: Case) -> None:
        rows = await case.json("broker", "config", "show", case.place.broker, "--set")
        values = {row["key"]: row["value"] for row in rows}
        assert values["traceTopicEnable"] == "true"
        assert "maxMessageSize" not in values

    async def console(self, case: Case) -> None:
        page = await case.look("/broker", address=case.place.broker)
        shown = page.split('<h2 id="changed">')[1].split('<h2 id="settings">')[0]
        assert re.search(r'<td>traceTopicEnable</td><td class="body">true<', shown)
        assert "maxMessageSize" not in shown


class OfAccounts(Task):
    """What changes accounts; afterwards there are those of the other tasks."""

    async def account(self, case: Case) -> Account | None:
        found = await case.admin.acl_config(case.place.broker)
        return next((each for each in found.accounts if each.access_key == case.group), None)

    async def undo(self, case: Case) -> None:
        if await self.account(case) is not None:
            await case.admin.delete_account(case.group)


class SetAccount(OfAccounts):
    name = "Make an account, or change what it may do"

    async def command_line(self, case: Case) -> None:
        folder = Path(case.stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "secret").write_text("a-long-secret\n")
        given = ("--secret-file", folder / "secret", "--topic", f"{case.topic}=PUB")
        [row] = await case.json("acl", "set", case.group, *given)
        assert (row["broker"], row["change"]) == (case.place.broker, "new")
        assert "a-long-secret" not in str(row)

    async def console(self, case: Case) -> None:
        form = await case.form("/acl/put", "/acl")
        given = {"accessKey": case.group, "secretKey": "a-long-secret"}
        told = await case.send_form(form, **given, topicPerms=f"{case.topic}=PUB")
        assert f"Account {case.group} is set on" in told

    async def check(self, case: Case) -> None:
        found = await self.account(case)
        assert found is not None
        assert found.topic_permissions == (f"{case.topic}=PUB",)
        assert not found.is_admin


class DeleteAccount(OfAccounts):
    name = "Delete an account"

    async def prepare(self, case: Case) -> None:
        await case.admin.put_account(Account(access_key=case.group, secret_key="a-long-secret"))
        assert await self.account(case) is not None

    async def command_line(self, case: Case) -> None:
        assert case.group in await case.run("acl", "delete", case.group, "--yes")

    async def console(self, case: Case) -> None:
        form = await case.form("/acl/delete", "/acl")
        told = await case.send_form(form, accessKey=case.group, again=case.group)
        assert f"Account {case.group} is deleted" in told

    async def check(self, case: Case) -> None:
        assert await self.account(case) is None


class WhiteList(Task):
    name = "Change from where all is allowed"

    async def command_line(self, case: Case) -> None:
        assert "10.9.8.*" in await case.run("acl", "white-list", *ALLOWED)

    async def console(self, case: Case) -> None:
        form = await case.form("/acl/white-list", "/acl")
        told = await case.send_form(form, addresses=" ".join(ALLOWED))
        assert f"From {', '.join(ALLOWED)} all is allowed" in told

    async def check(self, case: Case) -> None:
        found = await case.admin.acl_config(case.place.broker)
        assert found.global_white_addresses == ALLOWED

    async def undo(self, case: Case) -> None:
        await case.admin.put_global_white_addresses(ALLOWED[:1])


BROKER_TASKS = (
    WhichRun,
    Silent,
    Figures,
    SeeSetting,
    WhatIsSet,
    ChangeSetting,
    Retire,
    Accounts,
    SetAccount,
    DeleteAccount,
    WhiteList,
)
