#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What NCCL's algorithm, protocol and channels are worth on two GPUs, and who finds the best ones for what price.

Of each collective and size four policies: NCCL's default; exhaustive search; AutoCCL's (NSDI 2025), reimplemented:
from a random start, coordinate descent over channels in each pair of algorithm and protocol, 50 measured calls; and
Ferry, by NCCL's parameters alone (FERRY_NCCL=tune) and with its own fabrics, after 50 calls and after 150 more. At the
end all of them are measured in turns, three rounds, of which the medians stand in the table. With --products the same
once more beside a row of bf16 products on another stream of each GPU (needs PyTorch).

All run at once, and one at a time works: two processes of NCCL, which a tuner plugin pins to a tuning at run time
(nccl_pins.c), and two under ferryrun --nccl for each of Ferry's modes. NCCL_P2P_DISABLE=1 FERRY_FABRICS=host stands for
a server without peer access. --wide N: all but NCCL's default have communicators of N channels at least, as a plugin
can only lower their number.

Over the doubles: FERRY_CUDA_LIBRARY and FERRY_NCCL_LIBRARY name them."""

import argparse
import ctypes
import glob
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
FLOAT32, SUM = 7, 0
WAYS = ["own", "Ring/Simple", "Ring/LL128", "Ring/LL", "Tree/Simple", "Tree/LL128", "Tree/LL"]  # tuning.c
CHANNELS = [0, 16, 8, 32, 24, 12, 4, 2]
LADDER = sorted(range(1, len(CHANNELS)), key=CHANNELS.__getitem__)  # steps, from few channels to many
COLLECTIVES = {"allreduce": "AllReduce", "allgather": "AllGather", "reducescatter": "ReduceScatter",
               "alltoall": "AlltoAll"}
PAIRS = ("nccl", "tune", "ferry")


def text_of(tuning):
    way, step = divmod(tuning, len(CHANNELS))
    channels = CHANNELS[step]
    return "own" if not tuning else f"{WAYS[way]}{f' {channels}' if channels else ''}"


# ---- a rank ----


class Cuda:
    """The driver: one device's primary context, a stream, memory and events."""

    def __init__(self, device):
        self.driver = ctypes.CDLL(os.environ.get("FERRY_CUDA_LIBRARY", "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.events = []
        self.elapsed = "cuEventElapsedTime"
        self.elapsed += "_v2" if hasattr(self.driver, self.elapsed + "_v2") else ""

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result:
            sys.exit(f"nccl_tunings: {name}: {result}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return ctypes.c_void_p(address.value)

    def mark(self, number):
        while len(self.events) <= number:
            event = ctypes.c_void_p()
            self.call("cuEventCreate", ctypes.byref(event), 0)
            self.events.append(event)
        self.call("cuEventRecord", self.events[number], self.stream)

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def times(self, first, last):
        """Microseconds from each mark to the next one."""
        result = []
        for number in range(first, last):
            ms = ctypes.c_float()
            self.call(self.elapsed, ctypes.byref(ms), self.events[number], self.events[number + 1])
            result.append(1e3 * ms.value)
        return result


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.17, which later versions read, too."""

    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("cga", ctypes.c_int), ("min_ctas", ctypes.c_int),
                ("max_ctas", ctypes.c_int), ("net_name", ctypes.c_void_p), ("split_share", ctypes.c_int)]


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Nccl:
    def __init__(self):
        whole = ctypes.CDLL(None)
        self.library = whole if hasattr(whole, "ncclCommInitRank") else ctypes.CDLL(os.environ["FERRY_NCCL_LIBRARY"])
        self.library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        if hasattr(self.library, "ncclCommInitRankConfig"):
            self.library.ncclCommInitRankConfig.argtypes = [*self.library.ncclCommInitRank.argtypes, ctypes.c_void_p]

    def call(self, name, *arguments):
        result = getattr(self.library, "nccl" + name)(*arguments)
        if result:
            sys.exit(f"nccl_tunings: nccl{name}: {result}")

    def join(self, key, rank, channels=0):
        comm, one = ctypes.c_void_p(), UniqueId.from_buffer_copy(bytes.fromhex(key))
        if not channels:
            self.call("CommInitRank", ctypes.byref(comm), 2, one, rank)
            return comm
        undefined = -(1 << 31)
        config = Config(ctypes.sizeof(Config), 0xcafebeef, 21700, undefined, undefined, channels, undefined, None,
                        undefined)
        self.call("CommInitRankConfig", ctypes.byref(comm), 2, one, rank, ctypes.byref(config))
        return comm

    def make(self, collective, size, comm, send, receive, stream):
        """size: of the larger buffer of a rank."""
        whole, half, comm = ctypes.c_size_t(size // 4), ctypes.c_size_t(size // 8), comm
        if collective == "allreduce":
            self.call("AllReduce", send, receive, whole, FLOAT32, SUM, comm, stream)
        elif collective == "allgather":
            self.call("AllGather", send, receive, half, FLOAT32, comm, stream)
        elif collective == "reducescatter":
            self.call("ReduceScatter", send, receive, half, FLOAT32, SUM, comm, stream)
        elif hasattr(self.library, "ncclAlltoAll"):
            self.call("AlltoAll", send, receive, half, FLOAT32, comm, stream)
        else:
            self.call("GroupStart")
            for peer in range(2):
                self.call("Send", ctypes.c_void_p(send.value + peer * size // 2), half, FLOAT32, peer, comm, stream)
                self.call("Recv", ctypes.c_void_p(receive.value + peer * size // 2), half, FLOAT32, peer, comm,
                          stream)
            self.call("GroupEnd")


class Products:
    """Rows of products of 4096 x 4096 in bf16, on a stream of their own."""

    def __init__(self, device):
        import torch
        self.torch = torch
        torch.cuda.set_device(device)
        self.stream = torch.cuda.Stream()
        self.a, self.b, self.c = (torch.randn(4096, 4096, device="cuda").to(torch.bfloat16) for _ in range(3))
        self.us = 0
        for count in (20, 200):
            begun = time.monotonic()
            self.start(count)
            self.wait()
            self.us = 1e6 * (time.monotonic() - begun) / count

    def start(self, count):
        with self.torch.cuda.stream(self.stream):
            for _ in range(count):
                self.torch.mm(self.a, self.b, out=self.c)

    def wait(self):
        self.stream.synchronize()


class Rank:
    def __init__(self, rank, file, options):
        self.rank, self.file = rank, file
        self.cuda = Cuda(rank)
        self.nccl = Nccl()
        self.products = Products(rank) if options.products else None
        self.send, self.receive = self.cuda.allocate(options.most), self.cuda.allocate(options.most)
        self.comms = []
        plugin = os.environ.get("NCCL_TUNER_PLUGIN", "")
        self.pins = ctypes.CDLL(plugin) if "nccl-pins" in plugin else None

    def row(self, order):
        """Calls, waited for after each `burst` of them: what each has taken, but for the first `lead`."""
        calls, us = order["lead"] + order["calls"], []
        if self.pins:
            self.pins.ferry_pins_set(order["tuning"])
        comm = self.comms[order["wide"]]
        for first in range(0, calls, order["burst"]):
            last = min(first + order["burst"], calls)
            if order["beside"]:
                self.products.start(int(1.6 * order["beside"] * (last - first) / self.products.us) + 3)
            self.cuda.mark(0)
            for number in range(last - first):
                self.nccl.make(order["collective"], order["bytes"], comm, self.send, self.receive, self.cuda.stream)
                self.cuda.mark(number + 1)
            self.cuda.wait()
            if order["beside"]:
                self.products.wait()
            us += self.cuda.times(0, last - first)
        return {"us": us[order["lead"]:], "possible": bool(self.pins.ferry_pins_possible()) if self.pins else True}

    def obey(self, order):
        if order["do"] == "key":
            key = UniqueId()
            self.nccl.call("GetUniqueId", ctypes.byref(key))
            return {"key": bytes(key).hex()}
        if order["do"] == "join":
            self.comms.append(self.nccl.join(order["key"], self.rank, order["channels"]))
            return {}
        return self.row(order)

    def run(self):
        for line in self.file:
            self.file.write(json.dumps(self.obey(json.loads(line))) + "\n")
            self.file.flush()
        for comm in self.comms:
            self.nccl.call("CommDestroy", comm)


def run_rank(options):
    pair, rank, path = options.rank.split(",")
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        file = channel.makefile("rw")
        file.write(json.dumps({"pair": pair, "rank": int(rank)}) + "\n")
        file.flush()
        Rank(int(rank), file, options).run()
    os._exit(0)  # what the libraries do at exit is not of interest


def run_pair(options):
    """Under ferryrun --nccl: its command is the two ranks."""
    name, path = options.pair.split(",")
    own = [word for word in sys.argv[1:] if not word.startswith("--pair=")]
    ranks = [subprocess.Popen([sys.executable, __file__, f"--rank={name},{rank},{path}", *own]) for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))


# ---- the driver ----


class Pair:
    """The two ranks of a mode."""

    def __init__(self, name, files):
        self.name, self.files = name, files
        self.log = None  # of Ferry's measured calls

    def order(self, **order):
        for file in self.files:
            file.write(json.dumps(order) + "\n")
            file.flush()
        replies = [file.readline() for file in self.files]
        if not all(replies):
            raise SystemExit(f"nccl_tunings: a rank of {self.name} has ended")
        return [json.loads(reply) for reply in replies]

    def join(self, channels=0):
        self.files[0].write('{"do":"key"}\n')
        self.files[0].flush()
        key = json.loads(self.files[0].readline())["key"]
        self.order(do="join", key=key, channels=channels)

    def row(self, case, calls, tuning=0, lead=2, burst=64, wide=False):
        """Microseconds of each call, of the slower rank; None where NCCL cannot do it so."""
        replies = self.order(do="row", collective=case.collective, bytes=case.bytes, calls=calls, tuning=tuning,
                             lead=lead, burst=burst, wide=int(wide), beside=case.beside and case.expected_us)
        if not all(reply["possible"] for reply in replies):
            return None
        return [max(us) for us in zip(*(reply["us"] for reply in replies))]

    def carried(self, case):
        """How its last measured calls of the kind went: the most frequent of ten."""
        try:
            with open(self.log, encoding="utf-8") as file:
                rows = [json.loads(line) for line in file.read().split("\n")[:-1]]
        except (OSError, TypeError, ValueError):
            return ""
        rows = [row for row in rows if row["collective"] == case.collective and row["bytes"] == case.bytes][-10:]
        words = [f"{text_of(row['tuning'])}" if row["nccl"] == 1
                 else f"{'host' if row['host'] else 'peer'} {100 * (1 - row['nccl']):.0f}%" for row in rows]
        return statistics.mode(words) if words else "not measured"


class Case:
    """A collective and size, quiet or beside products, and what was found of it."""

    def __init__(self, collective, size, beside):
        self.collective, self.bytes, self.beside = collective, size, beside
        self.expected_us = 1000.0
        self.found = {}

    def sensible(self):
        """Ways that NCCL may have for it."""
        return range(1, 7 if self.collective == "allreduce" else 4 if self.collective != "alltoall" else 1)

    def calls_for(self, us, least, most):
        return max(least, min(most, round(us / self.expected_us)))


def search_all(pair, case, wide):
    """Exhaustive: the tuning and microseconds of each that NCCL can, but for ways that are far off at 16 channels."""
    found, spent = {}, time.monotonic()
    calls = case.calls_for(4000, 2, 8)
    for way in (0, *case.sensible()):
        steps = range(len(CHANNELS)) if way else range(1, len(CHANNELS))
        for step in steps:
            us = pair.row(case, calls, tuning=way * len(CHANNELS) + step, lead=1, wide=wide)
            if not us:
                break
            found[way * len(CHANNELS) + step] = statistics.median(us)
            if step == 1 and min(found[way * len(CHANNELS) + s] for s in steps if s < 2) > 2.5 * case.expected_us:
                break
    best = min(found, key=found.get)
    return best, found, time.monotonic() - spent


def search_autoccl(pair, case, wide, calls):
    """From a random start in each subspace, in random order: along channels while that gains."""
    best, least, cost, left = 0, float("inf"), 0.0, calls

    def measure(way, rung):
        nonlocal best, least, cost, left
        count = min(3, left)
        tuning = way * len(CHANNELS) + LADDER[rung]
        us = pair.row(case, count, tuning=tuning, lead=1, wide=wide)
        if not us:
            return None
        left -= count
        cost += sum(us)
        mean = statistics.mean(us)
        if mean < least:
            best, least = tuning, mean
        return mean

    ways = list(case.sensible())
    random.shuffle(ways)
    for way in ways:
        rung = random.randrange(len(LADDER))
        here = measure(way, rung) if left else None
        for direction in (1, -1):
            while here and left and 0 <= rung + direction < len(LADDER):
                there = measure(way, rung + direction)
                if not there or there >= here:
                    break
                here, rung = there, rung + direction
    return best, cost / (calls - left) if calls > left else 0


def learn(pair, case, options):
    """Ferry's calls as a program makes them, a few at a time: what those of the search took, and what they end with."""
    first = pair.row(case, options.calls, lead=0, burst=5)
    soon = statistics.median(pair.row(case, case.calls_for(10000, 3, 20), lead=2))
    later = pair.row(case, options.more, lead=0, burst=5)
    return statistics.mean(first), soon, statistics.mean(later)


def examine(pairs, case, quiet, options):
    nccl, wide = pairs["nccl"], bool(options.wide)
    for _ in range(3):  # the first are cold, and beside products it is not known how many those must be
        case.expected_us = statistics.median(nccl.row(case, 5))
    found, tuned = case.found, case.collective != "alltoall"
    if tuned:
        found["exhaustive"], table, found["seconds"] = search_all(nccl, case, wide)
        found["tried"] = len(table)
        found["autoccl"], found["autoccl_mean"] = search_autoccl(nccl, case, wide, options.calls)
    found["few"] = statistics.mean(nccl.row(case, options.calls, burst=5))  # as Ferry's are made below
    for name in PAIRS[1:]:
        if name in pairs:
            found[name + "_first"], found[name + "_soon"], found[name + "_later"] = learn(pairs[name], case, options)
    sides = {"default": lambda n: nccl.row(case, n)}
    if tuned:
        sides["exhaustive"] = lambda n: nccl.row(case, n, tuning=found["exhaustive"], wide=wide)
        sides["autoccl"] = lambda n: nccl.row(case, n, tuning=found["autoccl"], wide=wide)
        if quiet:
            sides["quiet"] = lambda n: nccl.row(case, n, tuning=quiet.found["exhaustive"], wide=wide)
    for name in PAIRS[1:]:
        if name in pairs:
            sides[name] = lambda n, pair=pairs[name]: pair.row(case, n)
    rounds = {name: [] for name in sides}
    for _ in range(3):
        for name, side in sides.items():
            rounds[name].append(statistics.mean(side(case.calls_for(10000, 3, 20))))
    case.us = {name: statistics.median(us) for name, us in rounds.items()}
    for name in PAIRS[1:]:
        if name in pairs:
            found[name] = pairs[name].carried(case)


def describe(case):
    """Ratios are NCCL's default time over the other's; of calls that are waited for, of NCCL's such ones."""
    us, found, default = case.us, case.found, case.us["default"]
    words = [f"{case.collective:<13} {case.bytes / MIB:>4g} MiB {'beside' if case.beside else 'quiet ':<6}",
             f"default {default:8.0f} us {case.bytes / default / 1e3:6.1f} GB/s"]
    if "exhaustive" in us:
        words += [f"all {default / us['exhaustive']:.2f} ({text_of(found['exhaustive'])}, of {found['tried']}, "
                  f"{found['seconds']:.1f} s)",
                  f"AutoCCL {default / us['autoccl']:.2f} ({text_of(found['autoccl'])}, its calls "
                  f"{default / found['autoccl_mean']:.2f})" if found["autoccl_mean"] else "AutoCCL: none"]
    if "quiet" in us:
        words.append(f"quiet's best {default / us['quiet']:.2f}")
    for name in PAIRS[1:]:
        if name in us:
            words.append(f"{name} {default / us[name]:.2f} ({found[name]}; first calls "
                         f"{found['few'] / found[name + '_first']:.2f}, behind them "
                         f"{default / found[name + '_soon']:.2f}, later ones "
                         f"{found['few'] / found[name + '_later']:.2f})")
    return " | ".join(words)


def table(cases):
    names = ["exhaustive", "autoccl", "tune", "ferry", "quiet"]
    print("\nNCCL's default time over each policy's, at the end; (first 50 calls)")
    print(f"{'':<13} {'MiB':>4} {'':<6} {'GB/s':>6} " + " ".join(f"{name:>15}" for name in names))
    for case in cases:
        default, cells = case.us["default"], []
        for name in names:
            first = case.found.get(name + "_first", case.found.get(name + "_mean"))
            base = case.found["few"] if name + "_first" in case.found else default
            cell = f"{default / case.us[name]:.2f}" if name in case.us else "-"
            cells.append(cell + (f" ({base / first:.2f})" if first and name in case.us else ""))
        print(f"{case.collective:<13} {case.bytes / MIB:>4g} {'beside' if case.beside else 'quiet':<6} "
              f"{case.bytes / default / 1e3:>6.1f} " + " ".join(f"{cell:>15}" for cell in cells))


# ---- processes ----


def find_nccl():
    folders = [os.path.join(folder, "nvidia/nccl/lib") for folder in sys.path]
    names = [name for folder in folders for name in glob.glob(os.path.join(folder, "libnccl.so.2"))]
    return names[0] if names else "libnccl.so.2"


def environment(pair, options, log):
    env = dict(os.environ)
    env.setdefault("FERRY_NCCL_LIBRARY", find_nccl())
    if pair == "nccl":
        env["NCCL_TUNER_PLUGIN"] = os.path.join(options.ferry, "lib/libnccl-pins.so")
        return env
    env.update(FERRY_SPLIT_WAIT="20", FERRY_SHARES_LOG=log)
    if options.wide:
        env["NCCL_MIN_CTAS"] = str(options.wide)
    if pair == "tune":
        env.update(FERRY_NCCL="tune", FERRY_SPLIT_FLOOR="1M")
    return env


def start(name, path, options, folder):
    log = os.path.join(folder, f"{name}.jsonl")

    command = [sys.executable, os.path.abspath(__file__), f"--pair={name},{path}", *sys.argv[1:]]
    if name != "nccl":
        command = [os.path.join(options.ferry, "bin/ferryrun"), "--nccl", "--", *command]
    return subprocess.Popen(command, env=environment(name, options, log)), log


def open_pairs(options, folder):
    """One after the other: ferryrun measures the machine before it starts its command."""
    path, pairs, processes = os.path.join(folder, "socket"), {}, []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(120)
        for name in options.pairs.split(","):
            process, log = start(name, path, options, folder)
            files = [None, None]
            for _ in range(2):
                file = server.accept()[0].makefile("rw")
                files[json.loads(file.readline())["rank"]] = file
            pairs[name] = Pair(name, files)
            pairs[name].log = log
            pairs[name].join()
            if name == "nccl" and options.wide:
                pairs[name].join(options.wide)
            processes.append(process)
            print(f"# {name}: there after {time.monotonic() - options.begun:.0f} s", flush=True)
    return pairs, processes


def drive(options):
    cases = []
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        pairs, processes = open_pairs(options, folder)
        for beside in (False, True) if options.products else (False,):
            for collective in options.collectives.split(","):
                for size in options.sizes.split(","):
                    if time.monotonic() - options.begun > options.seconds:
                        print(f"# {collective} of {size} MiB: left out, there is no time", flush=True)
                        continue
                    case = Case(collective, int(float(size) * MIB), beside)
                    quiet = [one for one in cases if (one.collective, one.bytes) == (collective, case.bytes)]
                    examine(pairs, case, quiet[0] if beside and quiet else None, options)
                    cases.append(case)
                    print(describe(case), flush=True)
        table(cases)
        for pair in pairs.values():
            for file in pair.files:
                file.close()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.terminate()
    print(f"# {time.monotonic() - options.begun:.0f} s")


def main():
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--sizes", default="1,4,16,64,256", help="MiB, of a rank's larger buffer")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--products", action="store_true", help="beside products of matrices, too")
    parser.add_argument("--wide", type=int, default=0, metavar="N", help="communicators of N channels at least")
    parser.add_argument("--calls", type=int, default=50, help="of a search")
    parser.add_argument("--more", type=int, default=150, help="of Ferry's, behind those")
    parser.add_argument("--seconds", type=float, default=200, help="after which nothing more is begun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ferry", default=here if os.path.exists(here + "/bin/ferryrun") else here + "/build",
                        help="the folder with bin/ferryrun")
    parser.add_argument("--pair", help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.begun = time.monotonic()
    options.most = int(max(float(size) for size in options.sizes.split(",")) * MIB)
    if options.rank:
        run_rank(options)
    elif options.pair:
        run_pair(options)
    else:
        drive(options)


if __name__ == "__main__":
    main()
