/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library without code, named libnccl.so.2, that needs libferry-nccl.so: a program that opens it has Ferry's
 * functions. There is one state, whichever way the library was loaded. Its name counts once it is loaded: the loader
 * then returns it when libnccl.so.2 is opened, before it looks into any folder. JAX's plugin has its wheel's folder in
 * its RPATH, which goes before LD_LIBRARY_PATH.
 */
extern const int ferry_nccl_mark;
