"""Files of jobs, on whatever file system a path names (``pyarrow.fs``): local, HDFS, S3.

A path is as Spark has it: ``/data/a``, ``file:///data/a``, ``hdfs://...``, ``s3a://bucket/a``. A
small file is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import ConfigError
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.text import printable

if TYPE_CHECKING:
    import pyarrow.fs

JSON_BYTES_MAX = 64 * 1024 * 1024
"""A larger file is none that a job has written."""


class FoundFile(NamedTuple):
    """A file below a folder."""

    path: str
    """Relative to the folder."""
    size: int
    """Bytes."""


class Folder:
    """A folder by its path or URI, which need not be there; ConfigError: no file system has such a
    path.
    """

    def __init__(self, path: str) -> None:
        from pyarrow import fs

        self.uri = path.rstrip("/") or "/"
        try:
            if "://" in path or path.startswith("file:"):
                uri = path.replace("s3a://", "s3://", 1).replace("s3n://", "s3://", 1)
                self._system, root = fs.FileSystem.from_uri(uri)
            else:
                self._system, root = fs.LocalFileSystem(), os.path.abspath(path)
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigError(f"path {printable(path)} can't be used: {error}") from None
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._system, fs.LocalFileSystem)

    @property
    def system(self) -> pyarrow.fs.FileSystem:
        """What holds it."""
        return self._system

    def path(self, *names: str) -> str:
        """Of something in it, as Spark takes it."""
        return "/".join([self.uri.rstrip("/"), *names])

    def inner(self, *names: str) -> str:
        """The same, as its file system takes it."""
        return "/".join([self._root, *names])

    def below(self, *names: str) -> Folder:
        """A folder in it."""
        return Folder(self.path(*names))

    def exists(self, *names: str) -> bool:
        """Whether there is a file or folder."""
        from pyarrow import fs

        kind = self._system.get_file_info(self.inner(*names)).type
        return bool(kind is not fs.FileType.NotFound)

    def names(self) -> list[str]:
        """What is directly in it; empty where there is no folder."""
        from pyarrow import fs

        selector = fs.FileSelector(self._root or "/", allow_not_found=True)
        return [each.base_name for each in self._system.get_file_info(selector)]

    def files(self, *names: str) -> Iterator[FoundFile]:
        """All files below it, or below a folder in it, by name."""
        from pyarrow import fs

        root = self.inner(*names)
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        found = self._system.get_file_info(selector)
        for each in sorted(found, key=lambda info: str(info.path)):
            if each.type is fs.FileType.File:
                yield FoundFile(each.path[len(root) :].lstrip("/"), each.size)

    def make(self, *names: str) -> None:
        """Make it, or a folder in it, with all above it."""
        self._system.create_dir(self.inner(*names), recursive=True)

    def move(self, source: str, target: Folder, name: str) -> None:
        """Move a file of this folder to ``name`` in another one of the same file system; one that
        was moved before stays. JobError: it is in neither place.
        """
        if not self.exists(source):
            if target.exists(name):
                return
            raise JobError(
                f"{self.path(source)} is gone, and {target.path(name)} is not there; something "
                "else removed it. Restore it, or archive anew into another place"
            )
        target.make(*name.split("/")[:-1])
        self._system.move(self.inner(source), target.inner(name))

    def delete(self, name: str) -> None:
        """Remove a file; it may be gone."""
        if self.exists(name):
            self._system.delete_file(self.inner(name))

    def delete_folder(self, *names: str) -> None:
        """Remove a folder with all in it; it may be gone."""
        if self.exists(*names):
            self._system.delete_dir(self.inner(*names))

    def write_text(self, name: str, text: str) -> None:
        """Write a small file, whole or not at all; on this machine's disk it is durable then."""
        hidden = f".{name.rpartition('/')[2]}.{uuid.uuid4().hex}"
        new = "/".join([*name.split("/")[:-1], hidden])
        self.make(*name.split("/")[:-1])
        try:
            with self._system.open_output_stream(self.inner(new)) as stream:
                stream.write(text.encode())
            self._sync(self.inner(new))
            self._system.move(self.inner(new), self.inner(name))
            self._sync(self.inner(*name.split("/")[:-1]))
        except BaseException:
            self.delete(new)
            raise

    def write_json(self, name: str, value: object) -> None:
        """Write a small file of JSON, whole or not at all."""
        self.write_text(name, json.dumps(value, ensure_ascii=False, indent=1))

    def read_text(self, name: str) -> str | None:
        """The text of a small file; None where there is none. JobError: it is too large, or no
        UTF-8.
        """
        if not self.exists(name):
            return None
        with self._system.open_input_stream(self.inner(name)) as stream:
            data: bytes = stream.read(JSON_BYTES_MAX + 1)
        if len(data) > JSON_BYTES_MAX:
            raise JobError(f"{self.path(name)} is larger than {JSON_BYTES_MAX} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise JobError(f"{self.path(name)} is no UTF-8") from None

    def read_json(self, name: str) -> dict[str, object] | None:
        """The object of a small file of JSON; None where there is none."""
        text = self.read_text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise JobError(f"{self.path(name)} is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise JobError(f"{self.path(name)} has no JSON object")
        return value

    def _sync(self, path: str) -> None:
        if self._is_local:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
