/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/sigbus.h"

#include "ipc/error.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_ARENAS 2048

static uintptr_t page_bytes; /* of the system; set once, before the handler is installed */

static struct {
	_Atomic uintptr_t base; /* 0: free; 1: being filled in */
	_Atomic uint64_t bytes;
} arenas[MOST_ARENAS];

static void on_bus_error(int number, siginfo_t *info, void *context)
{
	uintptr_t address = (uintptr_t)info->si_addr;
	(void)context;
	for (int i = 0; i < MOST_ARENAS; i++) {
		uintptr_t base = atomic_load_explicit(&arenas[i].base, memory_order_acquire);
		if (base <= 1 || address < base ||
		    address - base >= atomic_load_explicit(&arenas[i].bytes, memory_order_relaxed))
			continue;
		void *page = (void *)(address / page_bytes * page_bytes);
		if (mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		    page)
			return; /* the instruction runs again */
	}
	signal(number, SIG_DFL); /* not ours: it happens again, and ends the process as it would have */
}

ferryResult_t ferry_sigbus_install(void)
{
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	if (sigaction(SIGBUS, &action, NULL))
		return ferry_fail(ferrySystemError, "sigaction: %s", strerror(errno));
	return ferrySuccess;
}

void ferry_sigbus_add(const struct ferry_arena *arena)
{
	if (arena->sealed && !ferry_shared_may_lack(arena->descriptor)) /* holes can be made in a sealed one, too */
		return;
	for (int i = 0; i < MOST_ARENAS; i++) {
		uintptr_t free_slot = 0;
		if (!atomic_compare_exchange_strong(&arenas[i].base, &free_slot, 1))
			continue;
		atomic_store_explicit(&arenas[i].bytes, arena->bytes, memory_order_relaxed);
		atomic_store_explicit(&arenas[i].base, (uintptr_t)arena->header, memory_order_release);
		return;
	}
	ferry_log(FERRY_LOG_WARN, "more than %d arenas: this one is not guarded against being cut short", MOST_ARENAS);
}

void ferry_sigbus_remove(const struct ferry_arena *arena)
{
	for (int i = 0; i < MOST_ARENAS; i++)
		if (atomic_load_explicit(&arenas[i].base, memory_order_relaxed) == (uintptr_t)arena->header &&
		    arena->header) {
			atomic_store_explicit(&arenas[i].base, 0, memory_order_release);
			return;
		}
}
