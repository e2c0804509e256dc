/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that carry short calls and sums, for the element type FERRY_NUMBER (number.h). Block i of a rank waits
 * for block i of the others only, so no block needs another one of its own to run. Sources: MSCCL++ (all pairs in one
 * and two phases), NCCL (LL: 4 bytes of data beside 4 bytes of flag; LL128).
 */
#include "rank-lib/kernels/number.h"

#define BATCH 4 /* loads of 16 bytes that a lane has under way */
#define EACH_OF(n, i, at, step, end)                                                                                   \
	UNROLL                                                                                                         \
	for (uint32_t i = 0; i < (n); i++)                                                                             \
		if ((at) + i * (step) < (end))
#define EACH_OF_BATCH(i, at, step, end) EACH_OF(BATCH, i, at, step, end)
#define EACH_OF_SUMS(i, at, step, end)  EACH_OF(SUMS, i, at, step, end)
#undef SUMS
#define SUMS (BITS == 8 ? 1 : BATCH) /* of which sums are made at a time: those of bytes are long */

#ifndef FERRY_KERNELS_ONCE
#define FERRY_KERNELS_ONCE

/* A call as a block carries it. */
struct ferry_course {
	uint64_t counts; /* of the state, before it */
	uint32_t flag;   /* its number */
	uint64_t half;   /* bytes from the start of a box to the half in use, */
	uint64_t packets; /* and to the call's LL packets in it */
	uint32_t block, blocks; /* LL: which block this is, of how many that carry the call */
	uint64_t bytes;  /* of a block of the user's */
	uint64_t unread; /* bytes from one receiver's part of an outbox to the next; 0: an inbox, or one part for all */
	uint32_t waits;  /* bytes from the abort word to the words that name the awaited rank */
	bool given_up;   /* by this lane: it waits for nothing any more */
	bool all;        /* every rank sends data to every other one, and no factors: no headers */
};

DEVICE bool ferry_sends(const struct ferry_kernel_call *c, uint32_t from, uint32_t to)
{
	return from != to && (c->senders >> from & 1) && (c->receivers >> to & 1);
}

/* A poll failed: looks whether the call is given up, and says now and then what it waits for. */
DEVICE void ferry_miss(const struct ferry_kernel_call *c, struct ferry_course *course, const char *from,
                       uint32_t *misses)
{
	uint64_t *waits = (uint64_t *)(void *)((char *)c->abort + course->waits);
	uint32_t r = 0;
	course->given_up |= ferry_gives_up(c->abort, &c->state->given_up, misses);
	if (!ferry_has_turn(*misses))
		return;
	ROLL
	while (r < c->nranks && (uint64_t)from - (uint64_t)c->in[r] >= FERRY_BOX_REGION(c->box_bytes, c->out_shared))
		r++;
	ferry_store64(waits, r);
	ferry_store64(waits + 1, (uint64_t)*misses << 32 | course->flag);
}

DEVICE bool ferry_is_packet(struct ferry_vector v, uint32_t flag)
{
	return (uint32_t)(v.low >> 32) == flag && (uint32_t)(v.high >> 32) == flag;
}

DEVICE uint64_t ferry_await_packet(const struct ferry_kernel_call *c, struct ferry_course *course, const char *from,
                                   uint32_t flag)
{
	uint32_t misses = 0;
	for (;;) {
		struct ferry_vector v = ferry_load_packet(from);
		if (ferry_is_packet(v, flag) || course->given_up)
			return (v.low & 0xffffffffu) | v.high << 32;
		ferry_miss(c, course, from, &misses);
	}
}

DEVICE void ferry_send_packet(char *to, uint64_t word, uint32_t flag)
{
	ferry_store_packet(to, (word & 0xffffffffu) | (uint64_t)flag << 32, word >> 32 | (uint64_t)flag << 32);
}

DEVICE void ferry_await_flag(const struct ferry_kernel_call *c, struct ferry_course *course, const char *from,
                             uint32_t flag)
{
	uint32_t misses = 0;
	while (!course->given_up && ferry_load_flag(from) != flag)
		ferry_miss(c, course, from, &misses);
}

/* ---- the user's buffers, of any alignment and length ---- */

/* The bytes of one access: what divides all of these addresses, 16 at most. */
DEVICE uint32_t ferry_granule(uint64_t addresses)
{
	uint64_t lowest = addresses & (~addresses + 1);
	return lowest && lowest < 16 ? (uint32_t)lowest : 16;
}

/* Bytes from `at` on, 8 or what is left before `end`. */
APART uint64_t ferry_read_pieces(const char *from, uint32_t bytes, uint32_t granule)
{
	uint64_t word = 0;
	if (granule >= 4 && bytes == 8)
		return *(const uint32_t *)(const void *)from |
		       (uint64_t) * (const uint32_t *)(const void *)(from + 4) << 32;
	if (granule >= 2 && bytes % 2 == 0) {
		ROLL
		for (uint32_t i = 0; i < bytes; i += 2)
			word |= (uint64_t) * (const uint16_t *)(const void *)(from + i) << (8 * i);
		return word;
	}
	ROLL
	for (uint32_t i = 0; i < bytes; i++)
		word |= (uint64_t)(uint8_t)from[i] << (8 * i);
	return word;
}

APART void ferry_write_pieces(char *to, uint32_t bytes, uint32_t granule, uint64_t word)
{
	if (granule >= 4 && bytes == 8) {
		*(uint32_t *)(void *)to = (uint32_t)word;
		*(uint32_t *)(void *)(to + 4) = (uint32_t)(word >> 32);
		return;
	}
	const uint32_t step = granule >= 2 && bytes % 2 == 0 ? 2 : 1;
	ROLL
	for (uint32_t i = 0; i < bytes; i += step) {
		if (step == 2)
			*(uint16_t *)(void *)(to + i) = (uint16_t)(word >> (8 * i));
		else
			to[i] = (char)(word >> (8 * i));
	}
}

DEVICE uint64_t ferry_read_word(const char *from, uint64_t at, uint64_t end, uint32_t granule)
{
	const bool whole = at + 8 <= end;
	return granule >= 8 && whole ? *(const uint64_t *)(const void *)(from + at)
	                             : ferry_read_pieces(from + at, whole ? 8 : (uint32_t)(end - at), granule);
}

DEVICE void ferry_write_word(char *to, uint64_t at, uint64_t end, uint32_t granule, uint64_t word)
{
	const bool whole = at + 8 <= end;
	if (granule >= 8 && whole)
		*(uint64_t *)(void *)(to + at) = word;
	else
		ferry_write_pieces(to + at, whole ? 8 : (uint32_t)(end - at), granule, word);
}

APART struct ferry_vector ferry_read_words(const char *from, uint64_t bytes, uint32_t granule)
{
	struct ferry_vector v = {ferry_read_word(from, 0, bytes, granule), 0};
	if (bytes > 8)
		v.high = ferry_read_word(from, 8, bytes, granule);
	return v;
}

APART void ferry_write_words(char *to, uint64_t bytes, uint32_t granule, struct ferry_vector v)
{
	ferry_write_word(to, 0, bytes, granule, v.low);
	if (bytes > 8)
		ferry_write_word(to, 8, bytes, granule, v.high);
}

DEVICE struct ferry_vector ferry_read_vector(const char *from, uint64_t at, uint64_t end, uint32_t granule)
{
	return granule == 16 && at + 16 <= end ? ferry_load_vector(from + at)
	                                       : ferry_read_words(from + at, end - at, granule);
}

DEVICE void ferry_write_vector(char *to, uint64_t at, uint64_t end, uint32_t granule, struct ferry_vector v)
{
	if (granule == 16 && at + 16 <= end)
		ferry_store_vector(to + at, v);
	else
		ferry_write_words(to + at, end - at, granule, v);
}

/* ---- begin and end ---- */

/* of: the call that this block carries, in a group of which c is the first. */
DEVICE struct ferry_course ferry_enter(const struct ferry_kernel_call *c, const struct ferry_kernel_call *of)
{
	struct ferry_course course = {0};
	uint32_t every = c->nranks == 32 ? ~0u : (1u << c->nranks) - 1, misses = 0;
	course.bytes = of->bytes;
	course.waits = FERRY_KERNEL_WAITS;
	course.all = of->senders == every && of->receivers == every && of->scaled != 1;
	course.given_up = ferry_load32(&c->state->given_up); /* many kernels may stand in a stream that is given up */
	course.counts = ferry_load64(&c->state->counts);
	/* the communicator's last call is on another stream */
	while (c->awaits && !course.given_up && (int32_t)((uint32_t)(course.counts >> 32) - c->awaited_plain) < 0) {
		/* names no rank: the call that it waits for does */
		course.given_up |= ferry_gives_up(c->abort, &c->state->given_up, &misses);
		course.counts = ferry_load64(&c->state->counts);
	}
	course.flag = (uint32_t)course.counts + 1;
	course.half = course.packets = (course.flag & 1) * FERRY_BOX_HALF(c->box_bytes);
	course.block = BLOCK;
	course.blocks = BLOCKS;
	return course;
}

/* Fills memory that holds flags with one far from all that come before the next sweep. */
DEVICE void ferry_sweep(char *half, uint64_t bytes, uint32_t flag)
{
	const uint64_t old = flag ^ 0x80000000u, words = bytes / 16;
	struct ferry_vector v = {old | old << 32, old | old << 32};
	EACH_LANE (lane)
		for (uint64_t i = lane; i < words; i += THREADS)
			ferry_store_data(half + 16 * i, v);
}

/*
 * Sweeps this rank's own memory. Before a packet of this rank's next call has come, peers neither write to an inbox's
 * half that was read in this call, nor read an outbox's half of the call before.
 */
DEVICE void ferry_sweep_boxes(const struct ferry_kernel_call *c, const struct ferry_course *course)
{
	const uint64_t other = FERRY_BOX_HALF(c->box_bytes) - course->half;
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (r == c->rank)
			continue;
		if (c->out_shared)
			ferry_sweep(c->out[r] + other, FERRY_BOX_DATA, course->flag);
		else
			ferry_sweep((char *)(uintptr_t)c->in[r] + course->half, FERRY_BOX_HALF(c->box_bytes),
			            course->flag);
		if (c->out_shared)
			break;
	}
}

DEVICE void ferry_count(const struct ferry_kernel_call *c, const struct ferry_course *course)
{
	uint64_t plain = (course->counts >> 32) + !c->uncounted;
	ferry_store64(&c->state->counts, plain << 32 | course->flag);
}

/* Behind the last wait of all lanes. The last block to come counts the call. */
DEVICE void ferry_leave(const struct ferry_kernel_call *c, const struct ferry_course *course)
{
	/* The first call finds zeros, the flag of call 2^32; later sweeps replace them long before that call. */
	const bool sweeps = (course->flag & (FERRY_KERNEL_SWEEP - 1)) < 2 && course->counts;
	SHARED uint32_t last;
	BARRIER();
	EACH_LANE (lane) {
		if (lane)
			continue;
		last = ferry_arrive(&c->state->arrived);
		if (last && !sweeps)
			ferry_count(c, course);
	}
	if (!sweeps)
		return;
	BARRIER();
	if (last)
		ferry_sweep_boxes(c, course);
	BARRIER();
	EACH_LANE (lane)
		if (lane == 0 && last)
			ferry_count(c, course);
}

/* ---- headers ---- */

/* The rank's own factor, of so many bytes. */
DEVICE uint64_t ferry_factor(const struct ferry_kernel_call *c, uint32_t bytes)
{
	return c->factor_at ? ferry_read_word(c->factor_at, 0, bytes, 1) : c->factor;
}

/* Sends a packet, with the factor, to each rank that might get nothing else of this block. */
DEVICE void ferry_send_headers(const struct ferry_kernel_call *c, const struct ferry_course *course, uint32_t bytes)
{
	if (course->all)
		return;
	EACH_LANE (lane) {
		if (lane >= c->nranks || lane == c->rank || (c->out_shared && lane != (c->rank == 0)))
			continue;
		uint64_t factor = ferry_factor(c, bytes);
		ferry_send_packet(c->out[lane] + course->half + FERRY_BOX_HEADERS + 16 * BLOCK, factor, course->flag);
	}
}

/* factors: FERRY_KERNEL_RANKS, of the block. */
DEVICE void ferry_await_headers(const struct ferry_kernel_call *c, struct ferry_course *course, uint64_t *factors,
                               uint32_t bytes)
{
	EACH_LANE (lane) {
		if (lane >= c->nranks)
			continue;
		uint64_t own = ferry_factor(c, bytes);
		factors[lane] = own;
		if (!course->all && lane != c->rank) {
			uint64_t sent = ferry_await_packet(
			        c, course, c->in[lane] + course->half + FERRY_BOX_HEADERS + 16 * BLOCK, course->flag);
			factors[lane] = c->scaled == 1 ? sent : own;
		}
	}
	BARRIER();
}

#endif

/* ---- LL ---- */

DEVICE void NAME(ll_send)(const struct ferry_kernel_call *c, const struct ferry_course *course, uint64_t at,
                          uint32_t granule)
{
	uint64_t word = c->send_stride ? 0 : ferry_read_word(c->send, at, course->bytes, granule);
	for (uint32_t p = 0; p < c->nranks; p++) {
		if (!ferry_sends(c, c->rank, p))
			continue;
		if (c->send_stride)
			word = ferry_read_word(c->send + p * c->send_stride, at, course->bytes, granule);
		ferry_send_packet(c->out[p] + course->packets + p * course->unread + 2 * at, word, course->flag);
		if (c->out_shared && !c->send_stride)
			break;
	}
}

DEVICE void NAME(ll_receive)(const struct ferry_kernel_call *c, struct ferry_course *course, uint64_t at,
                             uint32_t granule, const uint64_t *factors)
{
	const char *own = c->send + c->rank * c->send_stride;
	WIDE total[PER_WORD] = {0};
	bool begun = false;
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (!(c->senders >> r & 1))
			continue;
		uint64_t word = r == c->rank ? ferry_read_word(own, at, course->bytes, granule)
		                             : ferry_await_packet(
		                                       c, course,
		                                       c->in[r] + course->packets + c->rank * course->unread + 2 * at,
		                                       course->flag);
		if (!c->reduces) {
			char *to = c->receive + r * c->receive_stride;
			if (r != c->rank || to != own)
				ferry_write_word(to, at, course->bytes, granule, word);
		} else {
			NAME(add)(total, word, c, factors[r], !begun);
			begun = true;
		}
	}
	if (c->reduces)
		ferry_write_word(c->receive, at, course->bytes, granule, NAME(end)(total, c));
}

/* Each rank sends its blocks to all at once, and reduces, or keeps, what comes. */
DEVICE void NAME(ll_exchange)(const struct ferry_kernel_call *c, struct ferry_course *course, uint64_t *factors)
{
	const uint64_t step = 8ull * course->blocks * THREADS, first = 8ull * course->block * THREADS;
	const uint32_t granule = ferry_granule((uint64_t)(uintptr_t)c->send | (uint64_t)(uintptr_t)c->receive |
	                                       c->send_stride | c->receive_stride);
	course->unread = c->out_shared && c->send_stride ? (course->bytes + 7) / 8 * 16 : 0;
	ferry_send_headers(c, course, BITS / 8);
	if (c->senders >> c->rank & 1)
		EACH_LANE (lane)
			for (uint64_t at = first + 8ull * lane; at < course->bytes; at += step)
				NAME(ll_send)(c, course, at, granule);
	if (!course->all || c->scaled)
		ferry_await_headers(c, course, factors, BITS / 8);
	if (c->receivers >> c->rank & 1)
		EACH_LANE (lane)
			for (uint64_t at = first + 8ull * lane; at < course->bytes; at += step)
				NAME(ll_receive)(c, course, at, granule, factors);
}

KERNEL(NAME(ll), 512, ferry_kernel_call)
{
	SHARED uint64_t factors[FERRY_KERNEL_RANKS];
	struct ferry_course course = ferry_enter(&call, &call);
	NAME(ll_exchange)(&call, &course, factors);
	ferry_leave(&call, &course);
}

/* Calls of a group side by side, each by blocks of its own: those without a sum have any type. */
KERNEL(NAME(ll_group), 512, ferry_kernel_group)
{
	SHARED uint64_t factors[FERRY_KERNEL_RANKS];
	uint32_t which = 0;
	while (which + 1 < call.count && BLOCK >= call.calls[which + 1].first)
		which++;
	const struct ferry_kernel_call *c = &call.calls[which];
	struct ferry_course course = ferry_enter(&call.calls[0], c);
	course.packets += c->place;
	course.block = BLOCK - c->first;
	course.blocks = c->blocks;
	NAME(ll_exchange)(c, &course, factors);
	ferry_leave(&call.calls[0], &course);
}

/* ---- bulk ---- */

DEVICE void NAME(bulk_send)(const struct ferry_kernel_call *c, const struct ferry_course *course, uint32_t chunk,
                            uint32_t granule)
{
	const uint64_t begin = (uint64_t)chunk * c->chunk, left = course->bytes - begin,
	               end = begin + (left < c->chunk ? left : c->chunk), step = 16ull * THREADS;
	for (uint32_t p = 0; p < c->nranks; p++) {
		if (!ferry_sends(c, c->rank, p))
			continue;
		const char *from = c->send + p * c->send_stride;
		char *to = c->out[p] + course->half + FERRY_BOX_DATA + p * course->unread;
		EACH_LANE (lane) {
			for (uint64_t at = begin + 16ull * lane; at < end; at += BATCH * step) {
				struct ferry_vector v[BATCH];
				EACH_OF_BATCH (i, at, step, end)
					v[i] = ferry_read_vector(from, at + i * step, end, granule);
				EACH_OF_BATCH (i, at, step, end)
					ferry_store_data(to + at + i * step, v[i]);
			}
		}
		if (c->out_shared && !c->send_stride)
			break;
	}
	BARRIER();
	EACH_LANE (lane) {
		uint32_t p = c->out_shared && !c->send_stride ? (c->rank == 0) : lane;
		bool sends = c->out_shared && !c->send_stride ? lane == 0 && (c->senders >> c->rank & 1)
		                                              : lane < c->nranks && ferry_sends(c, c->rank, lane);
		if (sends)
			ferry_store_flag(c->out[p] + course->half + FERRY_BOX_FLAGS +
			                         4 * (p * (course->unread / c->chunk) + chunk),
			                 course->flag);
	}
}

/* The vector at `at` of what rank r sends to this one; its own from its buffer. */
DEVICE struct ferry_vector NAME(bulk_read)(const struct ferry_kernel_call *c, const struct ferry_course *course,
                                           uint32_t r, uint64_t at, uint64_t end, uint32_t granule)
{
	return r == c->rank
	               ? ferry_read_vector(c->send + r * c->send_stride, at, end, granule)
	               : ferry_load_data(c->in[r] + course->half + FERRY_BOX_DATA + c->rank * course->unread + at);
}

DEVICE void NAME(reduce_vectors)(const struct ferry_kernel_call *c, const struct ferry_course *course, uint64_t at,
                                 uint64_t step, uint64_t end, uint32_t granule, const uint64_t *factors)
{
	WIDE total[SUMS][2][PER_WORD];
	struct ferry_vector v[SUMS];
	bool begun = false;
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (!(c->senders >> r & 1))
			continue;
		EACH_OF_SUMS (i, at, step, end)
			v[i] = NAME(bulk_read)(c, course, r, at + i * step, end, granule);
		EACH_OF_SUMS (i, at, step, end) {
			NAME(add)(total[i][0], v[i].low, c, factors[r], !begun);
			NAME(add)(total[i][1], v[i].high, c, factors[r], !begun);
		}
		begun = true;
	}
	EACH_OF_SUMS (i, at, step, end)
		ferry_write_vector(c->receive, at + i * step, end, granule,
			                   (struct ferry_vector){NAME(end)(total[i][0], c), NAME(end)(total[i][1], c)});
}

DEVICE void NAME(keep_vectors)(const struct ferry_kernel_call *c, const struct ferry_course *course, uint64_t at,
                               uint64_t step, uint64_t end, uint32_t granule)
{
	struct ferry_vector v[BATCH];
	for (uint32_t r = 0; r < c->nranks; r++) {
		char *to = c->receive + r * c->receive_stride;
		if (!(c->senders >> r & 1) || (r == c->rank && to == c->send + r * c->send_stride))
			continue;
		EACH_OF_BATCH (i, at, step, end)
			v[i] = NAME(bulk_read)(c, course, r, at + i * step, end, granule);
		EACH_OF_BATCH (i, at, step, end)
			ferry_write_vector(to, at + i * step, end, granule, v[i]);
	}
}

DEVICE void NAME(bulk_receive)(const struct ferry_kernel_call *c, struct ferry_course *course, uint32_t chunk,
                               uint32_t granule, const uint64_t *factors)
{
	const uint64_t begin = (uint64_t)chunk * c->chunk, left = course->bytes - begin,
	               end = begin + (left < c->chunk ? left : c->chunk), step = 16ull * THREADS;
	EACH_LANE (lane) {
		if (lane < c->nranks && ferry_sends(c, lane, c->rank))
			ferry_await_flag(c, course, c->in[lane] + course->half + FERRY_BOX_FLAGS +
			                                    4 * (c->rank * (course->unread / c->chunk) + chunk),
			                 course->flag);
	}
	BARRIER();
	EACH_LANE (lane) {
		for (uint64_t at = begin + 16ull * lane; c->reduces && at < end; at += SUMS * step)
			NAME(reduce_vectors)(c, course, at, step, end, granule, factors);
		for (uint64_t at = begin + 16ull * lane; !c->reduces && at < end; at += BATCH * step)
			NAME(keep_vectors)(c, course, at, step, end, granule);
	}
}

/*
 * As LL, by chunks: each with one flag behind its data. A block sends its next chunk before it waits for one; so a
 * result in the place of the input covers only what this block has sent.
 */
KERNEL(NAME(bulk), 512, ferry_kernel_call)
{
	const struct ferry_kernel_call *c = &call;
	SHARED uint64_t factors[FERRY_KERNEL_RANKS];
	struct ferry_course course = ferry_enter(c, c);
	const uint32_t chunks = (uint32_t)((course.bytes + c->chunk - 1) / c->chunk);
	const uint32_t granule = ferry_granule((uint64_t)(uintptr_t)c->send | (uint64_t)(uintptr_t)c->receive |
	                                       c->send_stride | c->receive_stride);
	course.unread = c->out_shared && c->send_stride ? (uint64_t)chunks * c->chunk : 0;
	ferry_send_headers(c, &course, BITS / 8);
	ferry_await_headers(c, &course, factors, BITS / 8);
	if (BLOCK < chunks)
		NAME(bulk_send)(c, &course, BLOCK, granule);
	for (uint32_t chunk = BLOCK; chunk < chunks; chunk += BLOCKS) {
		if (chunk + BLOCKS < chunks)
			NAME(bulk_send)(c, &course, chunk + BLOCKS, granule);
		if (c->receivers >> c->rank & 1)
			NAME(bulk_receive)(c, &course, chunk, granule, factors);
	}
	ferry_leave(c, &course);
}

/* ---- blocks that have come ---- */

/* factors: of each block; NULL: the call's, of all. */
DEVICE void NAME(reduce_local)(const struct ferry_kernel_call *c, uint64_t at, uint64_t step, uint32_t granule,
                               const uint64_t *factors)
{
	WIDE total[SUMS][2][PER_WORD];
	struct ferry_vector v[SUMS];
	for (uint32_t r = 0; r < c->nranks; r++) {
		EACH_OF_SUMS (i, at, step, c->bytes)
			v[i] = ferry_read_vector(c->in[r], at + i * step, c->bytes, granule);
		EACH_OF_SUMS (i, at, step, c->bytes) {
			NAME(add)(total[i][0], v[i].low, c, factors ? factors[r] : c->factor, !r);
			NAME(add)(total[i][1], v[i].high, c, factors ? factors[r] : c->factor, !r);
		}
	}
	EACH_OF_SUMS (i, at, step, c->bytes)
		ferry_write_vector(c->receive, at + i * step, c->bytes, granule,
			                   (struct ferry_vector){NAME(end)(total[i][0], c), NAME(end)(total[i][1], c)});
}

/* Reduces the ranks' blocks, which lie in the rank's own memory at in[], and waits for nothing. */
KERNEL(NAME(reduce), 512, ferry_kernel_call)
{
	const struct ferry_kernel_call *c = &call;
	const uint64_t step = 16ull * BLOCKS * THREADS, first = 16ull * BLOCK * THREADS;
	uint64_t addresses = (uint64_t)(uintptr_t)c->receive;
	for (uint32_t r = 0; r < c->nranks; r++)
		addresses |= (uint64_t)(uintptr_t)c->in[r];
	EACH_LANE (lane)
		for (uint64_t at = first + 16ull * lane; at < c->bytes; at += SUMS * step)
			NAME(reduce_local)(c, at, step, ferry_granule(addresses), NULL);
}

/* ---- ADDs of a program ---- */

/* This block's part of one slice. c: of the block, as scratch, like factors. */
DEVICE void NAME(add_slice)(const struct ferry_kernel_adds *adds, const struct ferry_kernel_add *add, uint32_t slice,
                            struct ferry_kernel_call *c, uint64_t *factors)
{
	const uint64_t step = 16ull * BLOCKS * THREADS, first = 16ull * BLOCK * THREADS;
	const uint64_t slot = (uint64_t)((adds->lap + slice) % adds->window) * adds->slice;
	const uint64_t left = add->bytes - (uint64_t)slice * adds->slice;
	EACH_LANE (lane) {
		if (lane < add->nsources) {
			const uint32_t source = adds->sources[add->first_source + lane];
			c->in[lane] = adds->memory + 64ull * (source >> 1) + slot;
			factors[lane] = source & 1 ? adds->call.factor : adds->one;
		}
		if (lane)
			continue;
		c->receive = adds->memory + 64ull * add->to + slot;
		c->bytes = left < adds->slice ? left : adds->slice;
		c->nranks = add->nsources;
		c->divisor = add->last ? adds->call.divisor : 1;
	}
	BARRIER();
	EACH_LANE (lane)
		for (uint64_t at = first + 16ull * lane; at < c->bytes; at += SUMS * step)
			NAME(reduce_local)(c, at, step, 16, factors);
	BARRIER();
}

/*
 * The ADDs of a call in a rank's memory, slice by slice as the rank's router opens them. Each block has a part of every
 * slice, and says for itself how far it is, so it waits for no other block.
 */
KERNEL(NAME(adds), 512, ferry_kernel_adds)
{
	SHARED struct ferry_kernel_call c;
	SHARED uint64_t factors[FERRY_KERNEL_RANKS];
	SHARED uint32_t made[FERRY_KERNEL_ADDS], open[FERRY_KERNEL_ADDS];
	uint32_t left = 0, misses = 0;
	bool gone = false;
	for (uint32_t i = 0; i < call.count; i++)
		left += call.adds[i].bytes > 0;
	EACH_LANE (lane) {
		if (!lane)
			c = call.call;
		if (lane < call.count)
			made[lane] = open[lane] = 0;
	}
	BARRIER();
	while (left && !gone) {
		bool any = false, given_up = false;
		EACH_LANE (lane)
			if (lane < call.count && (uint64_t)made[lane] * call.slice < call.adds[lane].bytes)
				open[lane] = ferry_slices_of(ferry_load_word(call.cells + 8 * lane), call.number);
		BARRIER();
		for (uint32_t i = 0; i < call.count; i++) {
			const struct ferry_kernel_add *add = &call.adds[i];
			const uint32_t slices = (uint32_t)((add->bytes + call.slice - 1) / call.slice);
			const uint32_t before = made[i], end = open[i] < slices ? open[i] : slices;
			for (uint32_t slice = before; slice < end; slice++) {
				NAME(add_slice)(&call, add, slice, &c, factors);
				EACH_LANE (lane)
					for (uint32_t b = BLOCK; !lane && b < FERRY_KERNEL_ADD_BLOCKS; b += BLOCKS)
						ferry_store_word(call.cells + FERRY_KERNEL_ADD_DONE(i, b),
						                 (uint64_t)call.number << 32 | (slice + 1));
			}
			any |= end > before;
			left -= end > before && end == slices;
			EACH_LANE (lane)
				if (!lane && end > before)
					made[i] = end;
		}
		BARRIER();
		if (any)
			continue;
		EACH_LANE (lane)
			if (!lane)
				given_up = ferry_gives_up(call.call.abort, &call.call.state->given_up, &misses);
		gone = ferry_any_of_block(given_up);
	}
}

#include "rank-lib/kernels/ll128.h"
#ifdef FERRY_NUMBER_u8
#include "rank-lib/kernels/messages.h"
#endif
