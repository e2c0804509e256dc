#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX's own psum and all_gather over all GPUs of one process, jitted: right, and how long they take.

    jax_collectives.py [MIB...]    per GPU; default 1 64 256

Nothing here knows of Ferry; the environment says whether it is between (LD_LIBRARY_PATH, LD_PRELOAD). Exit code: 0, 1,
or 77 without JAX or a second device.
"""
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
TURNS = 20


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ImportError as error:
    skip(f"no JAX here ({error})")
if not hasattr(jax, "shard_map"):
    skip(f"JAX {jax.__version__} has no jax.shard_map")


def median_ms(function, value):
    times = []
    for _ in range(TURNS):
        begin = time.monotonic()
        function(value).block_until_ready()
        times.append((time.monotonic() - begin) * 1e3)
    return sorted(times)[TURNS // 2]


def main():
    devices = jax.devices()
    if len(devices) < 2:
        skip(f"{len(devices)} device here, {devices[0].platform}")
    mesh = Mesh(numpy.array(devices), ("ranks",))
    spread, everywhere = PartitionSpec("ranks"), PartitionSpec()
    functions = {
        "psum": jax.jit(jax.shard_map(lambda part: jax.lax.psum(part, "ranks"), mesh=mesh, in_specs=spread,
                                      out_specs=everywhere)),
        "all_gather": jax.jit(jax.shard_map(lambda part: jax.lax.all_gather(part, "ranks", tiled=True), mesh=mesh,
                                            in_specs=spread, out_specs=everywhere, check_vma=False)),
    }
    failed = 0
    for mib in [int(word) for word in sys.argv[1:]] or [1, 64, 256]:
        count = (mib << 20) // 4
        # Whole numbers whose sums f32 has exactly.
        whole = (numpy.arange(count * len(devices), dtype=numpy.int64) % 9973).astype(numpy.float32)
        value = jax.device_put(whole, NamedSharding(mesh, spread))
        expected = {"psum": whole.reshape(len(devices), count).sum(axis=0), "all_gather": whole}
        for name, function in functions.items():
            took = median_ms(function, value)
            result = function(value)
            parts = [numpy.asarray(shard.data) for shard in result.addressable_shards]
            wrong = sum(int((part != expected[name]).sum()) for part in parts)
            failed |= wrong > 0
            print(f"{name:10} {mib:5} MiB per device, {len(devices)} {devices[0].platform}: "
                  f"{'right' if not wrong else f'{wrong} WRONG'}, {took:.2f} ms")
    sys.exit(int(failed))


main()
