"""A driver that archives topics, and kills itself at a step of the second batch that it takes.

Arguments: name server, a folder, rows of a batch, the format, the step, topics.
"""

import sys
from pathlib import Path

from kerolox.spark.jobs.archive import ArchiveOptions, archive
from kerolox.spark.jobs.archive.job import target_of
from kerolox.spark.jobs.archive.records import Records
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.jobs.frame.session import open_session
from tests.spark.dying import ending_an_archive
from tests.support.clients.spark import QUICK


def options_in(
    folder: Path, format: str, name_server: str, topics: tuple[str, ...], rows: int
) -> ArchiveOptions:
    """Options of the archive in a folder."""
    places: dict[str, object] = {"to": str(folder / format)}
    if format == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        catalog["warehouse"] = str(folder / "warehouse")
        places = {"to": "lake.orders", "catalog": catalog}
    return ArchiveOptions(
        name_server=name_server,
        topics=topics,
        format=format,
        batch_rows=rows,
        state=str(folder / f"state-{format}"),
        **places,
    )


if __name__ == "__main__":
    name_server, place, rows, format, step, *topics = sys.argv[1:]
    options = options_in(Path(place), format, name_server, tuple(topics), int(rows))
    last = Records(Folder(options.state_folder)).last()
    session = open_session("archive", master="local[2]", settings=QUICK)
    with ending_an_archive(step, 1 + (last.batch if last else 0), type(target_of(options))):
        archive(session, options)
