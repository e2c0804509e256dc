/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/leavers.h"

#include "ipc/rankset.h"

uint64_t ferry_leavers(const struct ferry_job_arenas *job)
{
	uint64_t leavers = 0;
	for (uint32_t domain = 0; domain < job->ndomains; domain++)
		leavers |= atomic_load_explicit(&job->arenas[domain].header->left, memory_order_acquire);
	return leavers & ferry_rankset_all(job->nranks); /* who reads it does not look beyond their lines */
}

static uint64_t finished(const struct ferry_job_arenas *job, uint32_t rank, uint32_t bank)
{
	return atomic_load_explicit(&ferry_rank_line(job, rank)->finished[bank], memory_order_acquire);
}

bool ferry_leavers_are_over(const struct ferry_job_arenas *job, uint64_t leavers)
{
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		uint64_t last = UINT64_MAX; /* that all of them took part in */
		for (uint32_t rank = 0; rank < job->nranks; rank++)
			if (leavers >> rank & 1 && finished(job, rank, bank) < last)
				last = finished(job, rank, bank);
		for (uint32_t rank = 0; rank < job->nranks; rank++)
			if (!(leavers >> rank & 1) && finished(job, rank, bank) < last)
				return false;
	}
	return true;
}
