"""A Python environment with all packages of this one but Kerolox."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from pathlib import Path

__all__ = ["bare_python"]

SOURCE = Path(__file__).parents[2] / "src"


FORMATS = ("pyspark_rocketmq", "pyspark_rocketmq_store")
"""By which Spark finds the formats."""


def bare_python(folder: Path, *, version: str | None = None, formats: bool = False) -> Path:
    """Make it in ``folder``.

    Args:
        folder: a new one.
        version: with a copy of Kerolox that says it has this version.
        formats: with a copy of Kerolox as it is, and Spark's way to it.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Lines of .pth files add folders; .pth files in those, as that of an editable install, don't.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    if formats:
        for name in ("kerolox", *FORMATS):
            shutil.copytree(SOURCE / name, packages / name)
    elif version is not None:
        shutil.copytree(SOURCE / "kerolox", packages / "kerolox")
        module = packages / "kerolox" / "release.py"
        text = module.read_text()
        changed = text.replace('__version__ = "', f'__version__ = "{version}" or "')
        assert changed != text
        module.write_text(changed)
    return folder / "bin" / "python"
