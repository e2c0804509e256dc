/* SPDX-License-Identifier: Apache-2.0 */
#ifdef FAKE_NCCL_NEWEST
#define FERRY_NCCL_NEWEST FAKE_NCCL_NEWEST
#endif
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/note.h"

#include <stdatomic.h>
#include <string.h>

/* One argument after the other, up to eleven. */
#define E(x) fake_nccl_note_argument(&(x), sizeof(x));
#define E0()
#define E1(a) E(a)
#define E2(a, ...) E(a) E1(__VA_ARGS__)
#define E3(a, ...) E(a) E2(__VA_ARGS__)
#define E4(a, ...) E(a) E3(__VA_ARGS__)
#define E5(a, ...) E(a) E4(__VA_ARGS__)
#define E6(a, ...) E(a) E5(__VA_ARGS__)
#define E7(a, ...) E(a) E6(__VA_ARGS__)
#define E8(a, ...) E(a) E7(__VA_ARGS__)
#define E9(a, ...) E(a) E8(__VA_ARGS__)
#define E10(a, ...) E(a) E9(__VA_ARGS__)
#define E11(a, ...) E(a) E10(__VA_ARGS__)
#define PICK(z, a, b, c, d, e, f, g, h, i, j, k, name, ...) name
#define EACH(...) \
	PICK(0, ##__VA_ARGS__, E11, E10, E9, E8, E7, E6, E5, E4, E3, E2, E1, E0, )(__VA_ARGS__)

#define EXPORTED __attribute__((visibility("default")))
#define NOTE(name, arguments) \
	unsigned long nth = atomic_fetch_add(&count_##name, 1) + 1; \
	ncclResult_t outcome = ncclSuccess; \
	fake_nccl_note(#name); \
	EACH arguments bool cut_short = fake_nccl_cut_short(#name, nth, &outcome)

/* NCCL's own are weak under their plain name, and what NCCL calls goes by that. */
#define BOTH(type, name, parameters) \
	static _Atomic unsigned long count_##name; \
	EXPORTED type pnccl##name parameters; \
	EXPORTED type nccl##name parameters __attribute__((weak, alias("pnccl" #name))); \
	EXPORTED type pnccl##name parameters

#define NCCL_RESULT(since, act, name, parameters, arguments) \
	BOTH(ncclResult_t, name, parameters) \
	{ \
		NOTE(name, arguments); \
		return cut_short ? outcome : fake_nccl_act_##name arguments; \
	}
#define NCCL_VALUE(since, type, name, parameters, arguments) \
	BOTH(type, name, parameters) \
	{ \
		type none = {0}; \
		NOTE(name, arguments); \
		return cut_short ? none : fake_nccl_act_##name arguments; \
	}
#define NCCL_VOID(since, name, parameters, arguments) \
	BOTH(void, name, parameters) \
	{ \
		NOTE(name, arguments); \
		(void)cut_short, (void)outcome; \
	}
#include "orchestrator/functions.def"

EXPORTED unsigned long fake_nccl_count(const char *name)
{
#define NCCL_VALUE(since, type, function, parameters, arguments) \
	if (!strcmp(name, #function)) \
		return atomic_load(&count_##function);
#include "orchestrator/functions.def"
	return 0;
}
