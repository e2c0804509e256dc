#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well calls are divided between NCCL and Ferry: beside every fixed share, and beside bursts of copies.

    nccl_shares.py cold [MIB...]   from a cold start: default 4 16 64 256 1024, of three collectives
    nccl_shares.py bursts [MIB]    AllReduce, default 256, beside a second of copies both ways, a second without

With libferry-nccl.so preloaded, FERRY_SPLIT_WAIT=5, and a router that has learned nothing yet. One process has all
GPUs.
"""
import mmap
import os
import sys
import threading
import time
from ctypes import addressof, byref, c_char, c_size_t, c_uint64, c_void_p

from nccl_startup import NON_BLOCKING, Process, call

COLLECTIVES = ["AllReduce", "AllGather", "ReduceScatter"]
FIXED = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]  # NCCL's share
LEARNING, SETTLED, CALLS = 5, 15, 7
PIECE = 16 << 20
PORTABLE = 1
SECOND, CYCLES = 1.0, 3


def median(values):
    return sorted(values)[len(values) // 2]


def other_than_nccl(name):
    """Who has the rest: GPUs that reach each other push what needs no sum."""
    return "peer" if name == "AllGather" and os.environ.get("NCCL_P2P_DISABLE", "0") == "0" else "host"


def make_pinned(process, share, other="host"):
    """Communicators read FERRY_SHARES when they are made."""
    os.environ["FERRY_SHARES"] = f"nccl:{share:.1f},{other}:{1 - share:.1f}"
    process.make()
    del os.environ["FERRY_SHARES"]


# ---- from a cold start ----

def cold(sizes):
    process = Process(0, max(sizes) << 20)
    cells = [(name, mib << 20) for name in COLLECTIVES for mib in sizes]
    process.make()
    times = {cell: [process.timed_us(*cell) for _ in range(LEARNING + SETTLED)] for cell in cells}
    process.end()
    fixed = {cell: {} for cell in cells}
    for other in sorted({other_than_nccl(name) for name in COLLECTIVES}):
        for share in FIXED:
            make_pinned(process, share, other)
            for cell in cells:
                if other_than_nccl(cell[0]) == other:
                    fixed[cell][share] = median([process.timed_us(*cell) for _ in range(2 + CALLS)][2:])
            process.end()
    print("us; the best share of NCCL's by a sweep; its time over that of calls 6 to 20, and over NCCL alone's")
    print(f"{'':14} {'MiB':>5}  " + " ".join(f"{f'call {i + 1}':>8}" for i in range(LEARNING)) +
          f" {'6 to 20':>8} {'best':>8} {'share':>6} {'ratio':>6} {'alone':>6}")
    worst = 9.0
    for cell in cells:
        settled = median(times[cell][LEARNING:])
        share, best = min(fixed[cell].items(), key=lambda item: item[1])
        worst = min(worst, best / settled)
        print(f"{cell[0]:14} {cell[1] >> 20:5}  " + " ".join(f"{value:8.0f}" for value in times[cell][:LEARNING]) +
              f" {settled:8.0f} {best:8.0f} {share:6.1f} {best / settled:6.2f} {best / fixed[cell][1.0]:6.2f}")
    print(f"worst ratio {worst:.2f}")


# ---- beside bursts ----

class Copies(threading.Thread):
    """Copies both ways, on all GPUs, while `on`."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.on, self.over, self.moved, self.busy = process, False, False, 0, 0.0
        self.ways = []
        for gpu in range(process.count):
            process.enter(gpu)
            for up in (False, True):
                stream, device = c_void_p(), c_uint64()
                window = mmap.mmap(-1, PIECE)
                host = c_void_p(addressof(c_char.from_buffer(window)))
                call(process.cuda, "cuStreamCreate", byref(stream), NON_BLOCKING)
                call(process.cuda, "cuMemAlloc_v2", byref(device), c_size_t(PIECE))
                call(process.cuda, "cuMemHostRegister_v2", host, c_size_t(PIECE), PORTABLE)
                self.ways.append((gpu, up, stream, device, host, window))

    def copy(self):
        begin = time.monotonic()
        for gpu, up, stream, device, host, _ in self.ways:
            self.process.enter(gpu)
            for _ in range(4):
                if up:
                    call(self.process.cuda, "cuMemcpyDtoHAsync_v2", host, device, c_size_t(PIECE), stream)
                else:
                    call(self.process.cuda, "cuMemcpyHtoDAsync_v2", device, host, c_size_t(PIECE), stream)
        for gpu, _, stream, *_ in self.ways:
            self.process.enter(gpu)
            call(self.process.cuda, "cuStreamSynchronize", stream)
        self.moved += 4 * PIECE * len(self.ways)
        self.busy += time.monotonic() - begin

    def run(self):
        while not self.over:
            if self.on:
                self.copy()
            else:
                time.sleep(0.001)

    def rate(self):
        """GB/s of all ways together since the last look."""
        rate = self.moved / self.busy / 1e9 if self.busy else 0.0
        self.moved, self.busy = 0, 0.0
        return rate


def calls_per_second(process, size, seconds):
    begin, calls = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        process.timed_us("AllReduce", size)
        calls += 1
    return calls / (time.monotonic() - begin)


def cycle(process, copies, size, cycles=1):
    """Calls per second without bursts and in them, GB/s of the copies."""
    rates = {False: 0.0, True: 0.0}
    copies.rate()
    for _ in range(cycles):
        for on in (False, True):
            copies.on = on
            rates[on] += calls_per_second(process, size, SECOND) / cycles
    copies.on = False
    return rates[False], rates[True], copies.rate()


def bursts(mib):
    size = mib << 20
    process = Process(0, size)
    copies = Copies(process)
    copies.start()
    copies.on = True
    time.sleep(SECOND / 2)
    copies.on = False
    alone = copies.rate()
    process.make()
    for _ in range(20):
        process.timed_us("AllReduce", size)
    ours = cycle(process, copies, size, CYCLES)
    process.end()
    fixed = {}
    for share in FIXED[::2]:
        make_pinned(process, share)
        process.timed_us("AllReduce", size)
        fixed[share] = cycle(process, copies, size)
        process.end()
    copies.over = True
    print(f"AllReduce of {mib} MiB, calls per second; copies alone {alone:.1f} GB/s")
    print(f"{'NCCL has':10} {'calm':>8} {'bursts':>8} {'copies, GB/s':>13}")
    for name, (calm, busy, rate) in [("learned", ours), *fixed.items()]:
        print(f"{name:<10} {calm:8.1f} {busy:8.1f} {rate:13.1f}")
    oracle = max(row[0] for row in fixed.values()) + max(row[1] for row in fixed.values())
    share, calm = max(fixed.items(), key=lambda item: item[1][0])
    print(f"of an oracle {(ours[0] + ours[1]) / oracle:.2f}; over {share:.1f}, the best where it is calm: "
          f"{ours[1] / calm[1]:.2f} in bursts, {(ours[0] + ours[1]) / (calm[0] + calm[1]):.2f} in all")


def main():
    words = sys.argv[1:]
    if not words or words[0] not in ("cold", "bursts") or not all(word.isdigit() for word in words[1:]):
        print(__doc__, file=sys.stdout if "--help" in words else sys.stderr)
        sys.exit(0 if "--help" in words else 64)
    sizes = [int(word) for word in words[1:]]
    if words[0] == "cold":
        cold(sizes or [4, 16, 64, 256, 1024])
    else:
        bursts(*(sizes or [256]))
    sys.stdout.flush()


main()
