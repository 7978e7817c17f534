"""A driver that replays a topic exactly once, and kills itself at a step of a unit.

Arguments: name server, the topic, the one that it is sent to, the folder of the state, rows of a
unit, the step.
"""

import sys

from pyspark.sql import SparkSession

from kerolox.spark.jobs.replay import ReplayOptions, replay
from tests.spark.drivers import die
from tests.spark.dying import ending_a_replay
from tests.support.clients.spark import QUICK


def options_of(name_server: str, origin: str, target: str, state: str, rows: int) -> ReplayOptions:
    """Options of the replay."""
    return ReplayOptions(
        name_server=name_server,
        from_topics=(origin,),
        to_topic=target,
        state=state,
        unit_rows=rows,
        transactional=True,
    )


if __name__ == "__main__":
    *places, rows, step = sys.argv[1:]
    session = SparkSession.builder.master("local[2]").config(map=QUICK).getOrCreate()
    with ending_a_replay(step, die):
        replay(session, options_of(*places, rows=int(rows)))
