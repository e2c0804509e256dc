/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/captures.h"

#include "ipc/error.h"

#include <stdlib.h>

/* A call that a graph may still have. */
struct ferry_capture {
	uint32_t flag;
	struct ferry_plan_entry *entry; /* with a reference; NULL: messages */
	struct ferry_capture *next;
	uint32_t nnames;
	struct ferry_buffer_name names[]; /* pinned */
};

static _Atomic uint32_t forgets; /* counts calls that no graph has any more, of all communicators; any thread adds */

static void forget(void *flag)
{
	ferry_stream_flag_forget((uint32_t)(uintptr_t)flag);
	atomic_fetch_add_explicit(&forgets, 1, memory_order_release);
}

static void capture_free(struct ferry_captures *captures, struct ferry_capture *capture)
{
	for (uint32_t i = 0; i < capture->nnames; i++)
		ferry_exports_unpin(captures->exports, &capture->names[i]);
	ferry_bounce_buffers_release(captures->bounces, capture->flag);
	if (capture->entry)
		ferry_plan_cache_give_back(captures->plans, capture->entry);
	/* Before the flag is let go: while a router may still get the call, its stream flag must not be reused. */
	ferry_journal_forget(captures->journal, capture->flag);
	ferry_stream_flag_hold(captures->flags, capture->flag, false);
	free(capture);
}

ferryResult_t ferry_captures_keep(struct ferry_captures *captures, struct ferry_plan_entry *entry,
                                  const struct ferry_buffer_name *names, uint32_t nnames, struct ferry_submission *head,
                                  struct ferry_stream_call *in_stream)
{
	struct ferry_capture *capture = calloc(1, sizeof *capture + nnames * sizeof *names);
	ferryResult_t result = capture ? ferry_stream_flag_for_capture(captures->flags, &head->flag,
	                                                               &head->turn)
	                               : ferry_fail(ferrySystemError, "no memory for a captured call");
	if (result) {
		free(capture);
		return result;
	}
	ferry_stream_flag_hold(captures->flags, head->flag, true);
	ferry_bounce_buffers_hold(captures->bounces, head->flag);
	capture->flag = head->flag;
	capture->entry = entry;
	for (uint32_t i = 0; i < nnames; i++)
		if (names[i].generation)
			capture->names[capture->nnames++] = names[i];
	capture->next = captures->all;
	captures->all = capture;
	in_stream->forget = forget;
	in_stream->argument = (void *)(uintptr_t)head->flag;
	return ferrySuccess;
}

void ferry_captures_undo(struct ferry_captures *captures, const struct ferry_buffer_name *names, uint32_t nnames)
{
	for (uint32_t i = 0; i < nnames; i++)
		if (names[i].generation)
			ferry_exports_unpin(captures->exports, &names[i]);
	ferry_bounce_buffers_hold(captures->bounces, FERRY_STREAM_FLAGS); /* no flag has that index */
	ferry_bounce_buffers_release(captures->bounces, FERRY_STREAM_FLAGS);
}

void ferry_captures_sweep(struct ferry_captures *captures)
{
	uint32_t seen = atomic_load_explicit(&forgets, memory_order_acquire);
	if (seen == captures->forgets_seen)
		return;
	captures->forgets_seen = seen;
	for (struct ferry_capture **link = &captures->all; *link;) {
		struct ferry_capture *capture = *link;
		if (!atomic_load_explicit(&ferry_stream_flag_at(capture->flag)->forgotten, memory_order_acquire)) {
			link = &capture->next;
			continue;
		}
		*link = capture->next;
		capture_free(captures, capture);
	}
}

void ferry_captures_free(struct ferry_captures *captures)
{
	while (captures->all) {
		struct ferry_capture *capture = captures->all;
		captures->all = capture->next;
		capture_free(captures, capture);
	}
}
