/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_nccl/clique.h"

#include <fcntl.h>
#include <stdio.h>
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
	pthread_condattr_t shared_condition;
	if (name.file < 0 || ftruncate(name.file, sizeof(struct clique)))
		return false;
	struct clique *clique = map(name.file);
	if (!clique)
		return false;
	pthread_mutexattr_init(&shared_lock);
	pthread_mutexattr_setpshared(&shared_lock, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&clique->lock, &shared_lock);
	pthread_condattr_init(&shared_condition);
	pthread_condattr_setpshared(&shared_condition, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&clique->moved, &shared_condition);
	munmap(clique, sizeof *clique);
	memset(id, 0, 128);
	memcpy(id, &name, sizeof name);
	return true;
}

struct clique *clique_open(const char id[128])
{
	struct name name;
	char path[64];
	memcpy(&name, id, sizeof name);
	if (strcmp(name.mark, "fake NCCL"))
		return NULL;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", name.process, name.file);
	int file = open(path, O_RDWR | O_CLOEXEC);
	struct clique *clique = file < 0 ? NULL : map(file);
	if (file >= 0)
		close(file);
	return clique;
}

bool clique_join(struct clique *clique, int nranks)
{
	pthread_mutex_lock(&clique->lock);
	clique->nranks = nranks;
	clique->joined++;
	pthread_cond_broadcast(&clique->moved);
	while (clique->joined < nranks && !clique->dead)
		pthread_cond_wait(&clique->moved, &clique->lock);
	bool fine = clique->joined >= nranks;
	pthread_mutex_unlock(&clique->lock);
	return fine;
}

bool clique_meet(struct clique *clique)
{
	pthread_mutex_lock(&clique->lock);
	unsigned meeting = clique->meetings;
	if (++clique->arrived == clique->nranks) {
		clique->arrived = 0;
		clique->meetings++;
		pthread_cond_broadcast(&clique->moved);
	}
	while (clique->meetings == meeting && !clique->dead)
		pthread_cond_wait(&clique->moved, &clique->lock);
	bool fine = clique->meetings != meeting;
	pthread_mutex_unlock(&clique->lock);
	return fine;
}

bool clique_exchange(struct clique *clique, int rank, const uint64_t mine[CLIQUE_WORDS],
                     uint64_t all[CLIQUE_RANKS][CLIQUE_WORDS])
{
	pthread_mutex_lock(&clique->lock);
	memcpy(clique->words[rank], mine, sizeof clique->words[rank]);
	pthread_mutex_unlock(&clique->lock);
	if (!clique_meet(clique))
		return false;
	pthread_mutex_lock(&clique->lock);
	memcpy(all, clique->words, sizeof clique->words);
	pthread_mutex_unlock(&clique->lock);
	return clique_meet(clique);
}

void clique_kill(struct clique *clique)
{
	pthread_mutex_lock(&clique->lock);
	clique->dead = true;
	pthread_cond_broadcast(&clique->moved);
	pthread_mutex_unlock(&clique->lock);
}

void clique_close(struct clique *clique)
{
	munmap(clique, sizeof *clique);
}
