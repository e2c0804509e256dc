/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/ledger.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define URGENT 6 /* samples of a size; behind them it is still learned, from all ranks */

/* Adopts what an earlier job with the same settings has learned. */
static void adopt_kept(struct ferry_ledger *ledger, uint64_t signature)
{
	struct ferry_share_table *table = ledger->table;
	struct ferry_share_course course;
	for (int i = 0; i < FERRY_SHARE_SAVED; i++)
		for (int j = 0; j < FERRY_SHARE_COURSES; j++)
			if (atomic_load_explicit(&table->saved_signatures[i], memory_order_relaxed) == signature &&
			    ferry_share_course_read(&table->saved[i][j], &course))
				ferry_balancer_adopt(&ledger->balancer, &course);
}

void ferry_ledger_open(struct ferry_ledger *ledger, struct ferry_share_table *table, uint32_t nranks, uint32_t self,
                       uint64_t signature, const struct ferry_balancer_rules *rules)
{
	memset(ledger, 0, sizeof *ledger);
	ledger->table = table;
	ledger->self = self;
	ledger->nranks = nranks;
	ferry_balancer_init(&ledger->balancer, rules);
	adopt_kept(ledger, signature);
	if (self)
		return;
	atomic_store_explicit(&table->signature, signature, memory_order_relaxed);
	const char *path = ferry_env("FERRY_SHARES_LOG");
	if (path && !(ledger->log = fopen(path, "ae")))
		ferry_log(FERRY_LOG_WARN, "FERRY_SHARES_LOG=%s: %s", path, strerror(errno));
}

void ferry_ledger_close(struct ferry_ledger *ledger)
{
	if (ledger->log)
		fclose(ledger->log);
	ledger->log = NULL;
}

/* ---- what is proposed ---- */

/* The line of the table, if rank 0 has made it. */
static bool find_line(struct ferry_ledger *ledger, const struct ferry_balancer_call *call,
                      struct ferry_share_line *line)
{
	uint8_t size_class = ferry_balancer_size_class(call->bytes);
	uint8_t *place = &ledger->places[ferry_balancer_place(call, size_class)];
	for (uint32_t i = 0; i < FERRY_SHARE_LINES; i++) {
		uint32_t at = (*place + i) % FERRY_SHARE_LINES;
		if (!ferry_share_line_read(&ledger->table->lines[at], line) || line->size_class != size_class ||
		    line->collective != call->collective || line->type != call->type)
			continue;
		*place = (uint8_t)at;
		return true;
	}
	return false;
}

static void write_line(struct ferry_ledger *ledger, const struct ferry_balancer_line *line)
{
	struct ferry_balancer *balancer = &ledger->balancer;
	struct ferry_shares shares = ferry_shares_unpack(line->word);
	struct ferry_share_course course;
	struct ferry_paces paces;
	ferry_balancer_paces(balancer, line, &paces);
	struct ferry_share_line logged = {.collective = line->collective,
	                                  .type = line->type,
	                                  .size_class = line->size_class,
	                                  .why = line->why,
	                                  .samples = line->samples,
	                                  .word = line->word,
	                                  .probe = line->probe,
	                                  .probe_every = line->probe_every,
	                                  .interval = line->interval,
	                                  .bytes = line->bytes,
	                                  .us = ferry_division_us(&paces, (double)line->bytes, &shares)};
	memcpy(logged.paces, paces.in[ferry_division_set(&shares)], sizeof logged.paces);
	ferry_share_line_write(&ledger->table->lines[line - balancer->lines], &logged);
	ferry_balancer_record(balancer, line, &course);
	for (int i = 0; i < FERRY_SHARE_COURSES; i++)
		if (balancer->courses[i].used && balancer->courses[i].collective == line->collective &&
		    balancer->courses[i].type == line->type)
			ferry_share_course_write(&ledger->table->courses[i], &course);
}

/* Other ranks know of a new size what rank 0 has learned from others. */
static void adopt_learned(struct ferry_ledger *ledger)
{
	struct ferry_share_course course;
	for (int i = 0; i < FERRY_SHARE_COURSES; i++)
		if (!(ledger->adopted >> i & 1) && ferry_share_course_read(&ledger->table->courses[i], &course)) {
			ferry_balancer_adopt(&ledger->balancer, &course);
			ledger->adopted |= 1u << i;
		}
}

static bool does_learn(const struct ferry_ledger *ledger, const struct ferry_balancer_call *call)
{
	const struct ferry_balancer_rules *rules = &ledger->balancer.rules;
	return !rules->pinned && (double)call->bytes >= rules->least_bytes;
}

uint32_t ferry_ledger_propose(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint64_t n,
                              uint32_t trying, bool *measure)
{
	struct ferry_balancer *balancer = &ledger->balancer;
	struct ferry_share_line line;
	bool learns = does_learn(ledger, call);
	struct ferry_balancer_line *own;
	if (learns && ledger->self && find_line(ledger, call, &line) && (own = ferry_balancer_line(balancer, call))) {
		/* rank 0 has not published yet how the last try went */
		bool waits = own->tried && own->tried == line.samples + 1;
		bool probe = ferry_balancer_probes(own, line.probe_every, n, trying + waits);
		*measure = own->due || ferry_balancer_picks(n, line.interval);
		return probe ? line.probe : line.word;
	}
	if (learns && ledger->self)
		adopt_learned(ledger);
	uint32_t lines = balancer->nlines;
	uint32_t word = ferry_balancer_propose(balancer, call, n, trying + ledger->npending);
	*measure = ferry_balancer_measures(balancer, call, n);
	/* so that all begin with the same, and with one plan */
	if (!ledger->self && balancer->nlines != lines)
		write_line(ledger, &balancer->lines[lines]);
	return word;
}

/* What this rank knows of a size: its line, and what rank 0 tries there. NULL: nothing is learned. */
static struct ferry_balancer_line *own_line(struct ferry_ledger *ledger, const struct ferry_balancer_call *call,
                                            struct ferry_share_line *line)
{
	bool learns = does_learn(ledger, call);
	struct ferry_balancer_line *own = learns ? ferry_balancer_line(&ledger->balancer, call) : NULL;
	if (own && !(ledger->self && find_line(ledger, call, line)))
		*line = (struct ferry_share_line){.word = own->word,
		                                  .probe = own->probe,
		                                  .probe_every = own->probe_every,
		                                  .samples = own->samples};
	return own;
}

static uint32_t fabrics_of(uint32_t word)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	return ferry_division_set(&shares);
}

uint32_t ferry_ledger_other(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint32_t word)
{
	struct ferry_share_line line;
	const struct ferry_balancer_line *own = own_line(ledger, call, &line);
	if (!own)
		return FERRY_SHARES_NONE;
	if (word != line.word) /* a try */
		return line.word;
	if (word != FERRY_SHARES_NONE && fabrics_of(own->had) == fabrics_of(word))
		return own->had;
	if (word != FERRY_SHARES_NONE)
		return fabrics_of(line.probe) == fabrics_of(word) ? line.probe : FERRY_SHARES_NONE;
	return line.probe_every == FERRY_BALANCER_TRY || !line.samples ? line.probe : FERRY_SHARES_NONE;
}

void ferry_ledger_agreed(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint32_t word)
{
	struct ferry_share_line line;
	struct ferry_balancer_line *own = own_line(ledger, call, &line);
	if (own && word != FERRY_SHARES_NONE)
		own->had = word;
}

bool ferry_ledger_tries(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint32_t word)
{
	struct ferry_share_line line;
	struct ferry_balancer_line *own = own_line(ledger, call, &line);
	bool tries = own && word == line.probe && word != line.word;
	if (!tries)
		return false;
	ferry_balancer_probed(own);
	own->tried = line.samples + 1;
	return true;
}

/* ---- what is learned ---- */

/* A line of JSON, as ferry-plot --shares draws it. */
void ferry_ledger_log(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint64_t n, uint32_t word,
                      const double us[FERRY_NUM_FABRICS], const char *why)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	if (!ledger->log)
		return;
	fprintf(ledger->log, "{\"call\":%" PRIu64 ",\"collective\":\"%s\",\"type\":\"%s\",\"bytes\":%" PRIu64, n,
	        ferry_collective_name(call->collective), ferry_type_name(call->type), call->bytes);
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		const char *name = ferry_fabric_name((enum ferry_fabric)c);
		fprintf(ledger->log, ",\"%s\":%.4f", name, (double)shares.part[c] / FERRY_SHARES_WHOLE);
		if (us[c] > 0)
			fprintf(ledger->log, ",\"%s_us\":%.1f", name, us[c]);
	}
	fprintf(ledger->log, ",\"us\":%.1f,\"why\":\"%s\"}\n", fmax(us[0], fmax(us[1], us[2])), why);
}

/*
 * The slowest rank's time of each part. Returns false if a rank has not reported it; with `late` such ranks are left
 * out.
 */
static bool slowest(const struct ferry_ledger *ledger, uint64_t n, bool late, double us[FERRY_NUM_FABRICS])
{
	memset(us, 0, FERRY_NUM_FABRICS * sizeof *us);
	for (uint32_t rank = 0; rank < ledger->nranks; rank++) {
		double one[FERRY_NUM_FABRICS];
		bool logged = ferry_share_times_read(ledger->table, rank, n, one);
		if (!logged && !late)
			return false;
		for (int c = 0; c < FERRY_NUM_FABRICS && logged; c++)
			us[c] = fmax(us[c], one[c]);
	}
	return true;
}

/* Each of a size's first calls counts, and ranks that report one with their next call come too late for that. */
static bool is_urgent(struct ferry_ledger *ledger, const struct ferry_balancer_call *call)
{
	const struct ferry_balancer_line *line = ferry_balancer_line(&ledger->balancer, call);
	return line && line->samples < URGENT;
}

/* In their order, which is that in which bursts come and go. */
void ferry_ledger_feed(struct ferry_ledger *ledger)
{
	uint32_t fed = 0;
	for (; fed < ledger->npending; fed++) {
		const struct ferry_ledger_pending *oldest = &ledger->pending[fed];
		double us[FERRY_NUM_FABRICS];
		bool late = ledger->npending - fed == FERRY_LEDGER_PENDING || is_urgent(ledger, &oldest->call);
		if (!slowest(ledger, oldest->n, late, us))
			break;
		ferry_balancer_feed(&ledger->balancer, &oldest->call, oldest->word, us);
		const struct ferry_balancer_line *line = ferry_balancer_line(&ledger->balancer, &oldest->call);
		if (line)
			write_line(ledger, line);
		ferry_ledger_log(ledger, &oldest->call, oldest->n, oldest->word, us,
		                 line ? ferry_balance_name((enum ferry_balance)line->why) : "");
	}
	ledger->npending -= fed;
	memmove(ledger->pending, ledger->pending + fed, ledger->npending * sizeof *ledger->pending);
}

void ferry_ledger_record(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint64_t n, uint32_t word,
                         const double us[FERRY_NUM_FABRICS])
{
	if (!does_learn(ledger, call))
		return;
	ferry_share_times_write(ledger->table, ledger->self, n, us);
	if (ledger->self)
		return;
	ledger->pending[ledger->npending++] = (struct ferry_ledger_pending){*call, n, word};
	ferry_ledger_feed(ledger);
}
