/* SPDX-License-Identifier: Apache-2.0 */
/**
 * LL128: lines of 128 bytes, of which the last 8 are a flag, for the element type FERRY_NUMBER. A part of kernels.cu,
 * which includes it once per type, behind all that it uses.
 */
#ifndef FERRY_LL128_ONCE
#define FERRY_LL128_ONCE

#define LINE_BYTES 120u /* of the user's in a line */

DEVICE uint64_t ferry_line_flag(uint32_t flag)
{
	return (uint64_t)flag << 32 | flag;
}

/* Bytes of the user's block before part j of a line. */
DEVICE uint32_t ferry_part_at(uint32_t line, uint32_t j)
{
	return line * LINE_BYTES + 16 * j;
}

APART struct ferry_vector ferry_read_edge(uint64_t flag, const char *from, uint64_t bytes, uint64_t at, uint32_t j,
                                          uint32_t granule)
{
	struct ferry_vector v = {0, flag};
	if (at < bytes)
		v.low = ferry_read_word(from, at, bytes, granule);
	if (j != 7)
		v.high = at + 8 < bytes ? ferry_read_word(from, at + 8, bytes, granule) : 0;
	return v;
}

APART void ferry_write_edge(char *to, uint64_t bytes, uint64_t at, uint32_t j, uint32_t granule, struct ferry_vector v)
{
	if (at < bytes)
		ferry_write_word(to, at, bytes, granule, v.low);
	if (j != 7 && at + 8 < bytes)
		ferry_write_word(to, at + 8, bytes, granule, v.high);
}

/* Part j of a line of the user's buffer, with the flag in the last one. */
DEVICE struct ferry_vector ferry_read_part(uint64_t flag, const char *from, uint64_t bytes, uint32_t line, uint32_t j,
                                           uint32_t granule)
{
	const uint32_t at = ferry_part_at(line, j);
	struct ferry_vector v = {0, flag};
	if (granule < 8 || at + 16ull > bytes)
		return ferry_read_edge(flag, from, bytes, at, j, granule);
	v.low = *(const uint64_t *)(const void *)(from + at);
	if (j != 7)
		v.high = *(const uint64_t *)(const void *)(from + at + 8);
	return v;
}

DEVICE void ferry_write_part(char *to, uint64_t bytes, uint32_t line, uint32_t j, uint32_t granule,
                             struct ferry_vector v)
{
	const uint32_t at = ferry_part_at(line, j);
	if (granule < 8 || at + 16ull > bytes) {
		ferry_write_edge(to, bytes, at, j, granule, v);
		return;
	}
	*(uint64_t *)(void *)(to + at) = v.low;
	if (j != 7)
		*(uint64_t *)(void *)(to + at + 8) = v.high;
}

/* v: what a first look has found. */
DEVICE struct ferry_vector ferry_await_part(const struct ferry_kernel_call *c, struct ferry_course *course,
                                            uint32_t flag, const char *box, uint32_t j, struct ferry_vector v)
{
	uint32_t misses = 0;
	while (!ferry_part_is_there(box, j, ferry_line_flag(flag), &v)) {
		course->given_up = ferry_any_of_line(course->given_up);
		if (course->given_up)
			break;
		ferry_miss(c, course, box, &misses);
		v = ferry_look_at_part(box, j);
	}
	return v;
}

/*
 * A lane sends a line, and takes one that its peers have sent so many of its lines before: an AllReduce of 16 MiB takes
 * 65 us so, and 70 where all is sent before anything is taken (docs/lab/kernels.md). It reads what it sends next before
 * it sends, as a store waits where a link is full. No lane waits for a line that a peer sends behind a wait for this
 * one's: all ranks have the same blocks and lines.
 */
#define LINES_AHEAD 4u
#define LINES_STEP  (BLOCKS * (THREADS / LINE_LANES))
#define FIRST_LINE(lane) (BLOCK * (THREADS / LINE_LANES) + (lane) / LINE_LANES)
#define NEXT(j)     ((j) % PARTS) /* among the parts that a lane has */

DEVICE char *ferry_line_of(const char *box, const struct ferry_course *course, uint32_t line)
{
	return (char *)(uintptr_t)box + course->half + FERRY_BOX_DATA + 128ull * line;
}

/* Bit r: this rank sends to rank r, or (receives) gets something from it. */
DEVICE uint32_t ferry_peers_of(const struct ferry_kernel_call *c, bool receives)
{
	const uint32_t own = 1u << c->rank;
	return (receives ? c->receivers : c->senders) & own ? (receives ? c->senders : c->receivers) & ~own : 0;
}

/* What the first peer gets of a line: lines are read in advance. */
DEVICE struct ferry_vector ferry_read_next(const struct ferry_kernel_call *c, const struct ferry_course *course,
                                           uint32_t peers, uint32_t line, uint32_t lines, uint32_t j, uint32_t granule)
{
	const struct ferry_vector none = {0, 0};
	if (!peers || line >= lines)
		return none;
	return ferry_read_part(ferry_line_flag(course->flag), c->send + ferry_lowest(peers) * c->send_stride,
	                       course->bytes, line, j, granule);
}

DEVICE void ferry_send_line(const struct ferry_kernel_call *c, const struct ferry_course *course, uint32_t peers,
                            uint32_t line, uint32_t j, uint32_t granule, struct ferry_vector v)
{
	ROLL
	for (uint32_t left = peers; left; left &= left - 1) {
		const uint32_t p = ferry_lowest(left);
		if (c->send_stride && left != peers)
			v = ferry_read_part(ferry_line_flag(course->flag), c->send + p * c->send_stride, course->bytes,
			                    line, j, granule);
		ferry_store_part(ferry_line_of(c->out[p], course, line), j, v);
	}
}

/* seen: a look at the line of the first peer. */
DEVICE void ferry_keep_line(const struct ferry_kernel_call *c, struct ferry_course *course, uint32_t peers,
                            uint32_t line, uint32_t j, uint32_t granule, struct ferry_vector seen)
{
	char *to = c->receive + c->rank * c->receive_stride;
	const char *own = c->send + c->rank * c->send_stride;
	if ((c->senders >> c->rank & 1) && to != own)
		ferry_write_part(to, course->bytes, line, j, granule,
		                 ferry_read_part(0, own, course->bytes, line, j, granule));
	ROLL
	for (uint32_t left = peers; left; left &= left - 1) {
		const uint32_t r = ferry_lowest(left);
		const char *box = ferry_line_of(c->in[r], course, line);
		if (left != peers)
			seen = ferry_look_at_part(box, j);
		ferry_write_part(c->receive + r * c->receive_stride, course->bytes, line, j, granule,
		                 ferry_await_part(c, course, course->flag, box, j, seen));
	}
}

/* An AllReduce in two phases: each rank reduces so many of the lines for all. */
struct ferry_split {
	uint32_t lines, part;
};

/* A line of what rank r reduces. */
DEVICE struct ferry_vector ferry_read_split(const struct ferry_kernel_call *c, const struct ferry_course *course,
                                            struct ferry_split all, uint32_t r, uint32_t line, uint32_t j,
                                            uint32_t granule)
{
	const struct ferry_vector none = {0, 0};
	const uint32_t at = r * all.part + line;
	if (line >= all.part || at >= all.lines)
		return none;
	return ferry_read_part(ferry_line_flag(course->flag), c->send, course->bytes, at, j, granule);
}
#endif

/*
 * Part j of a line of the rank's own block, which lies in the boxes as line `boxed`, reduced over all senders.
 * peers, seen: as in ferry_keep_line.
 */
DEVICE struct ferry_vector NAME(sum_part)(const struct ferry_kernel_call *c, struct ferry_course *course, uint32_t line,
                                          uint32_t boxed, uint32_t j, uint32_t granule, const uint64_t *factors,
                                          uint32_t peers, struct ferry_vector seen)
{
	WIDE low[PER_WORD] = {0}, high[PER_WORD] = {0};
	const struct ferry_vector own = ferry_read_part(0, c->send + c->rank * c->send_stride, course->bytes, line, j,
	                                                granule);
	bool begun = false;
	ROLL
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (!(c->senders >> r & 1))
			continue;
		struct ferry_vector v = own;
		if (r != c->rank) {
			const char *box = ferry_line_of(c->in[r], course, boxed);
			if (r != ferry_lowest(peers))
				seen = ferry_look_at_part(box, j);
			v = ferry_await_part(c, course, course->flag, box, j, seen);
		}
		NAME(add)(low, v.low, c, factors[r], !begun);
		NAME(add)(high, v.high, c, factors[r], !begun);
		begun = true;
	}
	struct ferry_vector sum = {NAME(end)(low, c), NAME(end)(high, c)};
	if (j == 7)
		sum.high = ferry_line_flag(course->flag);
	return sum;
}

DEVICE void NAME(one_phase)(const struct ferry_kernel_call *c, struct ferry_course *course, uint32_t lines,
                            uint32_t granule, const uint64_t *factors)
{
	const bool receives = c->receivers >> c->rank & 1;
	const uint32_t ahead = LINES_AHEAD * LINES_STEP, to = ferry_peers_of(c, false), from = ferry_peers_of(c, true);
	EACH_LANE (lane) {
		struct ferry_vector next[PARTS];
		EACH_PART (j)
			next[NEXT(j)] = ferry_read_next(c, course, to, FIRST_LINE(lane), lines, j, granule);
		for (uint32_t line = FIRST_LINE(lane); line < lines + (receives ? ahead : 0); line += LINES_STEP)
			EACH_PART (j) {
				const uint32_t kept = line - ahead;
				const bool keeps = receives && line >= ahead;
				const struct ferry_vector sent = next[NEXT(j)];
				struct ferry_vector seen = {0, 0};
				if (keeps && from)
					seen = ferry_look_at_part(
					        ferry_line_of(c->in[ferry_lowest(from)], course, kept), j);
				next[NEXT(j)] = ferry_read_next(c, course, to, line + LINES_STEP, lines, j, granule);
				if (line < lines)
					ferry_send_line(c, course, to, line, j, granule, sent);
				if (keeps && c->reduces)
					ferry_write_part(c->receive, course->bytes, kept, j, granule,
					                 NAME(sum_part)(c, course, kept, kept, j, granule,
					                                factors, from, seen));
				else if (keeps)
					ferry_keep_line(c, course, from, kept, j, granule, seen);
			}
	}
}

/* Sums a line of the rank's own part, and sends the sum behind the parts in the boxes. */
DEVICE void NAME(share_sum)(const struct ferry_kernel_call *c, struct ferry_course *course, struct ferry_split all,
                            uint32_t peers, uint32_t line, uint32_t j, uint32_t granule, const uint64_t *factors,
                            struct ferry_vector seen)
{
	const uint32_t at = c->rank * all.part + line;
	const struct ferry_vector sum = NAME(sum_part)(c, course, at, line, j, granule, factors, peers, seen);
	ROLL
	for (uint32_t left = peers; left; left &= left - 1)
		ferry_store_part(ferry_line_of(c->out[ferry_lowest(left)], course, all.part + line), j, sum);
	ferry_write_part(c->receive, course->bytes, at, j, granule, sum);
}

/* A part is sent, then its sums, then sums are kept. */
DEVICE void NAME(two_phases)(const struct ferry_kernel_call *c, struct ferry_course *course, uint32_t lines,
                             uint32_t granule, const uint64_t *factors)
{
	const struct ferry_split all = {lines, (lines + c->nranks - 1) / c->nranks};
	const uint32_t ahead = LINES_AHEAD * LINES_STEP, peers = ferry_peers_of(c, true), first = ferry_lowest(peers);
	EACH_LANE (lane) {
		struct ferry_vector next[PARTS];
		EACH_PART (j)
			next[NEXT(j)] = ferry_read_split(c, course, all, first, FIRST_LINE(lane), j, granule);
		for (uint32_t line = FIRST_LINE(lane); line < all.part + 2 * ahead; line += LINES_STEP)
			EACH_PART (j) {
				const uint32_t summed = line - ahead, kept = summed - ahead;
				const bool sums = line >= ahead && summed < all.part &&
				                  c->rank * all.part + summed < lines;
				struct ferry_vector v = next[NEXT(j)], seen = {0, 0};
				if (sums)
					seen = ferry_look_at_part(ferry_line_of(c->in[first], course, summed), j);
				next[NEXT(j)] = ferry_read_split(c, course, all, first, line + LINES_STEP, j,
				                                   granule);
				ROLL
				for (uint32_t left = line < all.part ? peers : 0; left; left &= left - 1) {
					const uint32_t r = ferry_lowest(left);
					if (left != peers)
						v = ferry_read_split(c, course, all, r, line, j, granule);
					if (r * all.part + line < lines)
						ferry_store_part(ferry_line_of(c->out[r], course, line), j, v);
				}
				if (sums)
					NAME(share_sum)(c, course, all, peers, summed, j, granule, factors, seen);
				ROLL
				for (uint32_t left = line >= 2 * ahead ? peers : 0; left; left &= left - 1) {
					const uint32_t r = ferry_lowest(left), at = r * all.part + kept;
					const char *box = ferry_line_of(c->in[r], course, all.part + kept);
					if (at < lines)
						ferry_write_part(c->receive, course->bytes, at, j, granule,
						                 ferry_await_part(c, course, course->flag, box, j,
						                                  ferry_look_at_part(box, j)));
				}
			}
	}
}

/*
 * As LL with less overhead: 120 bytes of data beside 8 of flag. An AllReduce in two phases moves each byte twice
 * whatever the number of ranks. Every lane writes over a place of the user's buffer only after it has itself read it.
 */
KERNEL(NAME(ll128), 1024, ferry_kernel_call)
{
	const struct ferry_kernel_call *c = &call;
	SHARED uint64_t factors[FERRY_KERNEL_RANKS];
	struct ferry_course course = ferry_enter(c, c);
	const uint32_t granule = ferry_granule((uint64_t)(uintptr_t)c->send | (uint64_t)(uintptr_t)c->receive |
	                                       c->send_stride | c->receive_stride);
	const uint32_t lines = (uint32_t)((course.bytes + LINE_BYTES - 1) / LINE_BYTES);
	ferry_send_headers(c, &course, BITS / 8);
	ferry_await_headers(c, &course, factors, BITS / 8);
	if (c->two_phases)
		NAME(two_phases)(c, &course, lines, granule, factors);
	else
		NAME(one_phase)(c, &course, lines, granule, factors);
	ferry_leave(c, &course);
}
