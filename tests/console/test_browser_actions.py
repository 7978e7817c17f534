"""Each action of the console, clicked in a real browser: what the page tells, and what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import SimpleConsumerSettings, TransactionState
from kerolox.client.sync import Producer, SimpleConsumer, TransactionProducer
from kerolox.console.routes import ROUTES
from kerolox.message import Message, MessageQueue
from tests.console.browsing import console_process, fill, log_in
from tests.console.test_accounts import ACCOUNTS, words
from tests.console.test_promotion import is_master, pair
from tests.support.browser import opened_page, running_browser
from tests.support.eventually import wait_until
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("console-actions")]

NAME = "broker-a"
TOPIC, GROUP = "Shown", "gives-up"
"""What :func:`fill` makes: four messages, and a group with four dead letters."""


@dataclass
class Scene:
    """A broker with accounts, and its console."""

    base: str
    broker: str
    name_server: str
    admin: Admin
    accounts: Path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("actions")
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "aclFile": accounts, "brokerName": NAME}
    with Up(folder / "up", settings=settings) as up:
        asyncio.run(fill(up.namesrv))
        with console_process(folder, up.namesrv) as base, Admin(up.namesrv) as admin:
            yield Scene(base, up.broker, up.namesrv, admin, accounts)


@pytest.fixture(scope="module")
def browser(scene: Scene) -> Iterator[Browser]:
    """One for all clicks: each has cookies and pages of its own."""
    with running_browser() as running:
        yield running


Act = Callable[["Page", Scene], None]
ACTS: list[tuple[str, str, Act]] = []
"""Path of an action, role of who does it, and how."""


def act(path: str, role: str) -> Callable[[Act], Act]:
    """Add a line to ``ACTS``."""

    def add(function: Act) -> Act:
        ACTS.append((path, role, function))
        return function

    return add


def press(page: Page, button: str, told: str) -> None:
    """Press a button; what the next page tells, of an error too."""
    with page.expect_navigation():
        page.get_by_role("button", name=button, exact=True).click()
    assert told in page.get_by_role("main").inner_text()


def queues_of(scene: Scene, topic: str) -> int:
    return len(scene.admin.describe_topic(topic).queues)


def end_of(scene: Scene, topic: str) -> int:
    """How many messages a topic has."""
    return sum(each.max_offset for each in scene.admin.describe_topic(topic).queues)


def retries_of(scene: Scene, group: str) -> int:
    settings = scene.admin.group_settings(scene.broker, group)
    assert settings is not None
    return settings.retry_max_times


# -- topics -----------------------------------------------------------------------------------
@act("/topic/create", "admin")
def make_a_topic(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/topics")
    page.get_by_text("Make a topic").click()
    page.get_by_label("Name", exact=True).fill("Made")
    page.get_by_label("Queues on each broker").fill("3")
    press(page, "Make it", "Topic Made has 3 queues")
    assert queues_of(scene, "Made") == 3


@act("/topic/update", "admin")
def change_a_topic(page: Page, scene: Scene) -> None:
    scene.admin.create_topic("Changed", queues=1)
    page.goto(f"{scene.base}/topic?name=Changed")
    page.get_by_text("Change queues or permission").click()
    page.get_by_label("Queues on each broker").fill("5")
    page.get_by_label("Permission").select_option("4")
    press(page, "Change it", "Topic Changed is changed on 1 broker.")
    settings = scene.admin.topic_settings(scene.broker, "Changed")
    assert settings is not None
    assert (settings.write_queue_nums, settings.perm) == (5, 4)


@act("/topic/send", "operator")
def send_a_message(page: Page, scene: Scene) -> None:
    scene.admin.create_topic("Sent", queues=1)
    page.goto(f"{scene.base}/topic?name=Sent")
    page.get_by_text("Send a test message").click()
    page.get_by_label("Body").fill("<b>said</b>")
    page.get_by_label("Tag", exact=True).fill("t")
    page.get_by_label("Properties, name=value on each line").fill("a=1")
    press(page, "Send", "SEND_OK at offset 0")
    sent = scene.admin.message_at(MessageQueue("Sent", NAME, 0), 0)
    assert (sent.body, sent.tags, sent.properties["a"]) == (b"<b>said</b>", "t", "1")


@act("/topic/delete", "admin")
def delete_a_topic(page: Page, scene: Scene) -> None:
    scene.admin.create_topic("Gone", queues=1)
    page.goto(f"{scene.base}/topic?name=Gone")
    page.get_by_text("Delete the topic").click()
    page.get_by_label("Type its name once more").fill("Gone")
    press(page, "Delete it", "Topic Gone is deleted on")
    assert "Gone" not in scene.admin.list_topics()


# -- groups -----------------------------------------------------------------------------------
@act("/group/update", "admin")
def make_a_group(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/groups")
    page.get_by_text("Make a group").click()
    page.get_by_label("Name", exact=True).fill("made")
    page.get_by_label("Retries before a message is a dead letter").fill("3")
    press(page, "Make it", "Group made")
    assert retries_of(scene, "made") == 3


@act("/group/update", "admin")
def change_the_retries_of_a_group(page: Page, scene: Scene) -> None:
    scene.admin.update_group("changed")
    page.goto(f"{scene.base}/group?name=changed")
    page.get_by_text("Change its retries, or its order").click()
    page.get_by_label("Retries before a message is a dead letter").fill("7")
    press(page, "Change them", "Group changed")
    assert retries_of(scene, "changed") == 7


@act("/group/reset", "operator")
def move_a_group(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/group?name={GROUP}&topic={TOPIC}")
    page.get_by_text("Reset offsets").click()
    page.get_by_label("To", exact=True).fill("beginning")
    page.get_by_role("button", name="Show what would happen").click()
    page.get_by_text("4 messages would come again").wait_for()
    press(page, "Move it", "4 messages come again")
    queues = [MessageQueue(TOPIC, NAME, queue_id) for queue_id in range(2)]
    assert [scene.admin.get_offset(GROUP, queue) for queue in queues] == [0, 0]


@act("/group/release", "operator")
def release_what_a_member_holds(page: Page, scene: Scene) -> None:
    scene.admin.update_group("holds")
    settings = SimpleConsumerSettings(from_first=True)
    with SimpleConsumer("holds", scene.name_server, settings=settings) as consumer:
        consumer.subscribe(TOPIC)
        assert consumer.receive(1, wait=10)
        page.goto(f"{scene.base}/group?name=holds")
        page.get_by_text("Release messages that are out").click()
        page.get_by_role("button", name="Show what would come again").click()
        page.get_by_text("1 message would come again at once").wait_for()
        press(page, "Release them", "1 message of group holds come again.")
        assert consumer.receive(4, wait=10)


@act("/group/clone", "operator")
def copy_the_offsets_of_a_group(page: Page, scene: Scene) -> None:
    queue = MessageQueue(TOPIC, NAME, 0)
    for group in ("copied", "original"):
        scene.admin.update_group(group)
        # Its first member makes it.
        scene.admin.create_topic(f"%RETRY%{group}", queues=1)
    scene.admin.set_offset("original", queue, 1)
    page.goto(f"{scene.base}/group?name=original")
    page.get_by_text("Copy its offsets").click()
    page.get_by_label("To the group").fill("copied")
    press(page, "Copy them", "Group copied has the offsets of original")
    assert scene.admin.get_offset("copied", queue) == 1


@act("/group/pause", "operator")
def pause_a_group(page: Page, scene: Scene) -> None:
    scene.admin.update_group("paused")
    page.goto(f"{scene.base}/group?name=paused")
    page.get_by_text("Pause or resume").click()
    press(page, "Pause", f"Group paused is paused on {scene.broker}.")
    settings = scene.admin.group_settings(scene.broker, "paused")
    assert settings is not None
    assert not settings.consume_enable


@act("/group/resume", "operator")
def resume_a_group(page: Page, scene: Scene) -> None:
    scene.admin.update_group("resumed", consume_enable=False)
    page.goto(f"{scene.base}/group?name=resumed")
    page.get_by_text("Pause or resume").click()
    press(page, "Resume", f"Group resumed is resumed on {scene.broker}.")
    settings = scene.admin.group_settings(scene.broker, "resumed")
    assert settings is not None
    assert settings.consume_enable


@act("/group/delete", "admin")
def delete_a_group(page: Page, scene: Scene) -> None:
    scene.admin.update_group("leaves")
    queue = MessageQueue(TOPIC, NAME, 0)
    scene.admin.set_offset("leaves", queue, 1)
    page.goto(f"{scene.base}/group?name=leaves")
    page.get_by_text("Delete the group").click()
    page.get_by_label("Forget its offsets, too").check()
    page.get_by_label("Type its name once more").fill("leaves")
    press(page, "Delete it", "Group leaves is deleted on")
    assert scene.admin.group_settings(scene.broker, "leaves") is None
    assert scene.admin.get_offset("leaves", queue) < 1


# -- messages ---------------------------------------------------------------------------------
@act("/message/resend", "operator")
def send_a_message_again(page: Page, scene: Scene) -> None:
    for topic in ("Original", "Copied"):
        scene.admin.create_topic(topic, queues=1)
    scene.admin.send_message(Message("Original", b"before", keys="k"))
    page.goto(f"{scene.base}/message?topic=Original&queue={NAME}/0&offset=0")
    page.get_by_text("Send it again").click()
    page.get_by_label("To the topic").fill("Copied")
    page.get_by_label("With the body below instead of the stored one").check()
    page.get_by_label("Body", exact=True).fill("after")
    press(page, "Send a copy", "Sent again: SEND_OK at offset 0")
    copy = scene.admin.message_at(MessageQueue("Copied", NAME, 0), 0)
    assert (copy.body, copy.keys) == (b"after", "k")


@act("/dead-letter/resend", "operator")
def send_the_chosen_dead_letters_again(page: Page, scene: Scene) -> None:
    before = end_of(scene, f"%RETRY%{GROUP}")
    page.goto(f"{scene.base}/dead-letter?group={GROUP}")
    chosen = page.get_by_role("checkbox", name="Choose").all()[:2]
    for each in chosen:
        each.check()
    press(page, "Send the chosen ones again", "2 of 2 dead letters were sent again.")
    assert end_of(scene, f"%RETRY%{GROUP}") == before + 2


@act("/dead-letter/resend", "operator")
def send_an_edited_dead_letter_again(page: Page, scene: Scene) -> None:
    before = end_of(scene, f"%RETRY%{GROUP}")
    page.goto(f"{scene.base}/dead-letter?group={GROUP}")
    page.get_by_role("region", name=f"Dead letters of {GROUP}").get_by_role("link").first.click()
    page.get_by_text("Give it to its group again").click()
    page.get_by_label("With the body below instead of the stored one").check()
    page.get_by_label("Body", exact=True).fill("mended")
    page.get_by_label("Also if it was sent again before").check()
    press(page, "Send a copy", "1 of 1 dead letter was sent again.")
    queue = MessageQueue(f"%RETRY%{GROUP}", NAME, 0)
    assert scene.admin.message_at(queue, before).body == b"mended"


@act("/dead-letter/resend-all", "operator")
def send_all_dead_letters_that_wait_again(page: Page, scene: Scene) -> None:
    before = end_of(scene, f"%RETRY%{GROUP}")
    waiting = sum(each.waiting for each in scene.admin.dead_letter_queues(GROUP))
    assert waiting
    page.goto(f"{scene.base}/dead-letter?group={GROUP}")
    press(page, "Send all that wait again", f"{waiting} dead letters were sent again.")
    assert end_of(scene, f"%RETRY%{GROUP}") == before + waiting


@act("/dead-letter/purge", "operator")
def mark_dead_letters_as_done(page: Page, scene: Scene) -> None:
    group = f"{GROUP}-unwanted"
    scene.admin.create_topic(f"%DLQ%{group}", queues=1)
    scene.admin.send_message(Message(f"%DLQ%{group}", b"unwanted"))
    page.goto(f"{scene.base}/dead-letter?group={group}")
    page.get_by_text("Mark all that wait as done").click()
    page.get_by_label("Type the group’s name once more").fill(group)
    press(page, "Mark them", f"1 dead letter of {group} is marked as done.")
    [queue] = scene.admin.dead_letter_queues(group)
    assert (queue.waiting, queue.messages) == (0, 1)


# -- accounts ---------------------------------------------------------------------------------
@act("/acl/put", "admin")
def make_an_account(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/acl")
    page.get_by_text("Make or change an account").click()
    page.get_by_label("Access key", exact=True).first.fill("somebody")
    page.get_by_label("Secret key; empty: as before").fill("a-secret-of-somebody")
    page.get_by_label("Topics, as Orders=PUB|SUB with blanks between").fill("Orders=PUB|SUB")
    press(page, "Set it", "Account somebody is set on")
    assert {"somebody", "a-secret-of-somebody", "Orders=PUB|SUB"} <= words(scene.accounts)


@act("/acl/delete", "admin")
def delete_an_account(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/acl")
    page.get_by_text("Make or change an account").click()
    page.get_by_label("Access key", exact=True).first.fill("leaves-us")
    page.get_by_label("Secret key; empty: as before").fill("a-secret-of-theirs")
    press(page, "Set it", "Account leaves-us is set on")
    page.get_by_text("Delete an account").click()
    page.get_by_label("Access key", exact=True).last.fill("leaves-us")
    page.get_by_label("Once more").fill("leaves-us")
    press(page, "Delete it", "Account leaves-us is deleted on")
    assert "leaves-us" not in words(scene.accounts)


@act("/acl/white-list", "admin")
def replace_the_white_list(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/acl")
    page.get_by_text("Replace the white list of all accounts").click()
    page.get_by_label("Addresses, with blanks between").fill("127.0.0.1 10.1.2.*")
    press(page, "Replace it", "From 127.0.0.1, 10.1.2.* all is allowed on")
    assert {"127.0.0.1", "10.1.2.*"} <= words(scene.accounts)


# -- brokers ----------------------------------------------------------------------------------
@act("/broker/set", "admin")
def change_a_setting(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/broker?address={scene.broker}")
    page.get_by_text("Change a setting").click()
    page.get_by_label("Name", exact=True).fill("fileReservedTime")
    page.get_by_label("Value").fill("71")
    press(page, "Change it", "fileReservedTime is '71' on")
    assert scene.admin.broker_settings(scene.broker)["fileReservedTime"] == "71"


def is_in_service(scene: Scene) -> bool:
    return scene.admin.broker_settings(scene.broker)["brokerPermission"] == "6"


@act("/broker/retire", "admin")
def take_a_broker_out_of_service(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.base}/broker?address={scene.broker}")
    page.get_by_text("Take it out of service, or bring it back").click()
    page.get_by_label("Even if nobody can send to some topics then").check()
    try:
        press(page, "Take it out of service", "gets no new messages")
        assert not is_in_service(scene)
    finally:
        scene.admin.return_broker(scene.broker)


@act("/broker/return", "admin")
def bring_a_broker_back(page: Page, scene: Scene) -> None:
    scene.admin.retire_broker(scene.broker, force=True)
    try:
        page.goto(f"{scene.base}/broker?address={scene.broker}")
        page.get_by_text("Take it out of service, or bring it back").click()
        press(page, "Bring it back", "gets new messages again.")
        assert is_in_service(scene)
    finally:
        scene.admin.return_broker(scene.broker)


def open_half(scene: Scene, body: bytes) -> str:
    """The id of a half message whose producer is gone."""

    def undecided(_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    with TransactionProducer("gone", scene.name_server, check=undecided) as producer:
        sent = producer.send_in_transaction(Message(TOPIC, body), undecided)
    wait_until(lambda: sent.transaction_id in open_ids(scene), what="the half message")
    return sent.transaction_id


def open_ids(scene: Scene) -> list[str]:
    return [each.message_id for each in scene.admin.open_halves(scene.broker).halves]


def bodies_of(scene: Scene) -> list[bytes]:
    return [each.body for each in scene.admin.read_messages(TOPIC, max_messages=500)]


@act("/delayed/recall", "operator")
def take_a_message_back(page: Page, scene: Scene) -> None:
    with Producer("later", scene.name_server) as producer:
        sent = producer.send(Message(TOPIC, b"to be taken back"), deliver_after=9_000)

    def waiting() -> list[str]:
        found = scene.admin.timed_messages(scene.broker).messages
        return [each.message.message_id for each in found]

    wait_until(lambda: sent.message_id in waiting(), what="the message that waits")
    page.goto(f"{scene.base}/delayed")
    press(page, f"Take back {sent.message_id}", f"Taken back: {sent.message_id}")
    assert sent.message_id not in waiting()


@act("/transaction/commit", "admin")
def commit_a_transaction(page: Page, scene: Scene) -> None:
    key = open_half(scene, b"to be committed")
    page.goto(f"{scene.base}/transactions")
    page.get_by_role("link", name=key).click()
    page.get_by_text("Commit it in place of its producer").click()
    press(page, "Commit it", f"Committed: {key}")
    assert b"to be committed" in bodies_of(scene)
    assert key not in open_ids(scene)


@act("/transaction/rollback", "admin")
def roll_a_transaction_back(page: Page, scene: Scene) -> None:
    key = open_half(scene, b"to be dropped")
    page.goto(f"{scene.base}/transactions")
    page.get_by_role("link", name=key).click()
    page.get_by_text("Roll it back in place of its producer").click()
    page.get_by_label("Type its id once more").fill(key)
    press(page, "Roll it back", f"Rolled back: {key}")
    assert b"to be dropped" not in bodies_of(scene)
    assert key not in open_ids(scene)


PROMOTION = "/broker/promote"


@pytest.mark.parametrize(
    ("path", "role", "click"), ACTS, ids=[function.__name__ for _, _, function in ACTS]
)
def test_a_click_does_what_its_page_tells(
    scene: Scene, browser: Browser, path: str, role: str, click: Act
) -> None:
    with opened_page(browser) as page:
        posted: list[str] = []
        page.on(
            "request",
            lambda asked: (
                posted.append(urlsplit(asked.url).path) if asked.method == "POST" else None
            ),
        )
        log_in(page, scene.base, role)
        click(page, scene)
        assert path in posted


def test_each_action_is_clicked() -> None:
    assert {path for path, _, _ in ACTS} | {PROMOTION} == {
        route.path for route in ROUTES if route.is_action
    }


def test_a_click_makes_a_slave_the_master(tmp_path: Path, browser: Browser) -> None:
    with (
        pair(tmp_path) as (at, first, second),
        console_process(tmp_path, at) as base,
        opened_page(browser) as page,
    ):
        old, new = first.addresses["broker"], second.addresses["broker"]
        log_in(page, base, "admin", f"/broker?address={new}")
        page.get_by_role("link", name="Make it the master").click()
        page.get_by_text(f"Its master {old} is there: both change places").wait_for()
        press(page, "Make it the master", f"{new} is the master of pair")
        assert is_master(at, new)
