"""When is a checkpoint on disk whole? A folder, a manifest, and one rename.

    checkpoints/
        step-00000200/            whole: it got this name in one step, after everything in it was on the disk
            manifest.json         sizes and CRC-32 of the files, what run this is; its own CRC-32 too
            .metadata  __0_0.distcp  __1_0.distcp  ...      weights and optimizer, written by torch's DCP
            rank-00000.pt ...                               what belongs to one rank: generators, hooks, history
        step-00000300.partial/    being written, or what a killed save left: never read, removed at the next start
        step-00000100.corrupt/    found damaged and passed over: kept for inspection, removed at the next good save

Sizes and checksums guard against what comes after the rename: a disk that flips bits, a copy cut short. Imports no
torch.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME = "manifest.json"
PARTIAL, CORRUPT = ".partial", ".corrupt"
_STEP = re.compile(r"step-(\d{8,})")
_CHUNK = 1 << 22


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def whole_steps(folder: Path) -> list[int]:
    """List the steps that have a checkpoint under its final name, newest first; damaged ones too: see `damaged`."""
    if not folder.is_dir():
        return []
    return sorted((int(m[1]) for p in folder.iterdir() if p.is_dir() and (m := _STEP.fullmatch(p.name))), reverse=True)


def describe(file: Path) -> dict[str, int]:
    """Return {"bytes", "crc32"} of one file."""
    crc = size = 0
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


def write(folder: Path, files: dict[str, dict[str, int]], about: dict[str, Any]) -> None:
    """Write the manifest of `folder`: `files` as `describe` gave them, and whatever JSON the reader should know."""
    body = {"files": files, **about}
    write_durably(folder / NAME, json.dumps({"crc32": _crc(body), "body": body}, indent=1).encode())


def read(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return (the manifest's body, None), or ({}, what is wrong with it)."""
    try:
        manifest = json.loads((folder / NAME).read_bytes())
        body = manifest["body"]
        return (body, None) if manifest["crc32"] == _crc(body) else ({}, f"{NAME} does not match its own checksum")
    except FileNotFoundError:
        return {}, f"{NAME} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {}, f"{NAME} cannot be read ({type(error).__name__})"


def damaged(folder: Path, files: Iterable[tuple[str, dict[str, int]]]) -> str | None:
    """Say what is wrong with the first of a checkpoint's files (name, as `describe` gave it); None: they are whole."""
    for name, expected in files:
        try:
            size = (folder / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size:,} bytes instead of {expected['bytes']:,}"
            if describe(folder / name) != expected:
                return f"{name} has changed since it was written (CRC-32 differs)"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def publish(partial: Path, final: Path) -> None:
    """Give a finished folder its final name."""
    sync_folder(partial)
    if final.exists():  # a damaged one, passed over at the start and now written anew
        retire(final)
    os.rename(partial, final)
    sync_folder(final.parent)


def retire(folder: Path) -> None:
    """Delete a checkpoint."""
    # It loses its name before its files, so that a kill in between leaves no half checkpoint.
    doomed = folder.with_name(f"{folder.name}.old{PARTIAL}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path, *suffixes: str) -> None:
    """Remove the folders that end in one of `suffixes`: leftovers that are no checkpoints."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and path.name.startswith("step-") and path.name.endswith(suffixes):
            shutil.rmtree(path, ignore_errors=True)


def write_durably(file: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's list of names."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _crc(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
