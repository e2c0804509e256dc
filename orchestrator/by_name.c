/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An empty library, named libnccl.so.2, that depends on libferry-nccl.so: a program that opens it gets Ferry's
 * functions, and the process has one Ferry however it was loaded. Once this library is loaded, the loader returns it
 * for libnccl.so.2 before it searches any folder: also for JAX's plugin, whose RPATH has its wheel's folder and goes
 * before LD_LIBRARY_PATH.
 */
extern const int ferry_nccl_mark;
