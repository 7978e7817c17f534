"""What a Java broker has out becomes what is out here."""

from __future__ import annotations

from kerolox.broker.pop.java_log import JavaRevival
from kerolox.broker.pop.leases import AckOutcome, Instant, QueueKey
from kerolox.broker.pop.snapshot import (
    LeaseSnapshot,
    PopSnapshot,
    QueueSnapshot,
    StoredQueue,
    restore,
)
from kerolox.broker.pop.table import PopLimits, PopTable
from kerolox.broker.pop.takeover import JavaPlace, Takeover, take_over

KEY = QueueKey("g", "T", 0)
NOW = Instant(wall_ms=1_000_000, steady_ms=5_000)
POPPED_MS = 990_000


def revival(offset: int, *, pop_time: int = POPPED_MS, invisible_ms: int = 60_000) -> JavaRevival:
    return JavaRevival(KEY, offset, pop_time, pop_time + invisible_ms)


class World:
    """A queue of a group, as the store and the table of offsets have it."""

    def __init__(self, committed: int = 20, bounds: tuple[int, int] = (0, 50)) -> None:
        self.committed, self.bounds = committed, bounds
        self.table = PopTable()

    def stored(self, key: QueueKey, offset: int) -> StoredQueue | None:
        return StoredQueue(self.committed, self.bounds[1], 100 * offset) if key == KEY else None

    def take(
        self,
        *revivals: JavaRevival,
        snapshot: PopSnapshot | None = None,
        floors: dict[QueueKey, int] | None = None,
        limits: PopLimits | None = None,
    ) -> Takeover:
        """Take over, and start as a broker does."""
        done = take_over(
            snapshot,
            revivals,
            floors or {},
            NOW,
            place_of=lambda key: JavaPlace(self.committed, *self.bounds) if key == KEY else None,
            stored_of=self.stored,
            limits=limits,
        )
        self.committed = done.commits.get(KEY, self.committed)
        assert restore(self.table, done.snapshot, NOW, self.stored) == 0
        return done

    def out(self) -> list[int]:
        return [each.offset for each in self.table.held(KEY, NOW, 1_000)]

    def next_offset(self) -> int:
        return self.table.start(KEY, self.committed, self.bounds[0])


def test_what_is_out_is_out_here_for_as_long_and_the_rest_is_done() -> None:
    world = World()
    done = world.take(revival(12), revival(7), revival(8, pop_time=POPPED_MS + 1))
    assert (done.out, done.again, done.gone) == (3, 0, 0)
    assert (world.out(), world.committed, world.next_offset()) == ([7, 8, 12], 7, 20)
    assert [each.left_ms for each in world.table.held(KEY, NOW, 9)] == [50_000, 50_001, 50_000]
    assert world.table.drain_commits() == []


def test_receipts_of_the_java_broker_count_and_move_the_offset() -> None:
    world = World()
    world.take(revival(7), revival(12))
    assert world.table.ack(KEY, 7, POPPED_MS) is AckOutcome.DONE
    assert world.table.ack(KEY, 12, POPPED_MS - 1) is AckOutcome.STALE
    assert world.table.drain_commits() == [(KEY, 12)]
    assert world.table.ack(KEY, 12, POPPED_MS) is AckOutcome.DONE
    assert world.table.drain_commits() == [(KEY, 20)]


def test_what_is_overdue_comes_again_at_once_and_nothing_is_out_for_ever() -> None:
    world = World()
    world.take(
        revival(7, pop_time=1, invisible_ms=1), revival(8, pop_time=1 << 60, invisible_ms=1 << 61)
    )
    left = [each.left_ms for each in world.table.held(KEY, NOW, 9)]
    assert left == [0, 3 * 24 * 3_600_000]
    assert [each.offset for each in world.table.expire(NOW, 9)] == [7]


def test_of_two_pops_of_a_message_the_later_counts() -> None:
    world = World()
    world.take(revival(7, pop_time=1), revival(7))
    assert [each.pop_time for each in world.table.held(KEY, NOW, 9)] == [POPPED_MS]


def test_messages_and_queues_that_are_gone_are_counted_and_left_out() -> None:
    world = World(bounds=(8, 50))
    other = revival(1)._replace(key=KEY._replace(topic="gone"))
    done = world.take(revival(7), revival(9), revival(50), other)
    assert (done.out, done.gone, world.out()) == (1, 3, [9])


def test_messages_behind_the_committed_offset_are_read_from_the_queue() -> None:
    """The broker commits later than it pops (``enablePopBufferMerge``), or was reset."""
    world = World(committed=8)
    world.take(revival(7), revival(8), revival(9))
    assert (world.out(), world.next_offset()) == ([7], 8)


def test_a_group_without_an_offset_goes_on_behind_what_it_has_out() -> None:
    world = World(committed=-1)
    world.take(revival(3), revival(5))
    assert (world.out(), world.committed, world.next_offset()) == ([3, 5], 3, 6)


def test_what_is_beyond_the_bounds_comes_again_from_the_queue() -> None:
    for limits in (PopLimits(of_queue=2), PopLimits(of_group=2), PopLimits(in_all=2)):
        world = World()
        done = world.take(*map(revival, (3, 5, 9, 11)), limits=limits)
        assert (done.out, done.again) == (2, 11)
        assert (world.out(), world.committed, world.next_offset()) == ([3, 5], 3, 9)


def test_a_queue_comes_again_from_where_nothing_is_known_of_it() -> None:
    world = World()
    done = world.take(*map(revival, (3, 5, 9)), floors={KEY: 6})
    assert (done.out, done.again, world.out(), world.next_offset()) == (2, 14, [3, 5], 6)
    world = World()
    world.take(floors={KEY: 6})
    assert (world.committed, world.out(), world.next_offset()) == (6, [], 6)


def test_of_more_than_may_be_out_no_more_is_kept_than_that() -> None:
    """What has no place comes again, with all behind it."""
    world = World()
    old = [revival(offset, pop_time=1) for offset in (15, 16)]
    done = world.take(*old, *map(revival, range(3, 9)), limits=PopLimits(in_all=2))
    assert (done.out, world.out(), world.committed, world.next_offset()) == (0, [], 3, 3)


def our_file(committed: int, next_offset: int, *offsets: int, mark: int = -1) -> PopSnapshot:
    leases = [LeaseSnapshot([each, 1], 900_000, 900_000, 200_000, 150_000) for each in offsets]
    queue = QueueSnapshot(
        committed=committed,
        group=KEY.group,
        leases=leases,
        mark=100 * (next_offset - 1) if mark < 0 else mark,
        next_offset=next_offset,
        queue_id=KEY.queue_id,
        topic=KEY.topic,
    )
    return PopSnapshot(pop_time=950_000, queues=[queue], written_at=990_000)


def test_a_file_of_ours_counts_from_where_the_java_broker_stopped() -> None:
    world = World(committed=20)
    world.take(revival(12), snapshot=our_file(5, 30, 5, 12, 22, 25))
    assert (world.out(), world.committed, world.next_offset()) == ([12, 22, 25], 12, 30)
    held = {each.offset: each for each in world.table.held(KEY, NOW, 9)}
    assert (held[12].pop_time, held[22].left_ms) == (POPPED_MS, 140_000)


def test_a_file_of_ours_that_something_speaks_against_does_not_count() -> None:
    for file in (our_file(5, 30, 22, mark=1), our_file(5, 60, 22), our_file(5, 19, 6)):
        world = World(committed=20)
        world.take(revival(12), snapshot=file)
        assert (world.out(), world.next_offset()) == ([12], 20)


def test_a_file_of_ours_of_other_queues_stays_as_it_is() -> None:
    world = World(committed=6)
    done = world.take(snapshot=our_file(5, 30, 6, 22))
    assert (done.commits, world.out(), world.next_offset()) == ({}, [6, 22], 30)
