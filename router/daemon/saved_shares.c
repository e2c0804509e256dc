/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/saved_shares.h"

#include <string.h>

/* The latest ones of that owner and as many ranks. */
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
		for (uint32_t j = 0; j < setting->ncourses; j++)
			ferry_share_course_write(&arena->shares->saved[i][j], &setting->courses[j]);
		for (uint32_t j = 0; j < setting->nwholes; j++)
			ferry_share_line_write(&arena->shares->saved_wholes[i][j], &setting->wholes[j]);
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

/* One that is free; else of the owner that has most of them the one that was used least lately. */
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

static struct ferry_share_course *course_in(struct ferry_saved_setting *setting, const struct ferry_share_course *like)
{
	for (uint32_t i = 0; i < setting->ncourses; i++)
		if (setting->courses[i].collective == like->collective && setting->courses[i].type == like->type)
			return &setting->courses[i];
	return setting->ncourses < FERRY_SHARE_COURSES ? &setting->courses[setting->ncourses++] : NULL;
}

static struct ferry_share_line *whole_in(struct ferry_saved_setting *setting, const struct ferry_share_line *like)
{
	for (uint32_t i = 0; i < setting->nwholes; i++) {
		struct ferry_share_line *line = &setting->wholes[i];
		if (line->collective == like->collective && line->type == like->type &&
		    line->size_class == like->size_class && line->in_place == like->in_place)
			return line;
	}
	return setting->nwholes < FERRY_SHARE_LINES ? &setting->wholes[setting->nwholes++] : NULL;
}

/* Where a job has not seen a fabric, an earlier job's numbers of it stay. */
static void keep_whole(struct ferry_saved_setting *setting, const struct ferry_share_line *line)
{
	struct ferry_share_line *place = whole_in(setting, line), before;
	if (!place)
		return;
	before = *place;
	*place = *line;
	for (int c = 0; c < FERRY_NUM_FABRICS; c++)
		if (!(line->paces[c].rate > 0))
			place->paces[c] = before.paces[c];
}

void ferry_saved_shares_take(struct ferry_saved_shares *saved, uint32_t owner, const struct ferry_arena *arena)
{
	struct ferry_share_course course, *place;
	struct ferry_share_line line;
	if (arena->domain)
		return;
	uint64_t signature = atomic_load_explicit(&arena->shares->signature, memory_order_relaxed);
	struct ferry_saved_setting *setting = NULL;
	for (int i = 0; i < FERRY_SHARE_COURSES && signature; i++) {
		if (!ferry_share_course_read(&arena->shares->courses[i], &course))
			continue;
		setting = setting ? setting : place_for(saved, owner, signature, arena->nranks);
		if ((place = course_in(setting, &course)))
			*place = course;
	}
	for (int i = 0; i < FERRY_SHARE_LINES && signature; i++)
		if (ferry_share_line_read(&arena->shares->wholes[i], &line)) {
			setting = setting ? setting : place_for(saved, owner, signature, arena->nranks);
			keep_whole(setting, &line);
		}
	if (setting)
		setting->used = ++saved->clock;
}
