#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's messages, checked and timed: uneven all_to_all_single and batch_isend_irecv, plain and in graphs.

    torch_messages.py [RANKS [SECONDS]]          (default: a rank per GPU, 2 to 8; 100 s at most)

Whether Ferry is between PyTorch and NCCL is the environment's to say:

    python3 torch_messages.py                        NCCL alone
    FERRY_SPLIT_WAIT=60 ferryrun --nccl -- python3 torch_messages.py

Exit code: 0; 1 if a byte is wrong, or it takes too long; 77 without PyTorch or two GPUs.
"""
import os
import random
import socket
import subprocess
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError:
    print("skipped: no PyTorch here")
    sys.exit(77)

SIZES = [1, 64, 512, 4096, 32768, 65536]  # elements of 4 bytes that are timed
IN_GRAPH = 20


def values(rank, count, turn):
    """What a rank sends in a turn: no two places of it alike."""
    return (torch.arange(count, device="cuda", dtype=torch.int32) * 16 + rank) * 64 + turn % 64


def sizes_of(seed, ranks, most):
    """sizes[a][b]: elements from rank a to rank b; some are none, some long."""
    draw = random.Random(seed)
    return [[draw.choice([0, 1, draw.randrange(300), draw.randrange(most)]) for _ in range(ranks)]
            for _ in range(ranks)]


def require(condition, message):
    if not condition:
        print(f"not ok: rank {dist.get_rank()}: {message}", flush=True)
        os._exit(1)


class Exchange:
    """An uneven all_to_all_single, then messages of two lengths around a ring in a batch."""

    def __init__(self, seed, most):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.sizes = sizes_of(seed, self.ranks, most)
        self.sent = self.sizes[self.rank]
        self.received = [row[self.rank] for row in self.sizes]
        self.send = torch.empty(sum(self.sent), device="cuda", dtype=torch.int32)
        self.receive = torch.empty(sum(self.received), device="cuda", dtype=torch.int32)
        self.lengths = [1 + seed % 5000, 1 + seed * 7919 % most]
        self.ring = [[torch.empty(n, device="cuda", dtype=torch.int32) for n in self.lengths] for _ in range(2)]

    def fill(self, turn):
        self.send.copy_(values(self.rank, len(self.send), turn))
        for i, n in enumerate(self.lengths):
            self.ring[0][i].copy_(values(self.rank + 8, n, turn + i))
            self.ring[1][i].zero_()
        self.receive.zero_()

    def run(self):
        dist.all_to_all_single(self.receive, self.send, self.received, self.sent)
        following, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        operations = [dist.P2POp(dist.isend, tensor, following) for tensor in self.ring[0]]
        operations += [dist.P2POp(dist.irecv, tensor, before) for tensor in self.ring[1]]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def check(self, turn):
        at = 0
        for peer, n in enumerate(self.received):
            begin = sum(self.sizes[peer][:self.rank])
            wanted = values(peer, begin + n, turn)[begin:]
            require(torch.equal(self.receive[at:at + n], wanted), f"turn {turn}: {n} elements from rank {peer}")
            at += n
        before = (self.rank - 1) % self.ranks
        for i, n in enumerate(self.lengths):
            require(torch.equal(self.ring[1][i], values(before + 8, n, turn + i)), f"turn {turn}: ring of {n}")


def captured(run):
    """A graph of it; the stream of the capture has made the same calls before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def timed(run, times):
    """Microseconds, the median of a few measures."""
    found = []
    for _ in range(7):
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1000 / times)
    return sorted(found)[len(found) // 2]


def check_all():
    for turn in range(150):
        exchange = Exchange(turn, [500, 20000, 60000, 3000000][turn % 4])
        exchange.fill(turn)
        exchange.run()
        exchange.check(turn)
    exchanges = [Exchange(seed, 20000) for seed in (1000, 1001)] + [Exchange(1002, 3000000)]
    graphs = [captured(exchange.run) for exchange in exchanges]
    for turn in range(200):
        which = turn % len(exchanges)
        exchanges[which].fill(turn)
        if turn % 5:
            graphs[which].replay()
        else:
            exchanges[which].run()
        exchanges[which].check(turn)


def time_all():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        send, receive = (torch.zeros(n, device="cuda", dtype=torch.int32) for _ in range(2))
        parts = [n // ranks + (i + rank) % 2 * (n // ranks // 4) for i in range(ranks)]
        others = [n // ranks + (i + rank) % 2 * (n // ranks // 4) for i in range(ranks)]
        uneven = [torch.zeros(sum(p), device="cuda", dtype=torch.int32) for p in (others, parts)]

        def ring():
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, send, (rank + 1) % ranks),
                                                dist.P2POp(dist.irecv, receive, (rank - 1) % ranks)]):
                work.wait()

        def exchange():
            dist.all_to_all_single(uneven[0], uneven[1], others, parts)

        line = f"{4 * n:8d} B:"
        for name, run in (("ring", ring), ("uneven all_to_all", exchange)):
            plain = timed(run, 50)
            graph = captured(lambda: [run() for _ in range(IN_GRAPH)])
            line += f"  {name} {plain:7.1f} us, in a graph {timed(graph.replay, 5) / IN_GRAPH:6.1f} us"
        if rank == 0:
            print(line, flush=True)


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else min(8, torch.cuda.device_count())
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 100
    if torch.cuda.device_count() < 2 or ranks < 2:
        print("skipped: no two GPUs here")
        return 77
    if "RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["RANK"])))
        check_all()
        time_all()
        dist.barrier()
        dist.destroy_process_group()
        return 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    names = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(ranks))
    processes = [subprocess.Popen([sys.executable, os.path.abspath(__file__), str(ranks)],
                                  env=dict(names, RANK=str(rank))) for rank in range(ranks)]
    end = time.monotonic() + limit
    while any(process.poll() is None for process in processes) and time.monotonic() < end and \
            not any(process.poll() for process in processes):
        time.sleep(0.1)
    failed = any(process.poll() != 0 for process in processes)
    for process in processes:
        process.kill()
        process.wait()
    print("not ok" if failed else "ok: all bytes are right")
    return int(failed)


sys.exit(main())
