from kerolox.spark.positions.limits import Threshold


def test_the_first_batch_and_full_ones_are_never_held_back():
    made = Threshold(100, 5_000)
    assert not made.holds_back(0, 0.0)
    made.released(10.0)
    assert made.holds_back(99, 10.1)
    assert not made.holds_back(100, 10.1)


def test_a_small_batch_is_made_when_the_delay_is_over():
    made = Threshold(100, 5_000)
    made.released(10.0)
    assert made.holds_back(1, 14.999)
    assert not made.holds_back(1, 15.0)
    made.released(15.0)
    assert made.holds_back(1, 19.0)


def test_without_a_minimum_nothing_is_held_back():
    made = Threshold(None, 5_000)
    made.released(10.0)
    assert not made.holds_back(0, 10.0)
