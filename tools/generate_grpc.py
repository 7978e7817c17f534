#!/usr/bin/env python3
"""Make ``_files.py`` and ``messages.pyi`` of ``src/kerolox/protocol/grpc`` from ``.proto`` files.

The ``.proto`` files there are those of github.com/apache/rocketmq-apis. To make the two anew:
``uv run --with grpcio-tools==1.85.1 --no-project tools/generate_grpc.py``. ``--check`` needs no
compiler: each file names the digest of what it was made from, and its own.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src/kerolox/protocol/grpc"
PROTOS = ["apache/rocketmq/v2/definition.proto", "apache/rocketmq/v2/service.proto"]
FILES, STUB = FOLDER / "_files.py", FOLDER / "messages.pyi"
HEAD = "# Made by tools/generate_grpc.py; do not edit.\n# of {protos}\n# text {text}\n"
FILES_DOC = '"""Descriptors of RocketMQ\'s gRPC service and of its imports, serialized."""\n'


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_of_protos() -> str:
    return digest(b"".join((FOLDER / each).read_bytes() for each in PROTOS))


def with_head(text: str) -> str:
    return HEAD.format(protos=digest_of_protos(), text=digest(text.encode())) + text


def fault(path: Path) -> str | None:
    """Why a made file is not what it should be; None: it is."""
    if not path.exists():
        return "is missing"
    _head, of_protos, of_text, text = path.read_text().split("\n", 3)
    if of_protos != f"# of {digest_of_protos()}":
        return "is not made of the .proto files that are here"
    if of_text != f"# text {digest(text.encode())}":
        return "was edited by hand"
    return None


def stub_of(texts: list[str]) -> str:
    """One stub of those of several files."""
    imports: list[str] = []
    rest: list[str] = []
    for text in texts:
        for line in text.splitlines():
            if line.startswith(("from ", "import ")):
                if "apache.rocketmq" not in line and line not in imports:
                    imports.append(line)
            elif not line.startswith("DESCRIPTOR:"):
                rest.append(line)
    body = re.sub(r"\b_(?:definition|service)_pb2\.", "", "\n".join(rest))
    # Numbers of enums travel as numbers, so that a later version's are no error.
    for enum in re.findall(r"^class (\w+)\(int,", body, re.MULTILINE):
        body = re.sub(rf"_Union\[{enum}, str\]", "_Union[int, str]", body)
        body = re.sub(rf": {enum}$", ": int", body, flags=re.MULTILINE)
        body = re.sub(rf"\[{enum}\]", "[int]", body)
    imports += [
        f"from google.protobuf.{name.lower()}_pb2 import {name} as {name}"
        for name in ("Duration", "Timestamp")
    ]
    return "# ruff: noqa\n" + "\n".join(imports) + "\n" + body.strip() + "\n"


def compiled() -> tuple[str, str]:
    """The text of both files."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(FOLDER)]
        command += [f"--pyi_out={out}", "--include_imports", f"--descriptor_set_out={out / 'set'}"]
        subprocess.run([*command, *PROTOS], check=True)
        stubs = [(out / each.replace(".proto", "_pb2.pyi")).read_text() for each in PROTOS]
        data = base64.b64encode((out / "set").read_bytes()).decode()
    lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(data, 92))
    return f"\n{FILES_DOC}\nDESCRIPTORS = (\n{lines}\n)\n", stub_of(stubs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="say what is stale, change nothing")
    if parser.parse_args().check:
        faults = {path: why for path in (FILES, STUB) if (why := fault(path)) is not None}
        for path, why in faults.items():
            print(f"{path.relative_to(ROOT)} {why}; run tools/generate_grpc.py")
        return bool(faults)
    files, stub = compiled()
    FILES.write_text(with_head(files))
    STUB.write_text(with_head(stub))
    return 0


if __name__ == "__main__":
    sys.exit(main())
