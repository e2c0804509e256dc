#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it takes to start with NCCL: a process with all GPUs makes communicators and has them reduce once.

    nccl_startup.py [GPUS]        a line of JSON; LD_PRELOAD says whether Ferry is between
    nccl_startup.py table FILE... medians of what files of such lines have

By ctypes: no PyTorch. Times in milliseconds; memory in MiB: gpu_mib is used on the first GPU at the end, by
all processes.
"""
import ctypes
import glob
import json
import os
import sys
import time

BYTES = 64 << 20
FLOAT32, SUM = 7, 0
SETTLED_S = 1.5  # Ferry's communicators are made beside
COLUMNS = ["contexts_ms", "made_ms", "first_ms", "call_us", "destroyed_ms", "rss_mib", "rss_peak_mib", "threads",
           "gpu_mib"]


def open_nccl():
    """What is preloaded comes first, as in programs that link NCCL."""
    names = ["libnccl.so.2"]
    names += [name for folder in sys.path for name in glob.glob(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2"))]
    library = None
    for name in names:
        try:
            library = library or ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    whole = ctypes.CDLL(None)
    if library is None and not hasattr(whole, "ncclCommInitAll"):
        print("skipped: no libnccl.so.2")
        sys.exit(77)
    return whole if hasattr(whole, "ncclCommInitAll") else library


def call(library, name, *arguments):
    result = getattr(library, name)(*arguments)
    if result:
        sys.exit(f"nccl_startup: {name}: {result}")


class Process:
    """Contexts and buffers on all GPUs."""

    def __init__(self, gpus):
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            print("skipped: no libcuda.so.1")
            sys.exit(77)
        count = ctypes.c_int()
        if self.cuda.cuInit(0) or self.cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            print("skipped: no GPU")
            sys.exit(77)
        self.count = min(gpus or count.value, count.value)
        self.contexts = [ctypes.c_void_p() for _ in range(self.count)]
        self.buffers = [ctypes.c_uint64() for _ in range(self.count)]
        for gpu in range(self.count):
            call(self.cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(self.contexts[gpu]), gpu)
            self.enter(gpu)
            call(self.cuda, "cuMemAlloc_v2", ctypes.byref(self.buffers[gpu]), ctypes.c_size_t(BYTES))
        self.nccl = open_nccl()
        self.comms = (ctypes.c_void_p * self.count)()

    def enter(self, gpu):
        call(self.cuda, "cuCtxSetCurrent", self.contexts[gpu])

    def used_mib(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.enter(0)
        call(self.cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return (total.value - free.value) >> 20

    def reduce(self, times=1):
        for _ in range(times):
            call(self.nccl, "ncclGroupStart")
            for gpu in range(self.count):
                buffer = ctypes.c_void_p(self.buffers[gpu].value)
                call(self.nccl, "ncclAllReduce", buffer, buffer, ctypes.c_size_t(BYTES // 4), FLOAT32, SUM,
                     ctypes.c_void_p(self.comms[gpu]), None)
            call(self.nccl, "ncclGroupEnd")
        for gpu in range(self.count):
            self.enter(gpu)
            call(self.cuda, "cuCtxSynchronize")


def own_status():
    with open("/proc/self/status", encoding="ascii") as status:
        words = dict(line.split(":", 1) for line in status)
    return {"rss_mib": int(words["VmRSS"].split()[0]) >> 10, "rss_peak_mib": int(words["VmHWM"].split()[0]) >> 10,
            "threads": int(words["Threads"])}


def measure(gpus):
    marks = [time.monotonic()]
    process = Process(gpus)
    marks.append(time.monotonic())
    call(process.nccl, "ncclCommInitAll", process.comms, process.count, None)
    marks.append(time.monotonic())
    process.reduce()
    marks.append(time.monotonic())
    time.sleep(SETTLED_S)
    process.reduce(10)  # what is learned at first
    begin = time.monotonic()
    process.reduce(10)
    call_us = (time.monotonic() - begin) * 1e5
    report = dict(own_status(), gpu_mib=process.used_mib(), call_us=call_us)
    marks.append(time.monotonic())
    for comm in process.comms:
        call(process.nccl, "ncclCommDestroy", ctypes.c_void_p(comm))
    marks.append(time.monotonic())
    for name, begin in (("contexts_ms", 0), ("made_ms", 1), ("first_ms", 2), ("destroyed_ms", 4)):
        report[name] = (marks[begin + 1] - marks[begin]) * 1e3
    print(json.dumps(report))


def print_table(paths):
    print(f"{'':10}" + "".join(f"{name:>13}" for name in COLUMNS))
    for path in paths:
        with open(path, encoding="ascii") as file:
            rows = [json.loads(line) for line in file if line.startswith("{")]
        name = os.path.splitext(os.path.basename(path))[0].rsplit("-", 1)[-1]
        medians = [sorted(row[column] for row in rows)[len(rows) // 2] if rows else float("nan") for column in COLUMNS]
        print(f"{name:10}" + "".join(f"{value:13.1f}" for value in medians))


def main():
    if sys.argv[1:2] == ["table"]:
        print_table(sys.argv[2:])
    elif len(sys.argv) > 2 or (sys.argv[1:] and not sys.argv[1].isdigit()):
        print(__doc__, file=sys.stdout if "--help" in sys.argv else sys.stderr)
        sys.exit(0 if "--help" in sys.argv else 64)
    else:
        measure(int(sys.argv[1]) if sys.argv[1:] else 0)


main()
