"""Build the documentation into site/; a warning is an error.

    python tools/build_docs.py [--out site]

zensical keeps its own files in ``.cache`` beside the configuration, and empties that folder as it
likes. Ours has other things in it, so the site is built from a copy.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import BIN, ROOT


def build(out: Path) -> int:
    """The status of zensical; what it said is printed."""
    if out.exists() and not (out / "sitemap.xml").exists():
        raise SystemExit(f"{out} is there and is no site; name another folder")
    with tempfile.TemporaryDirectory(prefix="kerolox-docs-") as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "docs", copy / "docs")
        config = (ROOT / "zensical.toml").read_text()
        config = re.sub(r'"(src|tools/\w+\.py)"', rf'"{ROOT}/\1"', config)
        (copy / "zensical.toml").write_text(config)
        status = subprocess.run([BIN / "zensical", "build", "--strict"], cwd=copy).returncode
        if status == 0:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(copy / "site", out)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    return build(parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
