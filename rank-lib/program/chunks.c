/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/chunks.h"

#include "ipc/rankset.h"

void ferry_collective_chunks(enum ferry_collective collective, uint32_t nranks, uint32_t nchunks, uint32_t root,
                             uint32_t rank, uint32_t *send_chunks, uint32_t *receive_chunks)
{
	uint32_t one = nchunks, all = nranks * nchunks;
	bool at_root = rank == root;
	*send_chunks = one;
	*receive_chunks = one;
	switch (collective) {
	case FERRY_ALLGATHER:
		*receive_chunks = all;
		break;
	case FERRY_REDUCESCATTER:
		*send_chunks = all;
		break;
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
		*send_chunks = *receive_chunks = all;
		break;
	case FERRY_BROADCAST:
		*send_chunks = at_root ? one : 0;
		break;
	case FERRY_REDUCE_TO_ROOT:
		*receive_chunks = at_root ? one : 0;
		break;
	case FERRY_GATHER:
		*receive_chunks = at_root ? all : 0;
		break;
	case FERRY_SCATTER:
		*send_chunks = at_root ? all : 0;
		break;
	case FERRY_SENDRECV:
		*send_chunks = rank == 0 ? one : 0;
		*receive_chunks = rank == 1 ? one : 0;
		break;
	case FERRY_ALLREDUCE:
		break;
	}
}

void ferry_chunk_span(uint64_t count, size_t element, uint32_t nchunks, uint32_t chunk, uint64_t *offset,
                      uint64_t *length)
{
	/* Cut between cache lines, so that no line is copied by two chunks; the last chunk takes the rest. */
	uint64_t line = element < 64 ? 64 / element : 1, lines = (count + line - 1) / line;
	uint64_t from = lines * chunk / nchunks * line, to = lines * (chunk + 1) / nchunks * line;
	from = from < count ? from : count;
	to = to < count ? to : count;
	*offset = from * element;
	*length = (to - from) * element;
}

void ferry_collective_demand(const struct ferry_program *program, uint32_t rank, uint32_t chunk, uint64_t *ranks,
                             uint32_t *send_chunk)
{
	uint32_t per_rank = program->nchunks;
	uint64_t everyone = ferry_rankset_all(program->nranks);
	*ranks = everyone;
	*send_chunk = chunk;
	switch (program->collective) {
	case FERRY_REDUCESCATTER:
		*send_chunk = rank * per_rank + chunk;
		break;
	case FERRY_BROADCAST:
		*ranks = 1ull << program->root;
		break;
	case FERRY_ALLGATHER:
	case FERRY_GATHER:
		*ranks = 1ull << chunk / per_rank;
		*send_chunk = chunk % per_rank;
		break;
	case FERRY_SCATTER:
		*ranks = 1ull << program->root;
		*send_chunk = rank * per_rank + chunk;
		break;
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
		*ranks = 1ull << chunk / per_rank;
		*send_chunk = rank * per_rank + chunk % per_rank;
		break;
	case FERRY_SENDRECV:
		*ranks = 1;
		break;
	case FERRY_ALLREDUCE:
	case FERRY_REDUCE_TO_ROOT:
		break;
	}
}
