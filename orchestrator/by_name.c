/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library without code whose name is libnccl.so.2 and that needs libferry-nccl.so: who opens it has Ferry's
 * functions. One state, whichever way it came in. Its name counts once it is loaded: the loader then gives it to
 * whoever opens libnccl.so.2, before it looks into any folder. JAX's plugin has its wheel's folder in its RPATH, which
 * goes before LD_LIBRARY_PATH.
 */
extern const int ferry_nccl_mark;
