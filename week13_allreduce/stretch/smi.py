"""From `nvidia-smi topo -m` to a link graph (task 13.11, stretch, no points).

The command prints a matrix: one row and one column for each GPU and each network card, and in the cell the *worst*
thing that lies between the two (data/README.md has the symbols, and four real outputs). Behind a GPU's row follow the
CPUs and the NUMA node it is nearest to.

    GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity           words, not columns: a title may hold a blank,
    GPU0     X      NV4     PIX   0-23      0                       some versions use tabs and some use blanks,
    GPU1    NV4      X      SYS   24-47     1                       and on a terminal the header is underlined

The matrix names relations; a ring needs links. Between two GPUs we assume

    NV#, one # for all pairs of the    an NVSwitch: each of them has # links up to it and # links down from it, beside
    three or more GPUs that have any   its PCIe link if another GPU has none (a GPU whose NVLink is down)
    NV#, otherwise                     a cable of # NVLinks between these two, which nobody else uses
    PIX PXB PHB NODE                   each GPU's own PCIe link, up and down, to a switch or CPU that keeps up
    SYS                                the same, and between them the link between the sockets, which all pairs share

That is a model too: it trusts every PCIe switch and knows nothing of lanes that a slot lacks. The cure is to measure.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from labkit.comm.topology import Link, Topology
from labkit.errors import LabError


class Topo(NamedTuple):
    """One machine, as `nvidia-smi topo -m` describes it."""

    # A table of what each field holds stays one:
    # fmt: off
    gpus: list[str]                         # "GPU0", ...
    nics: list[str]                         # "NIC0", "mlx5_0", ...
    between: dict[tuple[str, str], str]     # (device, device) -> symbol, for every two different devices, both ways
    cpus: dict[str, str]                    # GPU -> "0-79", or "" if not given
    socket: dict[str, int]                  # GPU -> 0, 1, ...: its NUMA node, numbered as they appear
    # fmt: on


SYMBOL = re.compile(r"NV\d+|SYS|NODE|PHB|PXB|PIX")
OLDER = {"SOC": "SYS", "PSB": "PIX"}  # a symbol of older drivers -> today's
P2P = re.compile(r"\s(OK|CNS|GNS|TNS|NS|DR|U)(\s|$)")  # cells of `topo -p2p`, a matrix that looks the same


def plain_lines(text: str) -> list[str]:
    """The lines of a pasted output (given): no byte order mark, no colours (also where a browser ate the ESC), no marks
    of quoting or of a comment, none that are empty, no row of a P2P matrix."""
    text = re.sub(r"\x1b?\[[0-9;]*[mK]|[\ufeff\r`\"']", "", text)
    lines = (re.sub(r"^(\s*[>|#] ?)+", "", line) for line in text.splitlines())
    return [line for line in lines if line.strip() and not P2P.search(line)]


def affinities(line: str, devices: int, titles: list[str]) -> tuple[str, str]:
    """(CPUs, NUMA node) behind the symbols of a GPU's row (given), "" where none is named. Blanks and tabs are as people
    paste them: where cells are missing, a gap wider than one tab says that the first of them is."""
    behind = re.sub(rf"\s*\S+(?:\s+\S+){{{devices}}}", "", line, count=1)
    cells, gap = behind.split(), behind[: len(behind) - len(behind.lstrip())]
    wide = len(gap) > 8 or gap.count("\t") > 1
    if wide and len(cells) < titles.count("Affinity") + titles.count("ID"):
        cells = ["", *cells]
    cells = [cell if re.fullmatch(r"[\d,-]+", cell) else "" for cell in cells] + ["", ""]
    return cells[0], cells[1] if "NUMA" in titles else ""


def sockets(gpus: list[str], numa: dict[str, str], cpus: dict[str, str], between: dict) -> dict[str, int]:
    """Number the GPUs' sockets (given): by NUMA node where it is known, else by the CPUs they are nearest to, else
    those that need not cross between sockets are on one."""
    home = numa if all(numa.get(gpu, "").isdigit() for gpu in gpus) else cpus
    if not all(home.values()):
        home = {gpu: next(a for a in gpus if between.get((a, gpu)) != "SYS") for gpu in gpus}
    order = list(dict.fromkeys(home[gpu] for gpu in gpus))
    return {gpu: order.index(home[gpu]) for gpu in gpus}


def parse_topo(text: str) -> Topo:
    """Task 13.11. Read the output of `nvidia-smi topo -m`.

    Tabs or blanks, with or without a NUMA column, cells of the affinities empty or not; whatever stands around the
    matrix (another matrix, the legend) is ignored. SOC and PSB are what older drivers call SYS and PIX. LabError if no
    matrix is found, a row is missing or too short, or a symbol is unknown.
    """
    ### BEGIN SOLUTION 13.11 parse nvidia-smi topo -m
    lines = plain_lines(text)
    starts = (
        i for i, (head, row) in enumerate(itertools.pairwise(lines)) if head.split()[0] == row.split()[0] == "GPU0"
    )
    at = next(starts, None)
    if at is None:
        raise LabError("this is no output of nvidia-smi topo -m: no line of titles that begins with GPU0 was found.")
    titles = lines[at].split()
    devices = list(itertools.takewhile(lambda title: title not in ("CPU", "NUMA", "GPU"), titles))
    rows = {line.split()[0]: line for line in reversed(lines[at + 1 :]) if line.split()[0] in devices}
    cpus: dict[str, str] = {}
    numa: dict[str, str] = {}
    between: dict[tuple[str, str], str] = {}
    for name, line in rows.items():
        words, N = line.split()[1:], len(devices)
        if len(words) < N:
            raise LabError(f"row {name} has {len(words)} cells, and there are {N} devices.")
        if any(word == "X" or SYMBOL.fullmatch(OLDER.get(word, word)) for word in words[N:]):
            raise LabError(f"row {name} has more cells than the {N} devices of the titles: were two of these joined?")
        for other, symbol in zip(devices, words):
            symbol = OLDER.get(symbol, symbol)
            if (symbol != "X") if other == name else not SYMBOL.fullmatch(symbol):
                raise LabError(f"between {name} and {other} stands {symbol!r}, no symbol of nvidia-smi topo -m.")
            if other != name:
                between |= {(name, other): symbol, (other, name): symbol}
        if name.startswith("GPU"):
            cpus[name], numa[name] = affinities(line, N, titles)
    gpus = [name for name in devices if name.startswith("GPU")]
    if lost := [name for name in gpus if name not in rows]:
        raise LabError(f"the row of {lost[0]} is missing.")
    nics = [name for name in devices if name not in gpus]
    missing = [(a, b) for a, b in itertools.combinations(devices, 2) if (a, b) not in between]
    if missing:
        raise LabError(f"the row of {missing[0][0]} is missing.")
    return Topo(gpus, nics, between, cpus, sockets(gpus, numa, cpus, between))
    ### END SOLUTION


def to_topology(
    topo: Topo, nvlink: float = 25e9, pcie: float = 24e9, smp: float = 10e9, alpha: float = 0.0
) -> Topology:
    """Task 13.11. The link graph of the GPUs, rank r on the r-th GPU, by the rules above.

    Args:
        nvlink: bandwidth of one NVLink, one direction, bytes/s (25e9 on V100 to H100).
        pcie: of a GPU's PCIe link, one direction.
        smp: of the link between two sockets, one direction.
        alpha: latency of every link, seconds.
    """
    ### BEGIN SOLUTION 13.11 link graph from the matrix
    N = len(topo.gpus)
    links: dict[str, Link] = {}
    routes: dict[tuple[int, int], list[str]] = {}
    symbols = {(a, b): topo.between[topo.gpus[a], topo.gpus[b]] for a in range(N) for b in range(N) if a != b}
    linked = {gpu for pair, symbol in symbols.items() if symbol.startswith("NV") for gpu in pair}
    switched = len(linked) > 2 and len({symbols[pair] for pair in itertools.permutations(linked, 2)}) == 1
    for (a, b), symbol in symbols.items():
        bandwidth = nvlink * int(symbol[2:]) if symbol.startswith("NV") else pcie
        if symbol.startswith("NV") and not switched:
            path = {f"{a}->{b}": bandwidth}
        else:
            side = ".nvlink" if symbol.startswith("NV") and len(linked) < N else ""
            path = {f"{a}{side}.up": bandwidth, f"{b}{side}.down": bandwidth}
            if symbol == "SYS":
                here, there = topo.socket[topo.gpus[a]], topo.socket[topo.gpus[b]]
                path = {f"{a}.up": pcie, f"socket{here}->socket{there}": smp, f"{b}.down": pcie}
        links |= {name: Link(speed, alpha) for name, speed in path.items()}
        routes[a, b] = list(path)
    return Topology(N, links, routes, f"{N} GPUs as nvidia-smi sees them")
    ### END SOLUTION
