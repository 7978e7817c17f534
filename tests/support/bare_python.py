"""A Python environment with all packages of this one but Kerolox."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from pathlib import Path

__all__ = ["bare_python"]

SOURCE = Path(__file__).parents[2] / "src"


def bare_python(folder: Path, *, version: str | None = None) -> Path:
    """Make it in ``folder``; ``version``: with a copy of Kerolox that says it has this version."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Lines of .pth files add folders; .pth files in those, as that of an editable install, don't.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    if version is not None:
        shutil.copytree(SOURCE / "kerolox", packages / "kerolox")
        module = packages / "kerolox" / "__init__.py"
        text = module.read_text()
        changed = text.replace('__version__ = "', f'__version__ = "{version}" or "')
        assert changed != text
        module.write_text(changed)
    return folder / "bin" / "python"
