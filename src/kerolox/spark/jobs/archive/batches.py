"""One micro-batch: written aside, recorded, put in its place; once, whatever is killed when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.spark.jobs.archive.bodies.decoding import Decoder
from kerolox.spark.jobs.archive.options import ArchiveOptions
from kerolox.spark.jobs.archive.records import BatchRecord, Records
from kerolox.spark.jobs.archive.staging import stage, staged
from kerolox.spark.jobs.archive.targets.choosing import target_of
from kerolox.spark.jobs.archive.targets.parquet import place_of
from kerolox.spark.jobs.frame.files import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kerolox.spark.jobs.archive.targets.target import Target


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """What ``foreachBatch`` calls. It is pickled where Spark runs elsewhere (Spark Connect).

    Args:
        options: of the job.
        archive: its id.
        decoder: of bodies.
    """

    options: ArchiveOptions
    archive: str
    decoder: Decoder | None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch; one that was taken before is completed, or left as it is."""
        records = Records(Folder(self.options.state_folder))
        target = target_of(self.options)
        record = records.read(batch)
        if record is None:
            record = self._write(frame, batch, records, target)
        if not record.is_done:
            self._place(record, records, target)

    def _write(self, frame: DataFrame, batch: int, records: Records, target: Target) -> BatchRecord:
        """Write the files where no reader sees them, then the record that names them."""
        folder = target.folder_of(self.archive, batch)
        rows = frame if self.decoder is None else self.decoder.decode(frame)
        stage(rows, folder, with_topic=target.files_have_topic)
        data, quarantined = staged(folder)
        record = BatchRecord(
            batch=batch,
            is_done=False,
            folder=folder.uri,
            data=tuple(data),
            quarantined=tuple(quarantined),
            totals=records.totals().plus(data, quarantined),
        )
        records.write(record)
        return record

    def _place(self, record: BatchRecord, records: Records, target: Target) -> None:
        aside = Folder(self.options.quarantine_folder)
        source = Folder(record.folder)
        for number, each in enumerate(record.quarantined):
            name = f"{record.batch:09d}-{number:05d}-{self.archive[:8]}.parquet"
            source.move(each.path, aside, f"{place_of(each.topic, each.date)}/{name}")
        if record.data:
            target.commit(self.archive, record)
        records.write(
            BatchRecord(
                batch=record.batch,
                is_done=True,
                folder=record.folder,
                data=record.data,
                quarantined=record.quarantined,
                totals=record.totals,
            )
        )
        if not target.keeps_files:
            source.delete_folder()
