/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/paths.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT16_MAX
#define MOST_USES (3 * (FERRY_MAX_SHARED_LINKS + 4))
#define FEW_RELAYS 6
#define MOST_CROSSINGS 3 /* paths of three hops that a pair has */
#define MOST_WEIGHT (1u << 28)

struct maker {
	const struct ferry_links *links;
	const struct ferry_path_limits *limits;
	struct ferry_paths *paths;
	uint32_t nranks, nuses, use_room, path_room;
	uint16_t link[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
	uint16_t send[FERRY_MAX_RANKS], receive[FERRY_MAX_RANKS], relay[FERRY_MAX_RANKS], up[FERRY_MAX_RANKS],
	        down[FERRY_MAX_RANKS], shared[FERRY_MAX_SHARED_LINKS];
};

/* ---- resources ---- */

static uint16_t add_resource(struct maker *maker, enum ferry_resource_kind kind, uint32_t from, uint32_t to,
                             float speed)
{
	struct ferry_paths *paths = maker->paths;
	if (!(speed > 0))
		return NONE;
	paths->resources[paths->nresources] = (struct ferry_resource){
	        .kind = (uint8_t)kind, .from = (uint8_t)from, .to = (uint8_t)to, .speed = speed};
	if (speed > paths->fastest)
		paths->fastest = speed;
	return (uint16_t)paths->nresources++;
}

/* Whether the link can be the slowest part of a path: no port at its ends, and no shared link of it, is as slow. */
static bool decides(const struct ferry_links *links, uint32_t from, uint32_t to)
{
	float speed = links->speed[from][to];
	if ((links->port[from] > 0 && links->port[from] <= speed) || (links->port[to] > 0 && links->port[to] <= speed))
		return false;
	for (uint64_t left = links->through[from][to]; left; left &= left - 1)
		if (links->shared[__builtin_ctzll(left)] <= speed)
			return false;
	return true;
}

/* A port receives as much as it sends. */
static void add_resources(struct maker *maker)
{
	const struct ferry_links *links = maker->links;
	for (uint32_t from = 0; from < maker->nranks; from++) {
		for (uint32_t to = 0; to < maker->nranks; to++)
			maker->link[from][to] =
			        decides(links, from, to)
			                ? add_resource(maker, FERRY_RESOURCE_LINK, from, to, links->speed[from][to])
			                : NONE;
		maker->send[from] = add_resource(maker, FERRY_RESOURCE_SEND, from, from, links->port[from]);
		maker->receive[from] = add_resource(maker, FERRY_RESOURCE_RECEIVE, from, from, links->port[from]);
		maker->relay[from] = add_resource(maker, FERRY_RESOURCE_RELAY, from, from, maker->limits->relay);
		maker->up[from] = add_resource(maker, FERRY_RESOURCE_UP, from, from, maker->limits->up);
		maker->down[from] = add_resource(maker, FERRY_RESOURCE_DOWN, from, from, maker->limits->down);
	}
	for (uint32_t k = 0; k < FERRY_MAX_SHARED_LINKS; k++)
		maker->shared[k] = add_resource(maker, FERRY_RESOURCE_SHARED, k, k, links->shared[k]);
}

static void weigh(struct ferry_paths *paths)
{
	for (uint32_t r = 0; r < paths->nresources; r++) {
		double weight = (double)FERRY_UNIT_WEIGHT * (double)paths->fastest / (double)paths->resources[r].speed;
		paths->resources[r].weight = weight < MOST_WEIGHT ? (uint32_t)(weight + 0.5) : MOST_WEIGHT;
	}
}

/* ---- paths ---- */

static void use(uint16_t *uses, uint32_t *nuses, uint16_t resource)
{
	for (uint32_t i = 0; i < *nuses; i++)
		if (uses[i] == resource)
			return;
	if (resource != NONE)
		uses[(*nuses)++] = resource;
}

static void use_hop(const struct maker *maker, uint32_t from, uint32_t to, uint16_t *uses, uint32_t *nuses)
{
	use(uses, nuses, maker->link[from][to]);
	use(uses, nuses, maker->send[from]);
	use(uses, nuses, maker->receive[to]);
	for (uint64_t left = maker->links->through[from][to]; left; left &= left - 1)
		use(uses, nuses, maker->shared[__builtin_ctzll(left)]);
}

static bool has(const uint16_t *uses, uint32_t nuses, uint16_t resource)
{
	for (uint32_t i = 0; i < nuses; i++)
		if (uses[i] == resource)
			return true;
	return false;
}

/* Whether another path of the pair loads only resources that this one loads, too: this one is then of no use. */
static bool is_dominated(const struct maker *maker, uint32_t first, const uint16_t *uses, uint32_t nuses)
{
	const struct ferry_paths *paths = maker->paths;
	for (uint32_t p = first; p < paths->npaths; p++) {
		const struct ferry_path *path = &paths->paths[p];
		uint32_t i = 0;
		while (i < path->nuses && has(uses, nuses, paths->uses[path->first_use + i]))
			i++;
		if (i == path->nuses)
			return true;
	}
	return false;
}

static bool grow(void **items, uint32_t *room, uint32_t wanted, size_t item)
{
	if (wanted <= *room)
		return true;
	uint32_t more = 2 * wanted + 256;
	void *grown = realloc(*items, more * item);
	if (!grown)
		return false;
	*items = grown;
	*room = more;
	return true;
}

static bool add_path(struct maker *maker, uint32_t first, const struct ferry_path *path, const uint16_t *uses,
                     uint32_t nuses)
{
	struct ferry_paths *paths = maker->paths;
	if (is_dominated(maker, first, uses, nuses))
		return true;
	if (!grow((void **)&paths->paths, &maker->path_room, paths->npaths + 1, sizeof *paths->paths) ||
	    !grow((void **)&paths->uses, &maker->use_room, maker->nuses + nuses, sizeof *paths->uses))
		return false;
	struct ferry_path *added = &paths->paths[paths->npaths++];
	*added = *path;
	added->nuses = (uint16_t)nuses;
	added->first_use = maker->nuses;
	memcpy(paths->uses + maker->nuses, uses, nuses * sizeof *uses);
	maker->nuses += nuses;
	return true;
}

/* Adds the path over the ranks in `via`, if there is a link for each hop. */
static bool add_over(struct maker *maker, uint32_t first, uint32_t from, uint32_t to, uint32_t nvia, const uint8_t *via)
{
	uint16_t uses[MOST_USES];
	uint32_t nuses = 0, at = from;
	struct ferry_path path = {.hops = (uint8_t)(nvia + 1)};
	for (uint32_t hop = 0; hop <= nvia; hop++) {
		uint32_t next = hop < nvia ? via[hop] : to;
		if (!(maker->links->speed[at][next] > 0))
			return true;
		use_hop(maker, at, next, uses, &nuses);
		if (hop < nvia) {
			path.via[hop] = via[hop];
			use(uses, &nuses, maker->relay[next]);
		}
		at = next;
	}
	return add_path(maker, first, &path, uses, nuses);
}

/* The speed of a path over a relay, by its two links; 0: there is no such path. */
static float relay_speed(const struct maker *maker, uint32_t from, uint32_t to, uint32_t via)
{
	if (via == from || via == to)
		return 0;
	float in = maker->links->speed[from][via], out = maker->links->speed[via][to];
	return in < out ? in : out;
}

/* Adds the fastest relays; of equal ones the next rank after `from`, so that pairs do not all take the same one. */
static bool add_relays(struct maker *maker, uint32_t first, uint32_t from, uint32_t to)
{
	uint64_t taken = 0;
	uint32_t n = maker->nranks, most = n > 16 ? FEW_RELAYS : FERRY_MOST_RELAYS, limit = maker->limits->relays;
	most = limit == FERRY_NO_RELAYS ? 0 : limit && limit < most ? limit : most;
	for (uint32_t count = 0; count < most; count++) {
		float best = 0;
		uint8_t via = 0;
		for (uint32_t shift = 1; shift < n; shift++) {
			uint32_t other = (from + shift) % n;
			float speed = taken >> other & 1 ? 0 : relay_speed(maker, from, to, other);
			if (speed > best) {
				best = speed;
				via = (uint8_t)other;
			}
		}
		if (!(best > 0))
			return true;
		taken |= 1ull << via;
		if (!add_over(maker, first, from, to, 1, &via))
			return false;
	}
	return true;
}

/*
 * Whether a rank is beside the near end of a slow link: its link with the near end is faster than the slow link, and
 * its link with the far end is not.
 */
static bool is_beside(float slow, float to_near, float to_far)
{
	return to_near > slow && !(to_far > slow);
}

/* Returns the fastest link that is not `taken`, from a rank beside `from` to a rank beside `to`. */
static bool find_crossing(const struct maker *maker, uint32_t from, uint32_t to, uint64_t taken, uint8_t via[2])
{
	const struct ferry_links *links = maker->links;
	float slow = links->speed[from][to], best = 0;
	uint32_t n = maker->nranks;
	for (uint32_t shift = 1; shift < n; shift++) {
		uint32_t out = (from + shift) % n;
		if (out == to || taken >> out & 1 || !is_beside(slow, links->speed[from][out], links->speed[out][to]))
			continue;
		for (uint32_t other = 1; other < n; other++) {
			uint32_t in = (to + other) % n;
			if (in == from || in == out || taken >> in & 1 || links->speed[out][in] <= best ||
			    !is_beside(slow, links->speed[in][to], links->speed[from][in]))
				continue;
			best = links->speed[out][in];
			via[0] = (uint8_t)out;
			via[1] = (uint8_t)in;
		}
	}
	return best > 0;
}

/*
 * Where groups of ranks have faster links within a group than between groups, adds paths of three hops: from one end to
 * a rank beside it, across, and from there, beside the other end, to that end.
 */
static bool add_across(struct maker *maker, uint32_t first, uint32_t from, uint32_t to)
{
	uint32_t limit = maker->limits->relays, most = limit && limit < MOST_CROSSINGS ? limit : MOST_CROSSINGS;
	uint64_t taken = 0;
	uint8_t via[2];
	if (limit == FERRY_NO_RELAYS)
		return true;
	while (most-- && find_crossing(maker, from, to, taken, via)) {
		if (!add_over(maker, first, from, to, 2, via))
			return false;
		taken |= 1ull << via[0] | 1ull << via[1];
	}
	return true;
}

static bool add_host(struct maker *maker, uint32_t first, uint32_t from, uint32_t to)
{
	uint16_t uses[2] = {maker->up[from], maker->down[to]};
	if (uses[0] == NONE || uses[1] == NONE)
		return true;
	return add_path(maker, first, &(struct ferry_path){0}, uses, 2);
}

static bool add_pair(struct maker *maker, uint32_t from, uint32_t to)
{
	uint32_t first = maker->paths->npaths;
	if (from == to)
		return true;
	return add_over(maker, first, from, to, 0, NULL) && add_relays(maker, first, from, to) &&
	       add_across(maker, first, from, to) && add_host(maker, first, from, to);
}

/* ---- by resource ---- */

static bool index_users(struct maker *maker)
{
	struct ferry_paths *paths = maker->paths;
	uint32_t *first = paths->first_user = calloc(paths->nresources + 2, sizeof *first);
	paths->users = calloc(maker->nuses + 1, sizeof *paths->users);
	paths->pair = calloc(paths->npaths + 1, sizeof *paths->pair);
	if (!first || !paths->users || !paths->pair)
		return false;
	for (uint32_t i = 0; i < maker->nuses; i++)
		first[paths->uses[i] + 2]++;
	for (uint32_t r = 1; r < paths->nresources; r++)
		first[r + 1] += first[r];
	for (uint32_t p = 0; p < paths->npaths; p++)
		for (uint32_t i = 0; i < paths->paths[p].nuses; i++)
			paths->users[first[paths->uses[paths->paths[p].first_use + i] + 1]++] = p;
	for (uint32_t pair = 0; pair < paths->nranks * paths->nranks; pair++)
		for (uint32_t p = paths->first[pair]; p < paths->first[pair + 1]; p++)
			paths->pair[p] = pair;
	return true;
}

bool ferry_paths_make(const struct ferry_links *links, uint32_t nranks, const struct ferry_path_limits *limits,
                      struct ferry_paths *paths)
{
	*paths = (struct ferry_paths){.nranks = nranks};
	struct maker *maker = calloc(1, sizeof *maker);
	paths->first = calloc((size_t)nranks * nranks + 1, sizeof *paths->first);
	paths->resources =
	        calloc((size_t)nranks * nranks + 5 * nranks + FERRY_MAX_SHARED_LINKS, sizeof *paths->resources);
	bool made = maker && paths->first && paths->resources;
	if (made) {
		maker->links = links;
		maker->limits = limits;
		maker->paths = paths;
		maker->nranks = nranks;
		add_resources(maker);
		weigh(paths);
	}
	for (uint32_t pair = 0; made && pair < nranks * nranks; pair++) {
		paths->first[pair] = paths->npaths;
		made = add_pair(maker, pair / nranks, pair % nranks);
		paths->first[pair + 1] = paths->npaths;
	}
	made = made && index_users(maker);
	free(maker);
	if (!made)
		ferry_paths_free(paths);
	return made;
}

void ferry_paths_free(struct ferry_paths *paths)
{
	free(paths->resources);
	free(paths->paths);
	free(paths->uses);
	free(paths->first);
	free(paths->first_user);
	free(paths->users);
	free(paths->pair);
	*paths = (struct ferry_paths){0};
}
