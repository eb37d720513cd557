"""Attacks that reach for what is not theirs: files, the environment, the network, other processes."""

import ctypes
import os
import socket
import sys


def read(group, path):
    """The text of a file of the machine, wherever it may be found; None if it cannot be."""
    for place in (path, f"/host{path}"):
        try:
            with open(place) as file:
                return file.read()
        except OSError:
            continue
    return None


def write(group, path, text):
    """Forge a file of the machine's, a mark, say. Whether that worked."""
    for place in (path, f"/host{path}"):
        try:
            with open(place, "w") as file:
                file.write(text)
            return True
        except OSError:
            continue
    return False


def names(group):
    """Bytes that are kept as names in each folder that may be written, and as places that links lead to: no file has
    them."""
    kept = {os.environ["TMPDIR"]: 0, "/dev/shm": 0}
    for folder in kept:
        try:
            for number in range(10_000):
                name = f"{number:0255d}"
                os.symlink("x" * 120, f"{folder}/{name}")
                kept[folder] += len(name) + 120
        except OSError:
            continue
    return kept


def packed(group, x):
    """How often x lies in what the functions below this one hold, as the bytes in which it came."""
    sought, frame, found = x.numpy().tobytes(), sys._getframe(1), 0
    while frame is not None:
        found += sum(sought in one for one in frame.f_locals.values() if isinstance(one, (bytes, bytearray)))
        frame = frame.f_back
    return found


def solutions(group):
    """All Python files that hold an instructor's text, and all folders of tests, in everything that can be seen."""
    found = []
    for folder, folders, files in os.walk("/"):
        folders[:] = [
            name
            for name in folders
            if not (folder == "/" and name in ("proc", "sys", "dev"))
            and name not in ("site-packages", "torch", "lib-dynload")
        ]
        for name in files:
            if name.endswith(".py") and "week" in folder:
                with open(os.path.join(folder, name), errors="replace") as file:
                    if "BEGIN " + "SOLUTION" in file.read():
                        found.append(os.path.join(folder, name))
    return found


def library(group, module):
    """A module of labkit that the task has not been given, past the rule that refuses its import; its source, even."""
    import importlib

    sys.meta_path[:] = [finder for finder in sys.meta_path if finder.__module__ != "labkit.checks.boundary"]
    try:
        with open(importlib.import_module(module).__file__) as file:
            return file.read()
    except ImportError:
        return None


def asked_for(group, module):
    """The same, as a student would write it."""
    __import__(module)


def environment(group):
    """Variables that the grader has, tokens among them."""
    return dict(os.environ)


def knock(group, port, abstract):
    """Who answers at a port of this machine, and at an abstract socket of it."""
    heard = []
    for family, address in ((socket.AF_INET, ("127.0.0.1", port)), (socket.AF_UNIX, "\0" + abstract)):
        try:
            with socket.socket(family) as link:
                link.settimeout(5.0)
                link.connect(address)
                heard.append(link.recv(100).decode())
        except OSError:
            pass
    return heard


def others(group):
    """Processes that can be seen besides this one."""
    return sum(name.isdigit() for name in os.listdir("/proc")) - ("self" in os.listdir("/proc"))


def uncover(group):
    """The same, after taking away what hides them."""
    ctypes.CDLL(None).umount2(b"/proc", 2)
    return others(group)


def orders(group):
    """Sockets that were left open: over one of them the grader gives its orders."""
    found = 0
    for number in range(5, 256):
        try:
            with socket.socket(fileno=os.dup(number)) as link:
                found += link.family == socket.AF_UNIX
        except OSError:
            pass
    return found
