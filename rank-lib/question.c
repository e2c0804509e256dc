/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/question.h"

#include "ipc/deadline.h"
#include "ipc/wait.h"

#include <stdio.h>

struct question {
	struct ferry_rank *rank;
	uint32_t domain;
	const char *what;
	uint64_t since;
	bool told;
};

static bool gives_up(void *who)
{
	struct question *question = who;
	struct ferry_rank *rank = question->rank;
	uint64_t waited = ferry_now_ns() - question->since;
	bool fails = ferry_timeout_over(rank->timeout.fails, waited);
	char text[FERRY_MESSAGE_BYTES];
	if (ferry_rank_failed(rank))
		return true;
	if (ferry_timeout_over(rank->timeout.replaces, waited) &&
	    ferry_link_kill(&rank->links[question->domain], rank->timeout.replaces * 1000000000ull, true)) {
		ferry_log(FERRY_LOG_WARN,
		          "FERRY_TIMEOUT: rank %d has waited %llu s for the router of domain %u %s; it is killed, for "
		          "another to take its place",
		          rank->self, (unsigned long long)(waited / 1000000000), question->domain, question->what);
		question->since = ferry_now_ns();
		return false;
	}
	if (!fails && (question->told || !ferry_timeout_over(rank->timeout.reports, waited)))
		return false;
	question->told = true;
	snprintf(text, sizeof text, "%srank %d has waited %llu s for the router of domain %u %s",
	         fails ? "FERRY_TIMEOUT: " : "", rank->self, (unsigned long long)(waited / 1000000000),
	         question->domain, question->what);
	if (fails)
		ferry_rank_fail(rank, ferryRemoteError, text);
	else
		ferry_log(FERRY_LOG_WARN, "%s", text);
	return fails;
}

ferryResult_t ferry_question_ask(struct ferry_rank *rank, uint32_t domain, struct ferry_attach_message *message,
                                 const void *payload, const char *what)
{
	struct question question = {rank, domain, what, ferry_now_ns(), false};
	struct ferry_attach_reply reply;
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	struct ferry_deadline deadline = ferry_deadline_for((unsigned)seconds, NULL);
	deadline.gives_up = gives_up;
	deadline.who = &question;
	result = ferry_link_ask_within(&rank->links[domain], message, payload, NULL, &reply, &deadline);
	return result && ferry_rank_failed(rank) ? ferry_rank_say_failed(rank) : result;
}
