/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_nccl/clique.h"

#include "ipc/wait.h"
#include "tests/foreign_file.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct name {
	char mark[16];
	int process, file;
	uint64_t number;
};

static struct clique *map(int file)
{
	void *memory = mmap(NULL, sizeof(struct clique), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

bool clique_make(char id[128])
{
	static _Atomic uint64_t number;
	struct name name = {"fake NCCL", getpid(), memfd_create("fake-nccl", MFD_CLOEXEC), ++number};
	pthread_mutexattr_t shared_lock;
	if (name.file < 0 || ftruncate(name.file, sizeof(struct clique)))
		return false;
	struct clique *clique = map(name.file);
	if (!clique)
		return false;
	pthread_mutexattr_init(&shared_lock);
	pthread_mutexattr_setpshared(&shared_lock, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&shared_lock, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&clique->lock, &shared_lock);
	munmap(clique, sizeof *clique);
	memset(id, 0, 128);
	memcpy(id, &name, sizeof name);
	return true;
}

struct clique *clique_open(const char id[128])
{
	struct name name;
	memcpy(&name, id, sizeof name);
	if (strcmp(name.mark, "fake NCCL"))
		return NULL;
	int file = foreign_file(name.process, name.file);
	struct clique *clique = file < 0 ? NULL : map(file);
	if (file >= 0)
		close(file);
	return clique;
}

void clique_lock(struct clique *clique)
{
	if (pthread_mutex_lock(&clique->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&clique->lock); /* the dead rank is missing in whatever it was doing */
}

void clique_unlock(struct clique *clique)
{
	pthread_mutex_unlock(&clique->lock);
}

void clique_moved(struct clique *clique)
{
	atomic_fetch_add(&clique->moved, 1);
	ferry_futex_wake(&clique->moved, INT_MAX, true);
}

void clique_wait(struct clique *clique)
{
	uint32_t seen = atomic_load(&clique->moved);
	clique_unlock(clique);
	ferry_futex_wait(&clique->moved, seen, -1, true);
	clique_lock(clique);
}

bool clique_join(struct clique *clique, int rank, int nranks)
{
	clique_lock(clique);
	clique->nranks = nranks;
	clique->joined++;
	clique_moved(clique);
	while (clique->joined < nranks && !clique->gone[rank])
		clique_wait(clique);
	bool fine = clique->joined >= nranks;
	clique_unlock(clique);
	return fine;
}

bool clique_meet(struct clique *clique, int rank)
{
	clique_lock(clique);
	unsigned meeting = clique->meetings;
	if (!clique->gone[rank] && ++clique->arrived == clique->nranks) {
		clique->arrived = 0;
		clique->meetings++;
		clique_moved(clique);
	}
	while (clique->meetings == meeting && !clique->gone[rank])
		clique_wait(clique);
	bool fine = clique->meetings != meeting;
	clique_unlock(clique);
	return fine;
}

bool clique_exchange(struct clique *clique, int rank, const uint64_t mine[CLIQUE_WORDS],
                     uint64_t all[CLIQUE_RANKS][CLIQUE_WORDS])
{
	clique_lock(clique);
	memcpy(clique->words[rank], mine, sizeof clique->words[rank]);
	clique_unlock(clique);
	if (!clique_meet(clique, rank))
		return false;
	clique_lock(clique);
	memcpy(all, clique->words, sizeof clique->words);
	clique_unlock(clique);
	return clique_meet(clique, rank);
}

void clique_abort(struct clique *clique, int rank)
{
	clique_lock(clique);
	clique->gone[rank] = true;
	clique_moved(clique);
	clique_unlock(clique);
}

void clique_close(struct clique *clique)
{
	munmap(clique, sizeof *clique);
}
