/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/saved_shares.h"

#include <string.h>

/* The setting of that owner and as many ranks that was used last, but earlier than `before`; NULL: none. */
static const struct ferry_saved_setting *next_of(const struct ferry_saved_shares *saved, uint32_t owner,
                                                 uint32_t nranks, uint64_t before)
{
	const struct ferry_saved_setting *found = NULL;
	for (int i = 0; i < FERRY_SAVED_SHARES; i++) {
		const struct ferry_saved_setting *setting = &saved->settings[i];
		if (setting->signature && setting->owner == owner && setting->nranks == nranks &&
		    setting->used < before && (!found || setting->used > found->used))
			found = setting;
	}
	return found;
}

void ferry_saved_shares_give(const struct ferry_saved_shares *saved, uint32_t owner, const struct ferry_arena *arena)
{
	uint64_t before = UINT64_MAX;
	for (int i = 0; i < FERRY_SHARE_SAVED && !arena->domain; i++) {
		const struct ferry_saved_setting *setting = next_of(saved, owner, arena->nranks, before);
		if (!setting)
			return;
		before = setting->used;
		for (uint32_t j = 0; j < setting->nlines; j++)
			ferry_share_line_write(&arena->shares->saved[i][j], &setting->lines[j]);
		atomic_store_explicit(&arena->shares->saved_signatures[i], setting->signature, memory_order_relaxed);
	}
}

static uint32_t settings_of(const struct ferry_saved_shares *saved, uint32_t owner)
{
	uint32_t count = 0;
	for (int i = 0; i < FERRY_SAVED_SHARES; i++)
		count += saved->settings[i].signature && saved->settings[i].owner == owner;
	return count;
}

/* A free place; else the least recently used setting of the owner with the most of them. */
static struct ferry_saved_setting *room(struct ferry_saved_shares *saved)
{
	struct ferry_saved_setting *found = NULL;
	uint32_t most = 0;
	for (int i = 0; i < FERRY_SAVED_SHARES; i++) {
		struct ferry_saved_setting *setting = &saved->settings[i];
		if (!setting->signature)
			return setting;
		uint32_t count = settings_of(saved, setting->owner);
		if (count < most || (count == most && setting->used > found->used))
			continue;
		most = count;
		found = setting;
	}
	return found;
}

static struct ferry_saved_setting *place_for(struct ferry_saved_shares *saved, uint32_t owner, uint64_t signature,
                                            uint32_t nranks)
{
	for (int i = 0; i < FERRY_SAVED_SHARES; i++) {
		struct ferry_saved_setting *setting = &saved->settings[i];
		if (setting->signature == signature && setting->owner == owner && setting->nranks == nranks)
			return setting;
	}
	struct ferry_saved_setting *place = room(saved);
	*place = (struct ferry_saved_setting){.signature = signature, .owner = owner, .nranks = nranks};
	return place;
}

static struct ferry_share_line *line_in(struct ferry_saved_setting *setting, const struct ferry_share_line *like)
{
	for (uint32_t i = 0; i < setting->nlines; i++) {
		struct ferry_share_line *line = &setting->lines[i];
		if (line->collective == like->collective && line->type == like->type &&
		    line->size_class == like->size_class && line->in_place == like->in_place)
			return line;
	}
	return setting->nlines < FERRY_SHARE_LINES ? &setting->lines[setting->nlines++] : NULL;
}

/* Whether the line holds something that the job has learned: these two kinds go by what was measured before it. */
static bool has_learned(const struct ferry_share_line *line)
{
	return line->why != FERRY_BALANCE_KERNEL && line->why != FERRY_BALANCE_PRIOR;
}

/* What the job has not measured stays as an earlier job has measured it. */
static void save(struct ferry_saved_setting *setting, const struct ferry_share_line *line)
{
	struct ferry_share_line *place = line_in(setting, line), before;
	if (!place)
		return;
	before = *place;
	*place = *line;
	place->run = 0;
	if (!(line->nccl_us > 0)) {
		place->nccl = before.nccl;
		place->nccl_us = before.nccl_us;
	}
	if (!(line->ferry_us > 0)) {
		place->ferry = before.ferry;
		place->ferry_us = before.ferry_us;
	}
}

void ferry_saved_shares_take(struct ferry_saved_shares *saved, uint32_t owner, const struct ferry_arena *arena)
{
	struct ferry_share_line line;
	struct ferry_saved_setting *setting = NULL;
	if (arena->domain)
		return;
	uint64_t signature = atomic_load_explicit(&arena->shares->signature, memory_order_relaxed);
	for (int i = 0; i < FERRY_SHARE_LINES && signature; i++)
		if (ferry_share_line_read(&arena->shares->lines[i], &line) && has_learned(&line)) {
			setting = setting ? setting : place_for(saved, owner, signature, arena->nranks);
			save(setting, &line);
		}
	if (setting)
		setting->used = ++saved->clock;
}
