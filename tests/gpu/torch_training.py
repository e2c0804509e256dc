#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer with PyTorch's own DDP and FSDP: what libferry-nccl.so changes of it.

    torch_training.py run OUT.json [--ranks N] [--steps N] [--limit SECONDS] [--name TEXT] [PHASE...]
    torch_training.py table OUT.json...
    torch_training.py same OUT.json OTHER.json [--most MS]

`run` starts N processes, default 2, on a GPU each; where there are fewer GPUs they share them, and NCCL goes over
sockets. Whether Ferry is between them and NCCL is the environment's to say (LD_PRELOAD): nothing here knows of Ferry.
Without GPUs it runs on CPUs, by gloo, to see that it works. PHASES, default all, in this order:
  ddp      STEPS training steps
  cache    DDP, empty_cache() every ten steps
  fsdp     STEPS training steps of a model of which each rank has a part
  oom      more memory than there is is asked for beside tensors that calls have used; caught, and tried again
  regroup  the process group destroyed, and made again
  graph    AllReduce in a CUDA graph of the program's own
  compile  DDP under torch.compile(mode="reduce-overhead")
`table` prints what runs took beside the first one; runs of one name are told apart by their files.
`same` fails where losses or parameters of the second run are not those of the first, to the bit, or a step of it took
longer than MS.
"""
import argparse
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

PHASES = ["ddp", "cache", "fsdp", "oom", "regroup", "graph", "compile"]
WARM_STEPS = 20
CACHE_STEPS = 60
COMPILE_STEPS = 40
VOCABULARY = 4096
LEARNING_RATE = 1e-4


# ---- the processes ----

def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(arguments):
    """The exit code: 0, 1 if a rank failed, 124 if they took too long. No rank outlives it."""
    names = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(arguments.ranks))
    again = f"{free_port()} {free_port()}"
    ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "rank", *sys.argv[2:]],
                              env=dict(names, RANK=str(rank), LOCAL_RANK=str(rank), PORTS_AGAIN=again))
             for rank in range(arguments.ranks)]
    end = time.monotonic() + arguments.limit
    code = 0
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                code = 1
                time.sleep(2)  # the others say why, too
                break
            if time.monotonic() > end:
                print(f"torch_training: not over after {arguments.limit} s", file=sys.stderr)
                for rank in ranks:
                    rank.send_signal(signal.SIGABRT)  # says where each is
                time.sleep(1)
                code = 124
                break
            time.sleep(0.05)
        return code or int(any(rank.poll() for rank in ranks))
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


# ---- the model; attention by plain products: the same bits in every run ----

def make_model(torch, width, layers, heads, length):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch = x.shape[0]
            parts = self.three(self.before(x)).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            weights = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) * (width // heads) ** -0.5, dim=-1)
            x = x + self.out((weights @ parts[2]).transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.between(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.last, self.guess = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
            self.register_buffer("order", torch.arange(length), persistent=False)

        def forward(self, words):
            x = self.words(words) + self.places(self.order)
            for block in self.blocks:
                x = block(x)
            return self.guess(self.last(x))

    torch.manual_seed(1)
    return Model()


class Rank:
    """A process of a run, on its GPU."""

    def __init__(self, arguments):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.arguments = torch, dist, arguments
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = torch.cuda.is_available()
        if self.cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
            if self.sharers() > 1:  # which NCCL refuses, but for processes that it takes for hosts of their own
                os.environ["NCCL_HOSTID"] = f"training-rank-{self.rank}"
        else:
            torch.set_num_threads(1)
        self.device = torch.device("cuda" if self.cuda else "cpu")
        # Small enough for a CPU where there is no GPU: 436 MB of gradients on GPUs.
        self.shape = (1024, 8, 16, 128) if self.cuda else (64, 2, 4, 16)
        self.batch = 8 if self.cuda else 2
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.end = time.monotonic() + arguments.limit - 2
        self.report = {"name": arguments.name, "ranks": self.count, "torch": torch.__version__, "phases": {}}

    def sharers(self):
        """Ranks on one GPU."""
        return -(-self.count // self.torch.cuda.device_count())

    def synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def join(self):
        self.dist.init_process_group("nccl" if self.cuda else "gloo", rank=self.rank, world_size=self.count)

    def reduce_ones(self, count):
        """An AllReduce whose result is known; raises if it is wrong."""
        ones = self.torch.full((count,), float(self.rank + 1), device=self.device)
        self.dist.all_reduce(ones)
        wrong = int((ones != self.count * (self.count + 1) / 2).sum().item())
        if wrong:
            raise RuntimeError(f"{wrong} of {count} sums are wrong")

    def start(self):
        """From before the process group is made until its first collective is over."""
        self.torch.zeros(1, device=self.device)
        self.synchronize()
        begin = time.monotonic()
        self.join()
        self.reduce_ones(1 << 18)
        self.synchronize()
        self.report["start_s"] = time.monotonic() - begin

    # ---- training ----

    def batches(self):
        """Words that follow from each other by a rule, the same in every run, others on every rank."""
        generator = self.torch.Generator().manual_seed(100 + self.rank)
        length, made = self.shape[3], []
        for _ in range(16):
            words = [self.torch.randint(VOCABULARY, (self.batch, 1), generator=generator)]
            for _ in range(length):
                words.append((words[-1] * 5 + 17) % VOCABULARY)
            made.append(self.torch.cat(words, dim=1).to(self.device))
        return made

    def marks(self, steps):
        if self.cuda:
            return [self.torch.cuda.Event(enable_timing=True) for _ in range(steps)]
        return [0.0] * steps

    def train(self, model, steps, after=None):
        """Losses of this rank, and milliseconds of each step but the first."""
        torch = self.torch
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=self.cuda)
        batches, marks, losses = self.batches(), self.marks(steps), []
        for step in range(steps):
            words = batches[step % len(batches)]
            guesses = model(words[:, :-1])
            loss = torch.nn.functional.cross_entropy(guesses.reshape(-1, VOCABULARY), words[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach().clone())
            if after:
                after(step)
            if self.cuda:
                marks[step].record()
            else:
                marks[step] = time.monotonic() * 1e3
        self.synchronize()
        times = [a.elapsed_time(b) if self.cuda else b - a for a, b in zip(marks, marks[1:])]
        return torch.stack(losses).double().tolist(), times

    def judge(self, model, losses, times):
        """What a phase reports: bits of all parameters of all ranks in one word."""
        torch = self.torch
        sums = []
        for parameter in model.parameters():
            local = parameter.detach()
            local = local.to_local() if hasattr(local, "to_local") else local
            bits = local.reshape(-1).view(torch.int32).long()
            sums.append((bits * (torch.arange(bits.numel(), device=self.device) % 65521 + 1)).sum())
        mine = torch.cat([torch.stack(sums), torch.tensor(losses, dtype=torch.float64).view(torch.int64)
                          .to(self.device)])
        everyones = [torch.empty_like(mine) for _ in range(self.count)]
        self.dist.all_gather(everyones, mine)
        word = hashlib.sha256(b"".join(one.cpu().numpy().tobytes() for one in everyones)).hexdigest()[:12]
        settled = sorted(times[WARM_STEPS:] or times)
        report = {"losses": losses, "bits": word, "steps": len(losses), "step_ms": settled[len(settled) // 2],
                  "step_ms_p90": settled[len(settled) * 9 // 10], "step_ms_most": max(times)}
        if self.cuda:
            report["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
            report["reserved_mib"] = torch.cuda.max_memory_reserved() >> 20
        return report

    def in_parallel(self, layers=None):
        width, all_layers, heads, length = self.shape
        model = make_model(self.torch, width, layers or all_layers, heads, length).to(self.device)
        ids = [self.torch.cuda.current_device()] if self.cuda else None
        return self.torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def ddp(self):
        model = self.in_parallel()
        return self.judge(model, *self.train(model, self.arguments.steps))

    def cache(self):
        model = self.in_parallel()

        def empty(step):
            if step % 10 == 9 and self.cuda:
                self.torch.cuda.empty_cache()
        return self.judge(model, *self.train(model, min(CACHE_STEPS, self.arguments.steps), empty))

    def fsdp(self):
        from torch.distributed.fsdp import fully_shard
        model = make_model(self.torch, *self.shape).to(self.device)
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return self.judge(model, *self.train(model, self.arguments.steps))

    # ---- what programs do besides ----

    def compile(self):
        torch = self.torch
        began = time.monotonic()
        model = torch.compile(self.in_parallel(layers=2), mode="reduce-overhead" if self.cuda else "default")
        report = self.judge(model, *self.train(model, min(COMPILE_STEPS, self.arguments.steps)))
        report["compiled_and_run_s"] = time.monotonic() - began
        return report

    def graph(self):
        """AllReduce of 64 MiB, captured with what makes its input, replayed: milliseconds each."""
        torch, count = self.torch, 16 << 20
        if not self.cuda:
            return {"skipped": "no GPU"}
        source = torch.empty(count, device=self.device)
        result = torch.empty_like(source)
        step = torch.zeros(1, device=self.device)

        def body():
            step.add_(1)
            source.copy_((step * (self.rank + 1)).expand(count))
            result.copy_(source)
            self.dist.all_reduce(result)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        step.zero_()
        begin, end = self.marks(2)
        begin.record()
        for _ in range(20):
            graph.replay()
        end.record()
        self.synchronize()
        wrong = int((result != 20 * self.count * (self.count + 1) / 2).sum().item())
        if wrong:
            raise RuntimeError(f"{wrong} of {count} sums of a replayed graph are wrong")
        return {"graph_ms": begin.elapsed_time(end) / 20}

    def oom(self):
        """Memory that calls have used comes back when there is no other: how long that takes, and how often asked."""
        torch = self.torch
        self.reduce_ones(1 << 20)
        if not self.cuda:
            return {"skipped": "no GPU"}
        torch.cuda.empty_cache()
        self.dist.barrier()  # before one that shares the GPU takes some
        free = torch.cuda.mem_get_info()[0] // self.sharers()
        first = torch.empty(free * 6 // 10, dtype=torch.uint8, device=self.device)
        part = first[:256 << 20].view(torch.float32)
        part.fill_(self.rank + 1.0)
        for _ in range(4):
            self.dist.all_reduce(part)
        self.synchronize()
        caught = 0
        try:
            torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError:
            caught = 1
        del part, first
        begin, asked, second = time.monotonic(), 0, None
        while second is None and time.monotonic() < begin + 5:
            asked += 1
            try:  # more than is free beside the first one: its memory has to come back
                second = torch.empty(free * 7 // 10, dtype=torch.uint8, device=self.device)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                time.sleep(0.01)
        took, back = 1e3 * (time.monotonic() - begin), second is not None
        del second
        torch.cuda.empty_cache()
        self.reduce_ones(1 << 24)
        if not back:
            raise RuntimeError(f"memory was not back after {took:.0f} ms, asked for {asked} times")
        return {"caught": caught, "asked": asked, "back_ms": took}

    def regroup(self):
        times = []
        for port in os.environ["PORTS_AGAIN"].split():
            self.dist.barrier()
            self.dist.destroy_process_group()
            os.environ["MASTER_PORT"] = port
            begin = time.monotonic()
            self.join()
            for _ in range(10):
                self.reduce_ones(1 << 22)
            self.synchronize()
            times.append(1e3 * (time.monotonic() - begin))
        return {"again_ms": max(times)}

    # ---- the whole ----

    def memory(self, of_process):
        with open("/proc/self/status", encoding="ascii") as status:
            words = dict(line.split(":", 1) for line in status)
        report = {"rss_mib": int(words["VmRSS"].split()[0]) >> 10, "rss_peak_mib": int(words["VmHWM"].split()[0]) >> 10,
                  "threads": int(words["Threads"])}
        if self.cuda:
            free, total = self.torch.cuda.mem_get_info()
            report["device_used_mib"] = (total - free) >> 20
        if self.cuda and of_process:
            query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
            try:
                said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False,
                                      env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
                rows = dict(line.split(", ", 1) for line in said.strip().splitlines() if ", " in line)
                report["process_mib"] = int(rows[str(os.getpid())])
            except (OSError, subprocess.SubprocessError, KeyError, ValueError):
                pass  # not told in a container
        return report

    def agree(self, failed):
        """Whether a phase failed on any rank."""
        word = self.torch.tensor([float(failed)], device=self.device)
        self.dist.all_reduce(word)
        return bool(word.item())

    def phase(self, name):
        import faulthandler
        import gc
        faulthandler.dump_traceback_later(max(1, self.end - time.monotonic()), exit=True)
        if self.cuda:
            self.torch.cuda.reset_peak_memory_stats()
        begin = time.monotonic()
        try:
            report = getattr(self, name)()
        except Exception as error:  # pylint: disable=broad-exception-caught
            report = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"}
            print(f"rank {self.rank}, {name}: {error}", file=sys.stderr, flush=True)
        report["took_s"] = time.monotonic() - begin
        report.update(self.memory("losses" in report))
        if self.agree("error" in report) and "error" not in report:
            report["error"] = "on another rank"
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()
        faulthandler.cancel_dump_traceback_later()
        return report

    def run(self):
        """1 if a phase failed. What there is is written after each: a later one may hang."""
        failed = 0
        self.start()
        for name in self.arguments.phases:
            self.report["phases"][name] = self.phase(name)
            failed |= "error" in self.report["phases"][name]
            if self.rank == 0:
                with open(self.arguments.out, "w", encoding="ascii") as out:
                    json.dump(self.report, out)
        self.dist.destroy_process_group()
        return failed


# ---- the table ----

def differences(losses, first):
    """The largest, and at which step."""
    gaps = [abs(a - b) for a, b in zip(losses, first)]
    return max(gaps), gaps.index(max(gaps)) + 1


def told(value, form="{:.0f}"):
    return "-" if value is None else form.format(value)


def print_training(name, reports):
    first = next((r["phases"][name] for r in reports if "losses" in r["phases"].get(name, {})), None)
    title = name + (f", {len(first['losses'])} steps" if first else "")
    print(f"{title:18} step ms    p90  first's  last loss   differs by at most  bits          GPU MiB: peak  held "
          f"process    all     RSS")
    for report in reports:
        found = report["phases"].get(name)
        if not found:
            continue
        if "losses" not in found:
            print(f"  {report['name']:16} {found.get('error', found.get('skipped'))}")
            continue
        gap, step = differences(found["losses"], first["losses"])
        print(f"  {report['name']:16} {found['step_ms']:7.2f} {found['step_ms_p90']:6.2f} "
              f"{first['step_ms'] / found['step_ms']:7.2f}x  {found['losses'][-1]:9.6f} "
              f"{told(gap, '{:.1e}') + (f' at {step}' if gap else ''):>19}  {found['bits']:12} "
              f"{told(found.get('peak_mib')):>14} {told(found.get('reserved_mib')):>5} "
              f"{told(found.get('process_mib')):>7} {told(found.get('device_used_mib')):>6} {found['rss_mib']:>7}"
              + (f" FAILED: {found['error']}" if "error" in found else ""))


def print_table(paths):
    reports = []
    for path in paths:
        with open(path, encoding="ascii") as file:
            reports.append(json.load(file))
    print("to first collective: " + ", ".join(f"{r['name']} {r['start_s']:.2f} s" for r in reports))
    for name in ("ddp", "cache", "fsdp", "compile"):
        if any(name in r["phases"] for r in reports):
            print_training(name, reports)
    words = {"graph": "graph_ms", "oom": "back_ms", "regroup": "again_ms"}
    for name in words:
        for report in reports:
            found = report["phases"].get(name, {})
            if words[name] in found:
                print(f"{name:8} {report['name']:16} {words[name]} {found[words[name]]:.2f}"
                      + (f", asked {found['asked']} times, out of memory caught {found['caught']} times"
                         if name == "oom" else ""))
            elif found:
                print(f"{name:8} {report['name']:16} {found.get('error', found.get('skipped'))}")


def tell_same(paths, most_ms):
    """The exit code: 0, 1 where something differs, or took too long."""
    first, second = [json.load(open(path, encoding="ascii"))["phases"] for path in paths]
    wrong = []
    for name in PHASES:
        one, other = first.get(name, {}), second.get(name, {})
        wrong += [f"{name}: {found['error']}" for found in (one, other) if "error" in found]
        if "losses" not in one or "losses" not in other:
            continue
        gap, step = differences(other["losses"], one["losses"])
        if gap or len(one["losses"]) != len(other["losses"]) or one["bits"] != other["bits"]:
            wrong.append(f"{name}: losses differ by {gap:.1e} at step {step}; bits {one['bits']} and {other['bits']}")
        if most_ms and other["step_ms_most"] > most_ms:
            wrong.append(f"{name}: a step took {other['step_ms_most']:.0f} ms, of at most {most_ms}")
        print(f"{name}: {len(other['losses'])} steps, the longest {other['step_ms_most']:.0f} ms; in the first run "
              f"{one['step_ms_most']:.0f} ms")
    print("\n".join(wrong) or "the same bits")
    return int(bool(wrong))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "rank", "table", "same"], metavar="run|table|same")
    parser.add_argument("out", nargs="?")
    parser.add_argument("phases", nargs="*")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS")
    parser.add_argument("--name", default="")
    parser.add_argument("--most", type=int, metavar="MS")
    arguments = parser.parse_intermixed_args()
    if not arguments.out:
        parser.error("OUT.json is missing")
    if arguments.what == "table":
        print_table([arguments.out, *arguments.phases])
        return 0
    if arguments.what == "same":
        if len(arguments.phases) != 1:
            parser.error("two files are compared")
        return tell_same([arguments.out, *arguments.phases], arguments.most)
    unknown = [phase for phase in arguments.phases if phase not in PHASES]
    if unknown:
        parser.error(f"no phase \"{unknown[0]}\"; there are {', '.join(PHASES)}")
    arguments.phases = [phase for phase in PHASES if phase in arguments.phases] or PHASES
    arguments.name = arguments.name or os.path.splitext(os.path.basename(arguments.out))[0]
    if arguments.what == "run":
        return run_ranks(arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # its sums are then the same in every run
    return Rank(arguments).run()


if __name__ == "__main__":
    sys.exit(main())
