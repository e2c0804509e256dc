/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Ferry says of the CUDA driver is what this machine's cuda.h says: compiled where that is found, never run.
 * cuda_values.h has a COMPARE(NAME, number) per enumerator of cuda_types.h; the build writes it.
 */
#include <cuda.h>
#include <stddef.h>

#define COMPARE(name, number) _Static_assert((long long)(name) == (number), #name " has another value in cuda.h");
#include "cuda_values.h"

#define CUDA_FUNCTION(name, symbol, parameters)                                                                        \
	_Static_assert(__builtin_types_compatible_p(__typeof__(cu##name), CUresult parameters),                        \
	               "cu" #name " has other parameters in cuda.h");
#include "router/copy/cuda_functions.def"
#include "tests/fake_cuda/functions.def"
#undef CUDA_FUNCTION

/* A function whose signature has changed is another symbol: cuda.h says which by a macro of the same name. */
#define TEXT(name)                              TEXT_OF(name)
#define TEXT_OF(name)                           #name
#define CUDA_FUNCTION(name, symbol, parameters) {TEXT(cu##name), #symbol},
const char *const ferry_cuda_symbols[][2] = {
#include "router/copy/cuda_functions.def"
#include "tests/fake_cuda/functions.def"
};
#undef CUDA_FUNCTION
const size_t ferry_cuda_symbols_count = sizeof ferry_cuda_symbols / sizeof *ferry_cuda_symbols;

#define SIZES sizes_of_header
#include "tests/fake_cuda/sizes.h"
