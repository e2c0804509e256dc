/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/balance.h"

#include <stdlib.h>
#include <string.h>

#define CLOSE 1000       /* a gain below 1 / CLOSE of the worst time counts as none */
#define NEAR 32          /* a resource within 1 / NEAR of the worst time is relieved in the same round */
#define MOST_STALE 8     /* rounds in a row without a gain end the search */
#define MOST_UNITS 32    /* bits: all traffic in units fits in so many, and a load times its weight in 60 */
#define GRAIN 65536u     /* bytes: a part of a flow moves in multiples of this, so that pieces begin at pages */

bool ferry_balance_open(struct ferry_balancer *balance, const struct ferry_paths *paths)
{
	*balance = (struct ferry_balancer){.paths = paths};
	balance->flow = calloc(paths->npaths + 1, sizeof *balance->flow);
	balance->load = calloc(paths->nresources + 1, sizeof *balance->load);
	balance->marked = calloc(paths->nresources + 1, sizeof *balance->marked);
	if (balance->flow && balance->load && balance->marked)
		return true;
	ferry_balance_close(balance);
	return false;
}

void ferry_balance_close(struct ferry_balancer *balance)
{
	free(balance->flow);
	free(balance->load);
	free(balance->marked);
	*balance = (struct ferry_balancer){0};
}

static uint64_t time_of(const struct ferry_balancer *balance, uint32_t resource)
{
	return balance->load[resource] * balance->paths->resources[resource].weight;
}

static uint64_t worst(const struct ferry_balancer *balance)
{
	uint64_t most = 0;
	for (uint32_t r = 0; r < balance->paths->nresources; r++)
		most = time_of(balance, r) > most ? time_of(balance, r) : most;
	return most;
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
	for (uint32_t i = 0; i < balance->paths->paths[path].nuses; i++)
		balance->load[uses[i]] += units;
}

/* ---- one move ---- */

struct move {
	uint32_t from, to; /* paths */
	uint64_t units;    /* 0: none */
	uint32_t hops;     /* of `to` */
};

static uint32_t hops_of(const struct ferry_paths *paths, uint32_t path)
{
	return paths->paths[path].hops ? paths->paths[path].hops : 2;
}

/* Units that can move to `path` before one of its resources is as loaded as `resource`; 0: it uses that, too. */
static uint64_t room_on(const struct ferry_balancer *balance, uint32_t resource, uint32_t path, uint64_t most)
{
	const struct ferry_paths *paths = balance->paths;
	const uint16_t *uses = uses_of(paths, path);
	uint64_t from = time_of(balance, resource), weight = paths->resources[resource].weight;
	for (uint32_t i = 0; i < paths->paths[path].nuses; i++) {
		uint32_t used = uses[i];
		if (used == resource)
			return 0;
		if (balance->marked[used])
			continue; /* loaded by both paths: nothing changes there */
		uint64_t to = time_of(balance, used);
		if (to >= from)
			return 0;
		uint64_t both = weight + paths->resources[used].weight;
		if (from - to < most * both)
			most = (from - to) / both;
	}
	return most;
}

/* Cuts a move so that no path is left with, or gets, less than the least piece. */
static uint64_t cut(const struct ferry_balancer *balance, uint32_t from, uint32_t to, uint64_t units)
{
	uint64_t flow = balance->flow[from], grain = GRAIN >> balance->shift ? GRAIN >> balance->shift : 1;
	if (units < flow) {
		uint64_t keep = flow - balance->least;
		units = flow < balance->least ? 0 : units < keep ? units : keep;
		units -= units % grain;
	}
	return balance->flow[to] + units >= balance->least ? units : 0;
}

static void mark(struct ferry_balancer *balance, uint32_t path, uint8_t value)
{
	const uint16_t *uses = uses_of(balance->paths, path);
	for (uint32_t i = 0; i < balance->paths->paths[path].nuses; i++)
		balance->marked[uses[i]] = value;
}

static void look_from(struct ferry_balancer *balance, uint32_t resource, uint32_t from, struct move *best)
{
	const struct ferry_paths *paths = balance->paths;
	uint32_t pair = paths->pair[from];
	mark(balance, from, 1);
	for (uint32_t to = paths->first[pair]; to < paths->first[pair + 1]; to++) {
		if (to == from)
			continue;
		balance->looks++;
		uint64_t units = cut(balance, from, to, room_on(balance, resource, to, balance->flow[from]));
		if (units && (!best->units || units * best->hops > best->units * hops_of(paths, to)))
			*best = (struct move){from, to, units, hops_of(paths, to)};
	}
	mark(balance, from, 0);
}

/* Makes the move that takes the most units per hop off the resource. False: no move gains enough (CLOSE). */
static bool relieve(struct ferry_balancer *balance, uint32_t resource)
{
	const struct ferry_paths *paths = balance->paths;
	struct move best = {0};
	for (uint32_t i = paths->first_user[resource]; i < paths->first_user[resource + 1]; i++)
		if (balance->flow[paths->users[i]] >= balance->least)
			look_from(balance, resource, paths->users[i], &best);
	if (!best.units || best.units * paths->resources[resource].weight < balance->worst / CLOSE)
		return false;
	put_on(balance, best.from, -best.units);
	put_on(balance, best.to, best.units);
	return true;
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
	memset(balance->load, 0, paths->nresources * sizeof *balance->load);
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

static double us_of(const struct ferry_balancer *balance, uint64_t time)
{
	double bytes = (double)time * (double)(1ull << balance->shift) / FERRY_UNIT_WEIGHT;
	return bytes / ((double)balance->paths->fastest * 1e3);
}

double ferry_balance_busy_us(const struct ferry_balancer *balance, uint32_t resource)
{
	return us_of(balance, time_of(balance, resource));
}

void ferry_balance_plan(struct ferry_balancer *balance, const uint64_t *bytes)
{
	const struct ferry_paths *paths = balance->paths;
	uint32_t stale = 0;
	choose_units(balance, bytes);
	go_direct(balance, bytes);
	balance->looks = 0;
	balance->worst = worst(balance);
	balance->direct_us = us_of(balance, balance->worst);
	for (bool moved = true; moved && stale < MOST_STALE && balance->looks < FERRY_BALANCE_LOOKS;) {
		uint64_t before = balance->worst;
		moved = false;
		for (uint32_t r = 0; r < paths->nresources && balance->looks < FERRY_BALANCE_LOOKS; r++)
			if (time_of(balance, r) >= before - before / NEAR && balance->load[r])
				moved |= relieve(balance, r);
		balance->worst = worst(balance);
		stale = balance->worst > before - before / CLOSE ? stale + 1 : 0;
	}
	balance->us = us_of(balance, balance->worst);
	to_bytes(balance, bytes);
}
