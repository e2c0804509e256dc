#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch beside Ferry's calls: torch.cuda.empty_cache() holds nothing up and gives memory back.

Under ferryrun --fork, a process per rank:

    ferryrun --fork -n 2 -- python3 torch_empty_cache.py [LIBFERRY]

AllReduce on tensors' memory in torch's current stream, by ctypes. Which allocator PyTorch takes is said by
PYTORCH_CUDA_ALLOC_CONF, as for any program of PyTorch's: nothing, expandable_segments:True, backend:cudaMallocAsync.
Exit code: 0, 1, or 77 without PyTorch or a GPU.
"""
import ctypes
import faulthandler
import glob
import os
import sys
import time

LIMIT_S = 60  # for all of it
LATE_S = 0.3
BACK_S = 2.0
REMAINS = 64 << 20  # bytes that may not come back
FLOAT32, SUM = 7, 0  # ferry_types.h

rank = int(os.environ.get("FERRY_RANK", "0"))
os.environ.pop("CUDA_MODULE_LOADING", None)  # before CUDA is looked for: lazy


def skip(why):
    if rank == 0:
        print(f"skipped: {why}")
    sys.exit(77)


def require(condition, message):
    if not condition:
        print(f"not ok: rank {rank}: {message}", flush=True)
        sys.exit(1)


try:
    import torch
except ImportError:
    skip("no PyTorch here")
if not torch.cuda.is_available():
    skip("no GPU here, or a PyTorch without CUDA")


class Ferry:
    """The few functions of libferry that this needs; a failed one ends the program with its message."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.ferryGetLastError.restype = ctypes.c_char_p
        self.library.ferryGetErrorString.restype = ctypes.c_char_p
        self.comm = ctypes.c_void_p()
        self.call("ferryCommInitEnv", ctypes.byref(self.comm), None)
        count = ctypes.c_int()
        self.call("ferryCommCount", self.comm, ctypes.byref(count))
        self.nranks = count.value

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result:
            text = self.library.ferryGetLastError(None)
            require(False, f"{name}: {self.library.ferryGetErrorString(result).decode()}: {(text or b'').decode()}")

    def all_reduce(self, source, target):
        stream = torch.cuda.current_stream().cuda_stream
        self.call("ferryAllReduce", ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr()),
                  ctypes.c_size_t(source.numel()), FLOAT32, SUM, self.comm, ctypes.c_void_p(stream))

    def close(self):
        self.call("ferryCommDestroy", self.comm)


def find_library():
    if len(sys.argv) > 1:
        return sys.argv[1]
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "../../lib"), os.path.join(here, "../../build/lib")]
    places += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    found = [name for place in places for name in sorted(glob.glob(os.path.join(place, "libferry.so*")))]
    require(found, f"no libferry.so in {', '.join(places)}")
    return found[0]


def judge(result, value, nranks, when):
    """`value` is what rank 0 has sent, others a multiple of it by their rank + 1."""
    expected = value * nranks * (nranks + 1) / 2
    wrong = int((result != expected).sum().item())
    require(wrong == 0, f"{when}: {wrong} of {result.numel()} elements are not {expected}")


def beside_a_late_rank(ferry):
    """Rank 0 empties its cache behind calls that wait for the others. Returns the longest time in milliseconds."""
    longest = 0.0
    for turn in range(1, 6):
        count = (8 << 20) + 1000 * turn
        source = torch.full((count,), float(turn * (rank + 1)), device="cuda")
        result = torch.empty_like(source)
        ferry.all_reduce(source, result)  # the ranks meet
        judge(result, turn, ferry.nranks, f"meeting {turn}")
        result.zero_()
        freed = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        if rank:
            time.sleep(LATE_S)
        ferry.all_reduce(source, result)
        if rank == 0:
            del freed
            start = time.monotonic()
            torch.cuda.empty_cache()
            more = torch.ones(1 << 20, device="cuda") * turn  # from a new segment
            longest = max(longest, time.monotonic() - start)
            del more
        judge(result, turn, ferry.nranks, f"beside a late rank, turn {turn}")
    return 1e3 * longest


def come_and_go(ferry):
    """Tensors of changing sizes, used and freed, the cache emptied between: often the same addresses again."""
    for turn in range(1, 101):
        count = (1 << 18) * (1 + turn % 7)
        source = torch.full((count,), float(turn % 13 * (rank + 1)), device="cuda")
        result = torch.empty_like(source)
        ferry.all_reduce(source, result)
        judge(result, turn % 13, ferry.nranks, f"tensors that come and go, turn {turn}")
        del source, result
        torch.cuda.empty_cache()


def meet(ferry, word):
    ferry.all_reduce(word, word)
    torch.cuda.synchronize()


def use_large(ferry):
    source = torch.full((128 << 20,), float(rank + 1), device="cuda")  # 512 MiB
    result = torch.empty_like(source)
    ferry.all_reduce(source, result)
    judge(result, 1, ferry.nranks, "512 MiB")


def settle(ferry, word):
    """Returns how much memory is free, calls forgotten; nobody allocates before all have looked."""
    meet(ferry, word)
    time.sleep(1.5)
    torch.cuda.empty_cache()
    meet(ferry, word)
    free = torch.cuda.mem_get_info()[0]
    meet(ferry, word)
    return free


def gives_back(ferry, word):
    """Returns after how many milliseconds the memory of large tensors was back."""
    # Until the communicator ends it keeps what sums of that size come into, and windows for what comes from a
    # stream-ordered pool: those of every rank on this GPU.
    use_large(ferry)
    before = settle(ferry, word)
    use_large(ferry)
    torch.cuda.synchronize()
    start = time.monotonic()
    now = 0
    while now + REMAINS < before and time.monotonic() - start < BACK_S:
        torch.cuda.empty_cache()
        now = torch.cuda.mem_get_info()[0]
        time.sleep(0.02)
    require(now + REMAINS >= before, f"{now >> 20} MiB free {BACK_S} s after the last call, {before >> 20} MiB before")
    return 1e3 * (time.monotonic() - start)


def main():
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)  # says where it hung, and ends it
    torch.cuda.set_device(int(os.environ.get("FERRY_LOCAL_RANK", "0")) % torch.cuda.device_count())
    word = torch.zeros(1, device="cuda")
    ferry = Ferry(find_library())
    meet(ferry, word)
    # A stream of torch's own: the legacy default stream waits for every other one.
    with torch.cuda.stream(torch.cuda.Stream()):
        longest = beside_a_late_rank(ferry)
        come_and_go(ferry)
        back = gives_back(ferry, word)
    torch.cuda.synchronize()
    ferry.close()
    if rank == 0:
        print(f"ok: {torch.cuda.get_allocator_backend()}, PYTORCH_CUDA_ALLOC_CONF="
              f"{os.environ.get('PYTORCH_CUDA_ALLOC_CONF', '')}: empty_cache beside a late rank took {longest:.1f} ms "
              f"at most, 512 MiB twice came back after {back:.0f} ms")


main()
