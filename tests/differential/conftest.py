"""What holds for all tests here."""

from tests.support.stores.memory import tmp_path

__all__ = ["tmp_path"]
