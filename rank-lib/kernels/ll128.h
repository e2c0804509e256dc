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

/* Part j of a line of the user's buffer, with the flag in the last one. */
DEVICE struct ferry_vector ferry_read_part(uint64_t flag, const char *from, uint64_t bytes, uint64_t line, uint32_t j,
                                           uint32_t granule)
{
	const uint64_t at = line * LINE_BYTES + 16 * j;
	struct ferry_vector v = {0, flag};
	if (at < bytes)
		v.low = ferry_read_word(from, at, bytes, granule);
	if (j != 7)
		v.high = at + 8 < bytes ? ferry_read_word(from, at + 8, bytes, granule) : 0;
	return v;
}

DEVICE void ferry_write_part(char *to, uint64_t bytes, uint64_t line, uint32_t j, uint32_t granule,
                             struct ferry_vector v)
{
	const uint64_t at = line * LINE_BYTES + 16 * j;
	if (at < bytes)
		ferry_write_word(to, at, bytes, granule, v.low);
	if (j != 7 && at + 8 < bytes)
		ferry_write_word(to, at + 8, bytes, granule, v.high);
}

struct ferry_lines {
	uint64_t first, end; /* lines of the user's buffer; */
	uint64_t box;        /* they lie in the half's data from this line on */
};

/* For each line of the block's share of `lines`, by eight lanes, of which this one has part j. */
#define EACH_LINE(lane, line, lines)                                                                                   \
	EACH_LANE (lane)                                                                                               \
		for (uint64_t line = (lines).first + BLOCK * (THREADS / LINE_LANES) + lane / LINE_LANES;               \
		     line < (lines).end; line += (uint64_t)BLOCKS * (THREADS / LINE_LANES))

DEVICE void ferry_send_lines(const struct ferry_kernel_call *c, const struct ferry_course *course, const char *from,
                             uint32_t to, struct ferry_lines lines, uint32_t granule)
{
	char *box = c->out[to] + course->half + FERRY_BOX_DATA + 128 * lines.box;
	EACH_LINE (lane, line, lines)
		EACH_PART (j)
			ferry_store_part(box + 128 * (line - lines.first), j,
			                 ferry_read_part(ferry_line_flag(course->flag), from, course->bytes, line, j,
			                                 granule));
}

DEVICE struct ferry_vector ferry_await_part(const struct ferry_kernel_call *c, struct ferry_course *course,
                                            uint32_t flag, const char *box, uint32_t j)
{
	struct ferry_vector v;
	uint32_t misses = 0;
	while (!ferry_load_part(box, j, ferry_line_flag(flag), &v)) {
		course->given_up = ferry_any_of_line(course->given_up);
		if (course->given_up)
			break;
		ferry_miss(c, course, box, &misses);
	}
	return v;
}

DEVICE void ferry_keep_lines(const struct ferry_kernel_call *c, struct ferry_course *course, uint32_t from, char *to,
                             struct ferry_lines lines, uint32_t granule)
{
	const char *box = c->in[from] + course->half + FERRY_BOX_DATA + 128 * lines.box;
	EACH_LINE (lane, line, lines)
		EACH_PART (j)
			ferry_write_part(to, course->bytes, line, j, granule,
			                 ferry_await_part(c, course, course->flag, box + 128 * (line - lines.first),
			                                  j));
}

DEVICE void ferry_copy_lines(const struct ferry_course *course, const char *from, char *to, struct ferry_lines lines,
                             uint32_t granule)
{
	EACH_LINE (lane, line, lines)
		EACH_PART (j)
			ferry_write_part(to, course->bytes, line, j, granule,
			                 ferry_read_part(0, from, course->bytes, line, j, granule));
}
#endif

/* Part j of a line, reduced over all senders. */
DEVICE struct ferry_vector NAME(sum_part)(const struct ferry_kernel_call *c, struct ferry_course *course,
                                          struct ferry_lines lines, uint64_t line, uint32_t j, uint32_t granule,
                                          const uint64_t *factors)
{
	const uint64_t at = course->half + FERRY_BOX_DATA + 128 * (lines.box + line - lines.first);
	WIDE low[PER_WORD] = {0}, high[PER_WORD] = {0};
	bool first = true;
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (!(c->senders >> r & 1))
			continue;
		const char *own = c->send + r * c->send_stride;
		struct ferry_vector v = r == c->rank ? ferry_read_part(0, own, course->bytes, line, j, granule)
		                                     : ferry_await_part(c, course, course->flag, c->in[r] + at, j);
		NAME(add)(low, v.low, c, factors[r], first);
		NAME(add)(high, v.high, c, factors[r], first);
		first = false;
	}
	struct ferry_vector sum = {NAME(end)(low, c), NAME(end)(high, c)};
	if (j == 7)
		sum.high = ferry_line_flag(course->flag);
	return sum;
}

/* Reduces the lines. shares: stores the sums in all other ranks' boxes, too, from line `result` on. */
DEVICE void NAME(sum_lines)(const struct ferry_kernel_call *c, struct ferry_course *course, struct ferry_lines lines,
                            bool shares, uint64_t result, uint32_t granule, const uint64_t *factors)
{
	EACH_LINE (lane, line, lines)
		EACH_PART (j) {
			struct ferry_vector sum = NAME(sum_part)(c, course, lines, line, j, granule, factors);
			const uint64_t at = course->half + FERRY_BOX_DATA + 128 * (result + line - lines.first);
			for (uint32_t r = 0; shares && r < c->nranks; r++)
				if (r != c->rank)
					ferry_store_part(c->out[r] + at, j, sum);
			ferry_write_part(c->receive, course->bytes, line, j, granule, sum);
		}
}

/* The lines that rank r reduces for all. */
DEVICE struct ferry_lines NAME(part_of)(const struct ferry_kernel_call *c, uint64_t lines, uint32_t r, bool result)
{
	const uint64_t part = (lines + c->nranks - 1) / c->nranks, first = r * part < lines ? r * part : lines;
	struct ferry_lines of = {first, first + part < lines ? first + part : lines, result ? part : 0};
	return of;
}

DEVICE void NAME(two_phases)(const struct ferry_kernel_call *c, struct ferry_course *course, uint64_t lines,
                             uint32_t granule, const uint64_t *factors)
{
	const uint64_t part = (lines + c->nranks - 1) / c->nranks;
	for (uint32_t r = 0; r < c->nranks; r++)
		if (r != c->rank)
			ferry_send_lines(c, course, c->send, r, NAME(part_of)(c, lines, r, false), granule);
	NAME(sum_lines)(c, course, NAME(part_of)(c, lines, c->rank, false), true, part, granule, factors);
	for (uint32_t r = 0; r < c->nranks; r++)
		if (r != c->rank)
			ferry_keep_lines(c, course, r, c->receive, NAME(part_of)(c, lines, r, true), granule);
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
	const struct ferry_lines lines = {0, (course.bytes + LINE_BYTES - 1) / LINE_BYTES, 0};
	ferry_send_headers(c, &course, BITS / 8);
	ferry_await_headers(c, &course, factors, BITS / 8);
	if (c->two_phases) {
		NAME(two_phases)(c, &course, lines.end, granule, factors);
		ferry_leave(c, &course);
		return;
	}
	for (uint32_t p = 0; p < c->nranks; p++)
		if (ferry_sends(c, c->rank, p))
			ferry_send_lines(c, &course, c->send + p * c->send_stride, p, lines, granule);
	if ((c->receivers >> c->rank & 1) && c->reduces)
		NAME(sum_lines)(c, &course, lines, false, 0, granule, factors);
	for (uint32_t r = 0; (c->receivers >> c->rank & 1) && !c->reduces && r < c->nranks; r++) {
		char *to = c->receive + r * c->receive_stride;
		if (ferry_sends(c, r, c->rank))
			ferry_keep_lines(c, &course, r, to, lines, granule);
		else if ((c->senders >> r & 1) && to != c->send + r * c->send_stride)
			ferry_copy_lines(&course, c->send + r * c->send_stride, to, lines, granule);
	}
	ferry_leave(c, &course);
}
