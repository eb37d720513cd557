"""python -m tests.grading.sandbox.whispers [OUT.json]: how many bits a second pass by the broker, on each way that is
open (attacks/whispers.py).

A bit that arrives wrong in a share e of cases is worth 1 - H(e) bits; what is told is the best over the windows tried.
The two ranks want nothing but to talk; neighbours on the machine make it worse for them. "pipes" stays open only where
an ordinary user grades: as root each rank is a user of its own.
"""

import json
import math
import random
import sys
import tempfile
from pathlib import Path

from tests.grading.sandbox.attacking import Field

BITS, MANY = 64, 5000
REPEATS = 3
CLOCKED = ("processor", "inodes", "pipes")
WINDOWS = {
    "processor": (0.1, 0.03, 0.01, 0.003),
    "inodes": (0.1, 0.03, 0.01, 0.005),
    "pipes": (0.03, 0.01, 0.003),
    "lateness": (0.03, 0.01, 0.003, 0.001, 0.0003),
    "page_cache": (0.0,),
    "names": (0.0,),
}


def worth(wrong: float) -> float:
    """Bits that one bit is worth if it is wrong in this share of cases (a channel that is as often wrong as right
    carries nothing)."""
    return 1.0 if wrong in (0.0, 1.0) else 1 + wrong * math.log2(wrong) + (1 - wrong) * math.log2(1 - wrong)


def measure(field: Field) -> dict[str, list[dict[str, float]]]:
    draw, found = random.Random(20), {}
    for way, windows in WINDOWS.items():
        for window in windows:
            wrong = seconds = sent = 0.0
            for _ in range(REPEATS if way != "page_cache" else 1):
                bits = [draw.randrange(2) for _ in range(MANY if way == "names" else BITS)]
                runner = field.runner({"users"} if way == "pipes" else ())
                reply = field.ask(f"whispers.{way}", ranks=2, bits=bits, window=window, runner=runner)
                if reply.verdict != "passed":
                    raise SystemExit(f"{way}: {reply.text}")
                wrong += sum(a != b for a, b in zip(reply.values[0], bits))
                sent += len(bits)
                # Where no clock beats, a window is the least that a bit takes.
                seconds += BITS * window if way in CLOCKED else runner.seconds[f"whispers.{way}"]
            share = wrong / sent
            rate = worth(share) * sent / seconds if share < 0.3 else 0.0
            found.setdefault(way, []).append({"window": window, "wrong": share, "bits_per_second": round(rate, 1)})
            print(
                f"{way:<11} window {1000 * window:5.1f} ms   {100 * share:4.1f} % wrong   {rate:7.1f} bits/s",
                flush=True,
            )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="whispers-") as folder:
        Path(folder).chmod(0o755)
        field = Field(Path(folder))
        try:
            found = measure(field)
        finally:
            field.close()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
