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
NON_BLOCKING = 1
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
    """Contexts, streams, two buffers of so many bytes, and communicators when they are made, on all GPUs."""

    def __init__(self, gpus, size):
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
        self.streams = [ctypes.c_void_p() for _ in range(self.count)]
        self.buffers = [(ctypes.c_uint64(), ctypes.c_uint64()) for _ in range(self.count)]
        for gpu in range(self.count):
            call(self.cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(self.contexts[gpu]), gpu)
            self.enter(gpu)
            call(self.cuda, "cuStreamCreate", ctypes.byref(self.streams[gpu]), NON_BLOCKING)
            for buffer in self.buffers[gpu]:
                call(self.cuda, "cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size))
        self.nccl = open_nccl()
        self.comms = (ctypes.c_void_p * self.count)()

    def enter(self, gpu):
        call(self.cuda, "cuCtxSetCurrent", self.contexts[gpu])

    def used_mib(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.enter(0)
        call(self.cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return (total.value - free.value) >> 20

    def make(self):
        call(self.nccl, "ncclCommInitAll", self.comms, self.count, None)

    def end(self):
        for comm in self.comms:
            call(self.nccl, "ncclCommDestroy", ctypes.c_void_p(comm))

    def collective(self, name, size):
        """One of all GPUs, of so many bytes as nccl-tests counts them, out of place."""
        count = size // 4 // (1 if name == "AllReduce" else self.count)
        call(self.nccl, "ncclGroupStart")
        for gpu in range(self.count):
            send, receive = (ctypes.c_void_p(buffer.value) for buffer in self.buffers[gpu])
            last = (SUM,) if name in ("AllReduce", "ReduceScatter") else ()
            call(self.nccl, "nccl" + name, send, receive, ctypes.c_size_t(count), FLOAT32, *last,
                 ctypes.c_void_p(self.comms[gpu]), self.streams[gpu])
        call(self.nccl, "ncclGroupEnd")

    def wait(self):
        for gpu in range(self.count):
            self.enter(gpu)
            call(self.cuda, "cuStreamSynchronize", self.streams[gpu])

    def timed_us(self, name, size):
        begin = time.monotonic()
        self.collective(name, size)
        self.wait()
        return (time.monotonic() - begin) * 1e6


def own_status():
    with open("/proc/self/status", encoding="ascii") as status:
        words = dict(line.split(":", 1) for line in status)
    return {"rss_mib": int(words["VmRSS"].split()[0]) >> 10, "rss_peak_mib": int(words["VmHWM"].split()[0]) >> 10,
            "threads": int(words["Threads"])}


def measure(gpus):
    marks = [time.monotonic()]
    process = Process(gpus, BYTES)
    marks.append(time.monotonic())
    process.make()
    marks.append(time.monotonic())
    process.timed_us("AllReduce", BYTES)
    marks.append(time.monotonic())
    time.sleep(SETTLED_S)
    times = [process.timed_us("AllReduce", BYTES) for _ in range(20)]
    report = dict(own_status(), gpu_mib=process.used_mib(), call_us=sorted(times[10:])[5])
    marks.append(time.monotonic())
    process.end()
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


if __name__ == "__main__":
    main()
