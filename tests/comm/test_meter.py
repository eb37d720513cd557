"""The ledger's bytes against an independent meter: the kernel's own counters on gloo's TCP sockets.

gloo adds a header to each message, and up to two notices of the same length ("I want to send", "I am ready"), whose
number depends on who comes first. So the kernel's count must be the ledger's plus a whole number of headers, one to
three a message in either direction: no lost or invented byte can hide there unless it comes in packs of 48."""

import os
import socket
import struct
import sys
import time

import pytest
import torch

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_INFO is Linux's")
TCP_INFO = 11
HEADER = 48  # bytes; gloo/transport/tcp/pair.h, the preamble of struct Op
ACKED = 120  # offset in struct tcp_info (linux/tcp.h) of tcpi_bytes_acked; tcpi_bytes_received follows; both u64


def kernel_counts() -> tuple[int, int]:
    """Bytes acknowledged by the other side and bytes received, over all TCP connections of this process."""
    acked = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as s:
                if s.family in (socket.AF_INET, socket.AF_INET6) and s.type & socket.SOCK_STREAM:
                    a, r = struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256), ACKED)
                    acked, received = acked + a, received + r
        except OSError:
            continue
    return acked, received


def settled() -> tuple[int, int]:
    """The counts once nothing is on its way any more."""
    before, since = kernel_counts(), time.monotonic()
    while time.monotonic() - since < 0.2:
        time.sleep(0.02)
        now = kernel_counts()
        if now != before:
            before, since = now, time.monotonic()
    return before


def measured(group, body, *args):
    """[sent, received] by the kernel and by the ledger, while body runs."""
    x = torch.zeros(1)
    group.all_reduce(x)  # connections are up
    settled()
    group.all_reduce(x)
    before = settled()
    mark = len(group.ledger.events)
    body(group, *args)
    after = settled()
    group.all_reduce(x)  # nobody leaves the counting early
    events = group.ledger.events[mark:-1]
    ledger = [sum(e.bytes for e in events if e.kind == kind) for kind in ("send", "recv")]
    return [b - a for a, b in zip(before, after)], ledger


def messages(group, n):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    x = torch.arange(n * (group.rank + 1), dtype=torch.float32)
    group.sendrecv(x, dst=right, src=left, like=torch.empty(n * (left + 1)))
    group.sendrecv(x.bfloat16(), dst=left, src=right, like=torch.empty(n * (right + 1), dtype=torch.bfloat16))
    handle = group.irecv(left, like=torch.empty(2 * n, dtype=torch.float8_e4m3fn))
    group.send(torch.ones(n, 4)[:, ::2].to(torch.float8_e4m3fn), right)  # non-contiguous: only its own bytes cross
    handle.wait()


@linux
def test_messages_cross_as_the_ledger_says(pools):
    for n in (1001, 30_011):
        for rank, (kernel, ledger) in enumerate(pools(measured, messages, n, size=3)):
            left = (rank - 1) % 3
            right = (rank + 1) % 3
            assert ledger == [(4 * to + 2 * fro + 2) * n for to, fro in ((rank + 1, rank + 1), (left + 1, right + 1))]
            for crossed, recorded in zip(kernel, ledger):
                headers, rest = divmod(crossed - recorded, HEADER)
                assert rest == 0 and 3 <= headers <= 3 * 3 * 2, (rank, kernel, ledger)  # three messages each way
