/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/shared_memory.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE          (64ull << 20) /* allocated between two looks at given_up: some ten milliseconds */
#define POPULATE_WRITE 23            /* MADV_POPULATE_WRITE, which older headers lack */

static ferryResult_t open_posix(int *descriptor)
{
	for (int attempt = 0; attempt < 16; attempt++) {
		uint64_t random;
		char name[40];
		if (getrandom(&random, sizeof random, 0) != sizeof random)
			return ferry_fail(ferrySystemError, "getrandom: %s", strerror(errno));
		snprintf(name, sizeof name, "/ferry-%016llx", (unsigned long long)random);
		*descriptor = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
		if (*descriptor >= 0) {
			shm_unlink(name);
			*descriptor = ferry_descriptor_above(*descriptor);
			return *descriptor >= 0 ? ferrySuccess
			                        : ferry_fail(ferrySystemError, "a descriptor for shared memory: %s%s",
			                                     strerror(errno), ferry_descriptors_hint(errno));
		}
		if (errno != EEXIST)
			return ferry_fail(ferrySystemError, "making shared memory /dev/shm%s: %s%s", name,
			                  strerror(errno),
			                  errno == ENOENT || errno == EACCES || errno == EROFS
			                          ? " (is /dev/shm there, and this user allowed to write to it?)"
			                          : ferry_descriptors_hint(errno));
	}
	return ferry_fail(ferrySystemError, "shm_open: 16 random names were all taken");
}

static int new_memfd(void)
{
	return memfd_create("ferry-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/* An old kernel, or a filter of system calls, has no memfd. */
static bool memfd_is_missing(void)
{
	int descriptor = new_memfd();
	if (descriptor < 0)
		return errno == ENOSYS || errno == EPERM || errno == EINVAL;
	close(descriptor);
	return false;
}

ferryResult_t ferry_shared_kind_read(enum ferry_shared_kind *kind)
{
	const char *name = ferry_env("FERRY_SHM");
	bool posix = name && !strcmp(name, "posix");
	if (name && !posix && strcmp(name, "memfd"))
		return ferry_fail(ferryInvalidArgument, "FERRY_SHM=%s: memfd or posix", name);
	*kind = posix || memfd_is_missing() ? FERRY_SHARED_POSIX : FERRY_SHARED_MEMFD;
	return ferrySuccess;
}

static ferryResult_t open_memfd(int *descriptor)
{
	*descriptor = ferry_descriptor_above(new_memfd());
	return *descriptor >= 0 ? ferrySuccess
	                        : ferry_fail(ferrySystemError, "a descriptor for shared memory: %s%s", strerror(errno),
	                                     ferry_descriptors_hint(errno));
}

ferryResult_t ferry_shared_make(enum ferry_shared_kind kind, uint64_t bytes, int *descriptor)
{
	ferryResult_t result = kind == FERRY_SHARED_POSIX ? open_posix(descriptor) : open_memfd(descriptor);
	if (result)
		return result;
	if (ftruncate(*descriptor, (off_t)bytes)) {
		result = ferry_fail(ferrySystemError, "shared memory of %llu bytes: %s", (unsigned long long)bytes,
		                    strerror(errno));
		close(*descriptor);
		*descriptor = -1;
		return result;
	}
	/* POSIX shared memory takes no seals: it can be cut short, which router/daemon/sigbus.h handles. */
	(void)fcntl(*descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	return ferrySuccess;
}

bool ferry_shared_sealed(int descriptor)
{
	int seals = fcntl(descriptor, F_GET_SEALS);
	return seals >= 0 && (seals & F_SEAL_SHRINK);
}

static bool promises_are_counted(void)
{
	char text[8] = "";
	int file = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	ssize_t got = read(file, text, sizeof text - 1);
	close(file);
	return got > 0 && text[0] == '2';
}

bool ferry_shared_may_lack(int descriptor)
{
	return !ferry_shared_sealed(descriptor) || promises_are_counted();
}

/* 0, or the error, as posix_fallocate returns it. */
static int allocate_piece(int descriptor, char *memory, uint64_t from, uint64_t bytes)
{
	if (!madvise(memory, bytes, POPULATE_WRITE))
		return 0;
	if (errno == EINVAL) /* an old kernel */
		return posix_fallocate(descriptor, (off_t)from, (off_t)bytes);
	return errno == EFAULT ? ENOSPC : errno;
}

ferryResult_t ferry_shared_allocate(int descriptor, void *memory, uint64_t from, uint64_t bytes,
                                    const _Atomic uint32_t *given_up)
{
	for (uint64_t done = 0, piece; done < bytes; done += piece) {
		piece = bytes - done < PIECE ? bytes - done : PIECE;
		if (given_up && atomic_load_explicit(given_up, memory_order_relaxed))
			return ferry_fail(ferrySystemError, "nobody needs the memory any more");
		int refused = allocate_piece(descriptor, (char *)memory + done, from + done, piece);
		if (refused == EINTR)
			piece = 0;
		else if (refused)
			return ferry_fail(ferrySystemError, "no room for %llu bytes of shared memory, %llu are there: "
			                                    "%s%s",
			                  (unsigned long long)bytes, (unsigned long long)done, strerror(refused),
			                  ferry_shared_sealed(descriptor) ? "" : " (enlarge /dev/shm)");
	}
	return ferrySuccess;
}

uint64_t ferry_shared_held(int descriptor)
{
	struct stat status;
	return fstat(descriptor, &status) ? 0 : (uint64_t)status.st_blocks * 512;
}
