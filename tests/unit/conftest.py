"""What holds for all unit tests."""

from tests.support.stores.memory import tmp_path

__all__ = ["tmp_path"]
