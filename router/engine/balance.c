/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/balance.h"

#include <stdlib.h>
#include <string.h>

#define CLOSE 1000         /* a gain below 1 / CLOSE of the worst time counts as none */
#define NEAR 32            /* a resource within 1 / NEAR of the worst time is relieved in the same round */
#define MOST_STALE 8       /* rounds in a row without a gain end the search */
#define MOVES 3            /* off a resource by one look at its paths, as most of the time is spent on looking */
#define LOOKS_PER_RANK 400 /* a million instructions with 16 ranks */
#define MOST_LOOKERS 16    /* ranks; more have no more looks */
#define MOST_UNITS 32      /* bits: all traffic in units fits in so many, and a load times its weight in 60 */
#define PRICED_BITS 12     /* of a time make its price, so that a path of 200 resources has one of 32 bits */
#define PATH_BITS 8        /* of a score: a pair has no more paths than so many bits can tell */
#define GRAIN 65536u       /* bytes: a part of a flow moves in multiples of this, so that pieces begin at pages */

bool ferry_balance_open(struct ferry_balancer *balance, const struct ferry_paths *paths)
{
	*balance = (struct ferry_balancer){.paths = paths};
	balance->flow = calloc(paths->npaths + 1, sizeof *balance->flow);
	balance->load = calloc(paths->nresources + 1, sizeof *balance->load);
	balance->hidden = calloc(paths->nresources + 1, sizeof *balance->hidden);
	balance->sources = calloc(paths->npaths + 1, sizeof *balance->sources);
	if (balance->flow && balance->load && balance->hidden && balance->sources)
		return true;
	ferry_balance_close(balance);
	return false;
}

void ferry_balance_close(struct ferry_balancer *balance)
{
	free(balance->flow);
	free(balance->load);
	free(balance->hidden);
	free(balance->sources);
	*balance = (struct ferry_balancer){0};
}

static uint64_t most_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t worst(const struct ferry_balancer *balance)
{
	uint64_t most = 0;
	for (uint32_t r = 0; r < balance->paths->nresources; r++)
		most = most_of(balance->load[r].time, most);
	return most;
}

/* The square of the time, as what a unit more costs there. */
static uint32_t price_of(const struct ferry_balancer *balance, uint64_t time)
{
	uint32_t priced = (uint32_t)(time >> balance->price_shift);
	return priced * priced;
}

/* Chooses how many bits of a time make its price, so that the worst time has PRICED_BITS of them. */
static void choose_prices(struct ferry_balancer *balance)
{
	uint32_t shift = 0;
	while (balance->worst >> shift >> PRICED_BITS)
		shift++;
	if (shift == balance->price_shift)
		return;
	balance->price_shift = shift;
	for (uint32_t r = 0; r < balance->paths->nresources; r++)
		balance->load[r].price = price_of(balance, balance->load[r].time);
}

static const uint16_t *uses_of(const struct ferry_paths *paths, uint32_t path)
{
	return paths->uses + paths->paths[path].first_use;
}

/* Adds units to the path and to the loads of its resources; a negative count, wrapped, takes them away. */
static void put_on(struct ferry_balancer *balance, uint32_t path, uint64_t units)
{
	const uint16_t *uses = uses_of(balance->paths, path);
	balance->flow[path] += units;
	for (uint32_t i = 0; i < balance->paths->paths[path].nuses; i++) {
		struct ferry_load *load = &balance->load[uses[i]];
		load->time += units * load->weight;
		load->price = price_of(balance, load->time);
	}
}

/* ---- moves ---- */

struct move {
	uint32_t from, to; /* paths of a pair */
	uint64_t score;    /* time that it moves, by what it saves; 0: no move */
};

/* What a flow has to move off the resource, as the time that this takes on it and on a resource of the fastest. */
struct source {
	uint32_t resource, path;
	uint64_t least; /* of the least piece */
	uint64_t all;   /* of the flow */
	uint64_t most;  /* that leaves a least piece */
	uint64_t close; /* what is less gains nothing (CLOSE) */
	uint64_t saves; /* the prices where the flow is */
};

/*
 * Takes the times of what the path uses out of the loads, as a move to another path of its pair changes nothing where
 * both are: but that of the resource, which is to be left. Returns the sum of the prices.
 */
static uint64_t hide(struct ferry_balancer *balance, uint32_t resource, uint32_t path)
{
	const uint16_t *uses = uses_of(balance->paths, path);
	uint64_t price = 0;
	for (uint32_t i = 0; i < balance->paths->paths[path].nuses; i++) {
		struct ferry_load *load = &balance->load[uses[i]];
		price += load->price;
		balance->hidden[i] = load->time;
		load->time = uses[i] == resource ? load->time : 0;
	}
	return price;
}

static void unhide(struct ferry_balancer *balance, uint32_t path)
{
	const uint16_t *uses = uses_of(balance->paths, path);
	for (uint32_t i = 0; i < balance->paths->paths[path].nuses; i++)
		balance->load[uses[i]].time = balance->hidden[i];
}

/* Keeps the moves in the order of their scores. The last one goes. */
static void keep(struct move *moves, const struct move *move)
{
	uint32_t at = MOVES - 1;
	if (move->score <= moves[at].score)
		return;
	for (; at && moves[at - 1].score < move->score; at--)
		moves[at] = moves[at - 1];
	moves[at] = *move;
}

/* The score of a move to the path, of which `busiest` is the most loaded resource; 0: it must not, or gains nothing. */
static uint64_t score_of(const struct ferry_balancer *balance, const struct source *source, uint32_t to,
                         uint64_t busiest, uint64_t price)
{
	uint64_t time = balance->load[source->resource].time, room = time - least_of(time, busiest);
	uint64_t moved = room >= source->all ? source->all : least_of(room, source->most);
	bool may = (moved >= source->close) & ((balance->flow[to] > 0) | (moved >= source->least));
	uint64_t gain = source->saves - least_of(price, source->saves - 1);
	return (gain * (moved >> balance->price_shift)) & -(uint64_t)may;
}

/*
 * Looks where the flow of the source, which is hidden, can go, and keeps the best moves. It has no division, nor a
 * branch that depends on loads: half of them would be predicted wrong. So scores carry their path in the low bits.
 */
static void look(struct ferry_balancer *balance, const struct source *source, struct move *moves)
{
	const struct ferry_paths *paths = balance->paths;
	const struct ferry_load *loads = balance->load;
	uint32_t pair = paths->pair[source->path], first = paths->first[pair], end = paths->first[pair + 1];
	const uint16_t *uses = uses_of(paths, first);
	uint64_t best[MOVES] = {0};
	balance->looks += end - first - 1;
	for (uint32_t to = first; to < end; to++) {
		uint64_t busiest = 0, price = 0;
		for (const uint16_t *last = uses + paths->paths[to].nuses; uses < last; uses++) {
			busiest = most_of(loads[*uses].time, busiest);
			price += loads[*uses].price;
		}
		uint64_t score = score_of(balance, source, to, busiest, price) << PATH_BITS | (to - first);
		for (uint32_t i = 0; i < MOVES; i++) {
			uint64_t lower = least_of(best[i], score);
			best[i] = most_of(best[i], score);
			score = lower;
		}
	}
	for (uint32_t i = 0; i < MOVES; i++) {
		uint32_t to = first + (uint32_t)(best[i] & ((1u << PATH_BITS) - 1));
		keep(moves, &(struct move){source->path, to, best[i] >> PATH_BITS});
	}
}

/*
 * A unit saves the price of what it leaves, and costs that of what it loads. The worst time's price is added, because
 * a move relieves the resource even where two hops cost more than the one.
 */
static void look_from(struct ferry_balancer *balance, uint32_t resource, uint32_t path, struct move *moves)
{
	uint32_t weight = balance->load[resource].weight, both = weight + FERRY_UNIT_WEIGHT;
	uint64_t flow = balance->flow[path];
	struct source source = {.resource = resource,
	                        .path = path,
	                        .least = balance->least * both,
	                        .all = flow * both,
	                        .most = (flow - balance->least) * both,
	                        .close = balance->worst / CLOSE / weight * both};
	source.saves = hide(balance, resource, path) + price_of(balance, balance->worst);
	look(balance, &source, moves);
	unhide(balance, path);
}

/* Cuts a move so that no path is left with, or gets, less than the least piece. */
static uint64_t cut(const struct ferry_balancer *balance, const struct move *move, uint64_t units)
{
	uint64_t flow = balance->flow[move->from], grain = GRAIN >> balance->shift ? GRAIN >> balance->shift : 1;
	if (units < flow) {
		uint64_t keep = flow - balance->least;
		units = flow < balance->least ? 0 : units < keep ? units : keep;
		units &= ~(grain - 1); /* a power of two */
	}
	return balance->flow[move->to] + units >= balance->least ? units : 0;
}

/* Units that can move, the path that they leave hidden, before anything there is as busy as the resource. */
static uint64_t movable(const struct ferry_balancer *balance, uint32_t resource, const struct move *move)
{
	const struct ferry_load *left = &balance->load[resource];
	const uint16_t *uses = uses_of(balance->paths, move->to);
	uint64_t most = balance->flow[move->from];
	for (uint32_t i = 0; i < balance->paths->paths[move->to].nuses; i++) {
		const struct ferry_load *load = &balance->load[uses[i]];
		uint64_t both = left->weight + load->weight;
		if (load->time >= left->time)
			return 0;
		if (left->time - load->time < most * both)
			most = (left->time - load->time) / both;
	}
	return cut(balance, move, most);
}

/* False: the move gains nothing any more, as others came before it. */
static bool make(struct ferry_balancer *balance, uint32_t resource, const struct move *move)
{
	hide(balance, resource, move->from);
	uint64_t units = movable(balance, resource, move);
	unhide(balance, move->from);
	if (!units || units * balance->load[resource].weight < balance->worst / CLOSE)
		return false;
	put_on(balance, move->from, -units);
	put_on(balance, move->to, units);
	return true;
}

/* Makes the best moves off the resource. False: there is none. */
static bool relieve(struct ferry_balancer *balance, uint32_t resource)
{
	const struct ferry_paths *paths = balance->paths;
	struct move moves[MOVES] = {0};
	bool moved = false;
	uint32_t count = 0;
	for (uint32_t i = paths->first_user[resource]; i < paths->first_user[resource + 1]; i++) {
		balance->sources[count] = paths->users[i];
		count += balance->flow[paths->users[i]] >= balance->least;
	}
	for (uint32_t i = 0; i < count; i++)
		look_from(balance, resource, balance->sources[i], moves);
	for (uint32_t i = 0; i < MOVES && moves[i].score; i++)
		moved |= make(balance, resource, &moves[i]);
	return moved;
}

/* ---- a plan ---- */

static void choose_units(struct ferry_balancer *balance, const uint64_t *bytes)
{
	uint64_t all = 0;
	uint32_t n = balance->paths->nranks;
	for (uint32_t pair = 0; pair < n * n; pair++)
		all += bytes[pair];
	balance->shift = 0;
	while (all >> balance->shift >> MOST_UNITS)
		balance->shift++;
	balance->least = FERRY_LEAST_PIECE >> balance->shift ? FERRY_LEAST_PIECE >> balance->shift : 1;
}

static void go_direct(struct ferry_balancer *balance, const uint64_t *bytes)
{
	const struct ferry_paths *paths = balance->paths;
	memset(balance->flow, 0, paths->npaths * sizeof *balance->flow);
	for (uint32_t r = 0; r < paths->nresources; r++)
		balance->load[r] = (struct ferry_load){.weight = paths->resources[r].weight};
	for (uint32_t pair = 0; pair < paths->nranks * paths->nranks; pair++)
		if (paths->first[pair] < paths->first[pair + 1])
			put_on(balance, paths->first[pair], bytes[pair] >> balance->shift);
}

/* Turns units into bytes. The remainder that units cut off goes by the first path that the pair uses. */
static void to_bytes(struct ferry_balancer *balance, const uint64_t *bytes)
{
	const struct ferry_paths *paths = balance->paths;
	for (uint32_t pair = 0; balance->shift && pair < paths->nranks * paths->nranks; pair++) {
		uint64_t left = bytes[pair];
		uint32_t used = paths->first[pair];
		for (uint32_t p = paths->first[pair]; p < paths->first[pair + 1]; p++) {
			left -= balance->flow[p] <<= balance->shift;
			if (!balance->flow[used] && balance->flow[p])
				used = p;
		}
		if (paths->first[pair] < paths->first[pair + 1])
			balance->flow[used] += left;
	}
}

uint32_t ferry_balance_looks(uint32_t nranks)
{
	return LOOKS_PER_RANK * (nranks < MOST_LOOKERS ? nranks : MOST_LOOKERS);
}

static double us_of(const struct ferry_balancer *balance, uint64_t time)
{
	double bytes = (double)time * (double)(1ull << balance->shift) / FERRY_UNIT_WEIGHT;
	return bytes / ((double)balance->paths->fastest * 1e3);
}

double ferry_balance_busy_us(const struct ferry_balancer *balance, uint32_t resource)
{
	return us_of(balance, balance->load[resource].time);
}

void ferry_balance_plan(struct ferry_balancer *balance, const uint64_t *bytes)
{
	const struct ferry_paths *paths = balance->paths;
	uint32_t stale = 0, most_looks = ferry_balance_looks(paths->nranks);
	choose_units(balance, bytes);
	go_direct(balance, bytes);
	balance->looks = 0;
	balance->worst = worst(balance);
	balance->direct_us = us_of(balance, balance->worst);
	for (bool moved = true; moved && stale < MOST_STALE && balance->looks < most_looks;) {
		uint64_t before = balance->worst;
		moved = false;
		choose_prices(balance);
		for (uint32_t r = 0; r < paths->nresources && balance->looks < most_looks; r++)
			if (balance->load[r].time >= before - before / NEAR)
				moved |= relieve(balance, r);
		balance->worst = worst(balance);
		stale = balance->worst > before - before / CLOSE ? stale + 1 : 0;
	}
	balance->us = us_of(balance, balance->worst);
	to_bytes(balance, bytes);
}
