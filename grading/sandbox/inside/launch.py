"""Becomes another program in the sandbox: limits first, then another user where the grader is root, then exec.

python -m labkit_inside.launch SETTINGS WORD...     an interpreter with these words
"""

import json
import os
import resource
import sys


def main() -> None:
    settings, words = json.loads(sys.argv[1]), sys.argv[2:]
    limits = {"RLIMIT_FSIZE": settings["disk"], "RLIMIT_NOFILE": settings["files"], "RLIMIT_CORE": 0}
    if settings["uid"] is not None:
        limits["RLIMIT_NPROC"] = settings["processes"]  # the kernel counts by user, and this one is nobody else's
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(*[settings["uid"]] * 3)
        os.setresuid(*[settings["uid"]] * 3)
    os.execv(sys.executable, [sys.executable, "-s", "-B", *words])


if __name__ == "__main__":
    main()
