#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AllReduce of special values of every type by every operation, on two GPUs of one process, through NCCL's interface.

    nccl_special_values.py write FOLDER     by NCCL alone: what comes out
    nccl_special_values.py compare FOLDER   under the preload: whether the same comes out, which NaN it is aside

Where NCCL gives several answers to a pair, by its place, each is right.
Each pair of some seventy values of a type (zeros, subnormals, near overflow, infinities, NaNs, ordinary ones) meets in
every part of the message, so that each fabric that carries a part has all of them. FERRY_SHARES says which do.
Exit code: 0, 1 where something differs, 77 without two GPUs, NCCL or numpy.
"""
import ctypes
import os
import sys

import nccl_startup

try:
    import numpy
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

BYTES = 4 << 20
# name: NCCL's number, bytes, bits of the fraction (None: an integer), bits of the exponent
TYPES = {"int8": (0, 1, None, 0), "uint8": (1, 1, None, 0), "int32": (2, 4, None, 0), "uint32": (3, 4, None, 0),
         "int64": (4, 8, None, 0), "uint64": (5, 8, None, 0), "float16": (6, 2, 10, 5), "float32": (7, 4, 23, 8),
         "float64": (8, 8, 52, 11), "bfloat16": (9, 2, 7, 8), "float8e4m3": (10, 1, 3, 4), "float8e5m2": (11, 1, 2, 5)}
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "premulsum": None}


def special_values(name):
    """Bits, as an unsigned array."""
    _, size, fraction, exponent = TYPES[name]
    unsigned = numpy.dtype(f"u{size}")
    top = 1 << (8 * size - 1)
    if fraction is None:
        values = {0, 1, 2, 3, 5, 7, top - 1, top - 2, top, top + 1, 2 * top - 1, 2 * top - 2, 2 * top - 3, top // 2}
    else:
        one = ((1 << (exponent - 1)) - 1) << fraction
        infinity = ((1 << exponent) - 1) << fraction
        largest = top - 2 if name == "float8e4m3" else infinity - 1
        values = {0, 1, 2, 3, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1, 2 << fraction, one, one + 1,
                  one - 1, one + (1 << fraction), one + (1 << fraction >> 1), largest, largest - 1,
                  largest - (1 << fraction), largest - (1 << fraction) + 1, infinity, top - 1}
        values |= {value | top for value in values}
    generator = numpy.random.default_rng(size * 100 + (fraction or 0))
    while len(values) < 71:
        values.add(int(generator.integers(0, 2 * top - 1, dtype=numpy.uint64, endpoint=True)))
    return numpy.array(sorted(values), dtype=unsigned)


def is_nan(name, bits):
    _, size, fraction, exponent = TYPES[name]
    if fraction is None:
        return numpy.zeros(bits.shape, dtype=bool)
    magnitude = bits & bits.dtype.type((1 << (8 * size - 1)) - 1)
    most = (1 << (8 * size - 1)) - 2 if name == "float8e4m3" else ((1 << exponent) - 1) << fraction
    return magnitude > bits.dtype.type(most)


def factor(name, rank):
    """Bits of what rank's input is multiplied by: 0.5 or 1.5, which round in every type where they should."""
    _, size, fraction, exponent = TYPES[name]
    if fraction is None:
        return 3 + 4 * rank
    bias = (1 << (exponent - 1)) - 1
    return (bias << fraction) | (1 << fraction >> 1) if rank else (bias - 1) << fraction


class Ranks(nccl_startup.Process):
    def __init__(self):
        super().__init__(2, BYTES)
        if self.count < 2:
            print("skipped: one GPU")
            sys.exit(77)
        self.make()

    def operation(self, name, type_name, gpu):
        if OPERATIONS[name] is not None:
            return ctypes.c_int(OPERATIONS[name])
        made, scalar = ctypes.c_int(), ctypes.c_uint64(factor(type_name, gpu))
        nccl_startup.call(self.nccl, "ncclRedOpCreatePreMulSum", ctypes.byref(made), ctypes.byref(scalar),
                          TYPES[type_name][0], 1, ctypes.c_void_p(self.comms[gpu]))
        return made

    def reduce(self, name, type_name, inputs):
        count = BYTES // TYPES[type_name][1]
        operations = [self.operation(name, type_name, gpu) for gpu in range(2)]
        for gpu in range(2):
            self.enter(gpu)
            nccl_startup.call(self.cuda, "cuMemcpyHtoD_v2", self.buffers[gpu][0], inputs[gpu].ctypes.data_as(
                ctypes.c_void_p), ctypes.c_size_t(BYTES))
        nccl_startup.call(self.nccl, "ncclGroupStart")
        for gpu in range(2):
            send, receive = (ctypes.c_void_p(buffer.value) for buffer in self.buffers[gpu])
            nccl_startup.call(self.nccl, "ncclAllReduce", send, receive, ctypes.c_size_t(count), TYPES[type_name][0],
                              operations[gpu], ctypes.c_void_p(self.comms[gpu]), self.streams[gpu])
        nccl_startup.call(self.nccl, "ncclGroupEnd")
        self.wait()
        outputs = []
        for gpu in range(2):
            self.enter(gpu)
            outputs.append(numpy.empty_like(inputs[gpu]))
            nccl_startup.call(self.cuda, "cuMemcpyDtoH_v2", outputs[-1].ctypes.data_as(ctypes.c_void_p),
                              self.buffers[gpu][1], ctypes.c_size_t(BYTES))
            if OPERATIONS[name] is None:
                nccl_startup.call(self.nccl, "ncclRedOpDestroy", operations[gpu], ctypes.c_void_p(self.comms[gpu]))
        return outputs


def answers(outputs, pairs):
    """NCCL's answers to each pair: at the first place, and the last one at another place that differs from it."""
    first, other = outputs[0][:pairs], outputs[0][:pairs].copy()
    for output in outputs:
        for begin in range(0, len(output), pairs):
            tile = output[begin:begin + pairs]
            differs = tile != first[:len(tile)]
            other[:len(tile)][differs] = tile[differs]
    return numpy.stack([first, other])


def judge(name, type_name, outputs, expected, pairs, values):
    """How many elements are not what was expected, and a line about the first."""
    for rank, output in enumerate(outputs):
        whole, other = (numpy.resize(answer, output.shape) for answer in expected)
        wrong = (output != whole) & (output != other) & ~(is_nan(type_name, output) & is_nan(type_name, whole))
        if wrong.any():
            at = int(numpy.argmax(wrong))
            pair = at % pairs
            a, b = values[pair // len(values)], values[pair % len(values)]
            return int(wrong.sum()), (f"{type_name} {name}: rank {rank}, element {at}: {a:#x} and {b:#x} gave "
                                      f"{output[at]:#x}, by NCCL alone {whole[at]:#x} or {other[at]:#x}")
    return 0, ""


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        print(__doc__, file=sys.stdout if "--help" in sys.argv else sys.stderr)
        sys.exit(0 if "--help" in sys.argv else 64)
    ranks, differing, compared = Ranks(), 0, 0
    for type_name in TYPES:
        values = special_values(type_name)
        pairs = len(values) ** 2
        inputs = [numpy.resize(numpy.repeat(values, len(values)), BYTES // values.dtype.itemsize),
                  numpy.resize(numpy.tile(values, len(values)), BYTES // values.dtype.itemsize)]
        for name in OPERATIONS:
            path = os.path.join(sys.argv[2], f"{type_name}-{name}.npy")
            outputs = ranks.reduce(name, type_name, inputs)
            if sys.argv[1] == "write":
                numpy.save(path, answers(outputs, pairs))
            wrong, line = judge(name, type_name, outputs, numpy.load(path), pairs, values)
            compared += 2 * len(outputs[0])
            differing += wrong
            if wrong:
                print(f"{wrong} of {2 * len(outputs[0])}: {line}")
    print(f"{sys.argv[1]}: {len(TYPES)} types, {len(OPERATIONS)} operations, {compared} elements, {differing} differ")
    ranks.end()
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
