/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Messages: the Sends and Recvs of a group, as one kernel that counts as none of the communicator's calls and waits for
 * none. A part of kernels.cu, which includes it for one type, behind all that it uses.
 *
 * Both ends of a way, from one rank to another, cut each message alike into pieces of 2 to 15 KiB, which both number,
 * each in its own device memory. Piece n goes with the flag n + 1 through slot n mod slots: as LL packets, or by peer
 * memory as lines of LL128, where the message is long. Packets have slots of their own and lines have others, as a byte
 * of the user's in a line could look like a packet's flag. A piece belongs to strand n mod strands. The receiver says
 * for each strand which piece it reads next, in memory of its own; the sender looks at those words, across the link,
 * only where it knows of no free slot any more. So the first pieces, as many as there are slots, need no receiver.
 * Other ranks write to a rank's memory only pieces that it awaits, so none after its end.
 *
 * A block has some strands of some ways (items), and moves a piece of whichever can go on; so a group ends with any
 * number of blocks, whatever the order of its messages. A block with a single strand waits in place. What a rank sends
 * to itself is copied without slots.
 *
 * Flags come again after 2^32 pieces. So now and then slots of both kinds are filled whole, as what a piece leaves
 * alone would keep an old flag. docs/models/messages.pml
 */
#ifndef FERRY_MESSAGES_ONCE
#define FERRY_MESSAGES_ONCE

/* What a block moves of a way in this kernel. */
struct ferry_strand {
	uint32_t way, peer;
	bool receives;
	uint32_t first;  /* of its pieces, among the way's in this kernel; the others come `strands` apart */
	uint32_t number; /* of the way's first piece */
	uint32_t known;  /* the receiver has read all pieces of lower numbers */
};

struct ferry_piece {
	uint32_t number;
	char *data;      /* the user's */
	uint32_t packed, lined;  /* bytes, as packets or as lines */
	uint32_t packets, lines; /* that are sent */
};

DEVICE struct ferry_strand ferry_find_strand(const struct ferry_kernel_messages *m, uint32_t item)
{
	struct ferry_strand strand = {0};
	UNROLL
	for (uint32_t way = 1; way < FERRY_MESSAGE_WAYS; way++)
		strand.way += item >= m->items[way];
	strand.receives = strand.way >= FERRY_KERNEL_RANKS;
	strand.peer = strand.way % FERRY_KERNEL_RANKS;
	strand.first = item - m->items[strand.way];
	strand.number = ferry_load32(&m->call.state->moved[strand.way]);
	strand.known = ferry_load32(&m->call.state->known[strand.peer]);
	return strand;
}

DEVICE struct ferry_kernel_message ferry_message_at(const struct ferry_kernel_messages *m, uint32_t which)
{
	return m->table ? m->table[which] : m->messages[which];
}

/* index: of the way's pieces in this kernel. */
DEVICE struct ferry_piece ferry_find_piece(const struct ferry_kernel_messages *m, const struct ferry_strand *strand,
                                           uint32_t index)
{
	const uint32_t slots = FERRY_MESSAGE_SLOTS(m->call.out_shared);
	struct ferry_piece piece = {.number = strand->number + index};
	struct ferry_kernel_message message;
	uint32_t which = 0;
	ROLL
	for (;; which++) {
		message = ferry_message_at(m, m->first[strand->way] + which);
		const uint32_t pieces = (message.bytes + message.piece - 1) / message.piece;
		if (index < pieces)
			break;
		index -= pieces;
	}
	const uint32_t at = index * message.piece, left = message.bytes - at;
	const bool by_lines = message.piece == FERRY_MESSAGE_LINES;
	piece.data = message.buffer + at;
	const uint32_t bytes = left < message.piece ? left : message.piece;
	piece.packed = by_lines ? 0 : bytes;
	piece.lined = by_lines ? bytes : 0;
	piece.packets = (piece.packed + 7) / 8;
	piece.lines = (piece.lined + LINE_BYTES - 1) / LINE_BYTES;
	if ((~piece.number & (FERRY_KERNEL_SWEEP - 1)) < slots) { /* not the first ones */
		piece.packets = FERRY_MESSAGE_SLOT / 16;
		piece.lines = m->call.out_shared ? 0 : FERRY_MESSAGE_SLOT / 128;
	}
	return piece;
}

/* The piece's slot of packets, as either end reaches it; its slot of lines is as many slots behind. */
DEVICE char *ferry_slot(const struct ferry_kernel_call *c, const struct ferry_strand *strand, uint32_t number)
{
	const uint32_t slots = FERRY_MESSAGE_SLOTS(c->out_shared), receiver = strand->receives ? c->rank : strand->peer;
	char *box = strand->receives ? (char *)(uintptr_t)c->in[strand->peer] : c->out[strand->peer];
	return box + FERRY_BOX_SLOTS(c->box_bytes) +
	       FERRY_MESSAGE_SLOT * (uint64_t)((c->out_shared ? receiver * slots : 0) + number % slots);
}

/* The words of the way's receiver: what it reads next, by strand. */
DEVICE uint32_t *ferry_read_words_of(const struct ferry_kernel_call *c, const struct ferry_strand *strand)
{
	const uint32_t sender = strand->receives ? strand->peer : c->rank;
	const char *box = !strand->receives == !c->out_shared ? c->out[strand->peer] : c->in[strand->peer];
	return (uint32_t *)(uintptr_t)(box + FERRY_BOX_READ(c->box_bytes) + (c->out_shared ? 128 * sender : 0));
}

DEVICE uint32_t ferry_less_read(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0 ? a : b;
}

/*
 * By one lane, of the receiver's words. Returns the number below which it has read all pieces. Four words at a time: in
 * host memory a GPU reads words of one line one after the other, 0.6 us each.
 */
APART uint32_t ferry_least_read(const uint32_t *words, uint32_t strands)
{
	struct ferry_vector four[FERRY_MESSAGE_STRANDS(0) / 4];
	UNROLL
	for (uint32_t i = 0; i < FERRY_MESSAGE_STRANDS(0) / 4; i++)
		if (4 * i < strands)
			four[i] = ferry_load_packet((const char *)(words + 4 * i));
	uint32_t least = (uint32_t)four[0].low;
	UNROLL
	for (uint32_t i = 0; i < FERRY_MESSAGE_STRANDS(0) / 4; i++)
		if (4 * i < strands) {
			least = ferry_less_read((uint32_t)four[i].low, least);
			least = ferry_less_read((uint32_t)(four[i].low >> 32), least);
			least = ferry_less_read((uint32_t)four[i].high, least);
			least = ferry_less_read((uint32_t)(four[i].high >> 32), least);
		}
	return least;
}

DEVICE uint32_t ferry_ask_credit(const struct ferry_kernel_call *c, const struct ferry_strand *strand)
{
	uint32_t read = ferry_least_read(ferry_read_words_of(c, strand), FERRY_MESSAGE_STRANDS(c->out_shared));
	ferry_store32(&c->state->credit[strand->peer], read);
	return read;
}

/* Whether the piece's slot is free, when the receiver has read all pieces below `read`. */
DEVICE bool ferry_is_free(const struct ferry_kernel_call *c, uint32_t number, uint32_t read)
{
	return (int32_t)(number - read) < (int32_t)FERRY_MESSAGE_SLOTS(c->out_shared);
}

/* Whether the piece has begun to come, as packets or as lines. */
DEVICE bool ferry_has_come(const struct ferry_kernel_call *c, const char *slot, uint32_t flag)
{
	if (ferry_is_packet(ferry_load_packet(slot), flag))
		return true;
	return !c->out_shared && ferry_load_packet(slot + FERRY_MESSAGE_SLOTS(0) * FERRY_MESSAGE_SLOT + 112).high ==
	                                 ferry_line_flag(flag);
}

/* Whether the block can move the piece now. waits: returns only when it can; it waits for packets as it moves them. */
DEVICE bool ferry_can_move(const struct ferry_kernel_call *c, struct ferry_course *course,
                           const struct ferry_strand *strand, uint32_t number, bool waits, uint32_t *misses)
{
	bool can = strand->receives ? waits : ferry_is_free(c, number, strand->known);
	if (can)
		return true;
	EACH_LANE (lane) {
		if (lane)
			continue;
		do {
			can = strand->receives ? ferry_has_come(c, ferry_slot(c, strand, number), number + 1)
			                       : ferry_is_free(c, number, ferry_ask_credit(c, strand));
			if (!can)
				ferry_miss(c, course, c->in[strand->peer], misses);
			can |= course->given_up;
		} while (waits && !can);
	}
	return ferry_any_of_block(can);
}

DEVICE void ferry_move_lines(const struct ferry_kernel_call *c, struct ferry_course *course,
                             const struct ferry_strand *strand, const struct ferry_piece *piece, uint32_t granule)
{
	char *slot = ferry_slot(c, strand, piece->number) + FERRY_MESSAGE_SLOTS(0) * FERRY_MESSAGE_SLOT;
	const uint32_t flag = piece->number + 1;
	EACH_LANE (lane)
		for (uint32_t line = lane / LINE_LANES; line < piece->lines; line += THREADS / LINE_LANES)
			EACH_PART (j) {
				char *at = slot + 128 * line;
				if (strand->receives)
					ferry_write_part(piece->data, piece->lined, line, j, granule,
					                 ferry_await_part(c, course, flag, at, j,
					                                  ferry_look_at_part(at, j)));
				else
					ferry_store_part(at, j, ferry_read_part(ferry_line_flag(flag), piece->data,
					                                        piece->lined, line, j, granule));
			}
}

DEVICE void ferry_move(const struct ferry_kernel_call *c, struct ferry_course *course,
                       const struct ferry_strand *strand, const struct ferry_piece *piece)
{
	const uint32_t flag = piece->number + 1;
	const uint32_t granule = ferry_granule((uint64_t)(uintptr_t)piece->data);
	char *slot = ferry_slot(c, strand, piece->number);
	EACH_LANE (lane) {
		for (uint32_t i = lane; i < piece->packets; i += THREADS) {
			const bool within = 8 * i < piece->packed;
			uint64_t word = 0;
			if (strand->receives)
				word = ferry_await_packet(c, course, slot + 16 * i, flag);
			else if (within)
				word = ferry_read_word(piece->data, 8 * i, piece->packed, granule);
			if (!strand->receives)
				ferry_send_packet(slot + 16 * i, word, flag);
			else if (within)
				ferry_write_word(piece->data, 8 * i, piece->packed, granule, word);
		}
	}
	ferry_move_lines(c, course, strand, piece, granule);
	if (!strand->receives)
		return;
	BARRIER();
	const uint32_t strands = FERRY_MESSAGE_STRANDS(c->out_shared);
	EACH_LANE (lane)
		if (lane == 0)
			ferry_store32(ferry_read_words_of(c, strand) + piece->number % strands,
			              piece->number + strands);
}

/*
 * Copies what the rank sends to itself: by the blocks without a send, which would only wait, where each block has one
 * item at most; else by all.
 */
DEVICE void ferry_copy_own(const struct ferry_kernel_messages *m)
{
	const uint32_t rank = m->call.rank, sends = m->items[FERRY_KERNEL_RANKS];
	const uint32_t begin = m->items[FERRY_MESSAGE_WAYS] <= BLOCKS && sends < BLOCKS ? sends : 0;
	const uint32_t count = m->first[rank + 1] - m->first[rank];
	for (uint32_t which = 0; BLOCK >= begin && which < count; which++) {
		const struct ferry_kernel_message message = ferry_message_at(m, m->first[rank] + which);
		char *to = ferry_message_at(m, m->first[FERRY_KERNEL_RANKS + rank] + which).buffer;
		const uint32_t granule = ferry_granule((uint64_t)(uintptr_t)message.buffer | (uint64_t)(uintptr_t)to);
		EACH_LANE (lane)
			for (uint32_t at = 16 * ((BLOCK - begin) * THREADS + lane); at < message.bytes;
			     at += 16 * (BLOCKS - begin) * THREADS)
				ferry_write_vector(to, at, message.bytes, granule,
				                   ferry_read_vector(message.buffer, at, message.bytes, granule));
	}
}

/* As ferry_leave: the last block to come counts what the kernel has moved. */
DEVICE void ferry_leave_messages(const struct ferry_kernel_messages *m, const struct ferry_course *course)
{
	struct ferry_kernel_state *state = m->call.state;
	bool last = false;
	BARRIER();
	EACH_LANE (lane)
		if (lane == 0)
			last = ferry_arrive(&state->arrived);
	if (!ferry_any_of_block(last))
		return;
	EACH_LANE (lane) {
		if (lane < FERRY_MESSAGE_WAYS)
			ferry_store32(&state->moved[lane], ferry_load32(&state->moved[lane]) + m->pieces[lane]);
		if (lane < FERRY_KERNEL_RANKS)
			ferry_store32(&state->known[lane], ferry_load32(&state->credit[lane]));
		ferry_fence();
	}
	BARRIER();
	EACH_LANE (lane)
		if (lane == 0)
			ferry_count(&m->call, course);
}

#endif

KERNEL(NAME(messages), 1024, ferry_kernel_messages)
{
	const struct ferry_kernel_call *c = &call.call;
	SHARED uint32_t moved[FERRY_MESSAGE_WAYS * FERRY_MESSAGE_STRANDS(0)]; /* pieces of each of several items */
	const uint32_t strands = FERRY_MESSAGE_STRANDS(c->out_shared);
	struct ferry_course course = ferry_enter(c, c);
	uint32_t done = 0, misses = 0;
	if (c->awaits)
		ferry_fence(); /* what the call that it has waited for has moved */
	course.flag = 0; /* it is no call */
	course.waits = FERRY_KERNEL_MESSAGE_WAITS;
	EACH_LANE (lane)
		for (uint32_t i = lane; i < call.puts; i += THREADS)
			call.table[call.puts_at + i] = call.messages[i];
	const bool over = c->awaits && ferry_any_of_block(course.given_up); /* lanes may see another state each */
	const uint32_t own = BLOCK < call.items[FERRY_MESSAGE_WAYS]
	                             ? (call.items[FERRY_MESSAGE_WAYS] - BLOCK + BLOCKS - 1) / BLOCKS
	                             : 0;
	if (own > 1)
		EACH_LANE (lane)
			for (uint32_t i = lane; i < own; i += THREADS)
				moved[i] = 0;
	if (own > 1)
		BARRIER();
	if (!over)
		ferry_copy_own(&call);
	struct ferry_strand strand = ferry_find_strand(&call, BLOCK);
	for (uint32_t i = 0, left = over ? 0 : own; left; i = i + 1 < own ? i + 1 : 0) {
		if (own > 1) {
			strand = ferry_find_strand(&call, BLOCK + i * BLOCKS);
			done = moved[i];
		}
		const uint32_t index = strand.first + done * strands;
		if (index >= call.pieces[strand.way] ||
		    !ferry_can_move(c, &course, &strand, strand.number + index, own == 1, &misses))
			continue;
		const struct ferry_piece piece = ferry_find_piece(&call, &strand, index);
		ferry_move(c, &course, &strand, &piece);
		done++;
		left -= index + strands >= call.pieces[strand.way];
		if (own == 1)
			continue;
		BARRIER();
		EACH_LANE (lane)
			if (lane == 0)
				moved[i] = done;
		BARRIER();
	}
	ferry_leave_messages(&call, &course);
}
