#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sum of an array over all ranks, by ctypes alone: ferryrun --fork -n 4 -- python3 allreduce.py"""

import array
import ctypes
import os

FLOAT, SUM = 7, 0  # ferryFloat, ferrySum: values of ferry_types.h

os.environ.setdefault("FERRY_DEVICE", "host")  # the array is no GPU's memory
ferry = ctypes.CDLL("libferry.so.0")
ferry.ferryGetLastError.restype = ctypes.c_char_p


def check(result):
    if result:
        raise RuntimeError(ferry.ferryGetLastError(None).decode())


comm = ctypes.c_void_p()
check(ferry.ferryCommInitEnv(ctypes.byref(comm), None))
values = array.array("f", [1] * 1000)
buffer = ctypes.c_void_p(values.buffer_info()[0])
check(ferry.ferryAllReduce(buffer, buffer, ctypes.c_size_t(len(values)), FLOAT, SUM, comm, None))
check(ferry.ferryStreamSynchronize(None))
print(f"we are {values[0]:g}")
check(ferry.ferryCommDestroy(comm))
