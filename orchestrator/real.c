/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/real.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "orchestrator/search.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

_Atomic(const struct ferry_nccl *) ferry_nccl_found;
_Thread_local unsigned ferry_nccl_inside;

/* Whether the thread's last error was this library's own. */
static _Thread_local bool own_error;

/* Another build of this library is recognized by this. */
extern const int ferry_nccl_mark;
__attribute__((visibility("default"))) const int ferry_nccl_mark = 1;

static struct link_map *object_of(const void *address)
{
	Dl_info info;
	struct link_map *object = NULL;
	return address && dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) ? object : NULL;
}

/* Whether these names come from this library, or from another build of it. */
static bool is_ferry(const void *function, void *handle)
{
	const struct link_map *object = object_of(function);
	return object == object_of(&ferry_nccl_mark) || object == object_of(dlsym(handle, "ferry_nccl_mark"));
}

struct code {
	uintptr_t inside, low, high;
};

/* The object that holds `inside`, from its first byte of code to its last. */
static int find_code(struct dl_phdr_info *object, size_t bytes, void *context)
{
	struct code *code = context;
	uintptr_t low = UINTPTR_MAX, high = 0;
	(void)bytes;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t start = object->dlpi_addr + part->p_vaddr;
		if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
			continue;
		low = start < low ? start : low;
		high = start + part->p_memsz > high ? start + part->p_memsz : high;
	}
	if (code->inside < low || code->inside >= high)
		return 0;
	code->low = low;
	code->high = high;
	return 1;
}

/* Reads NCCL's functions from a handle of dlopen's, or RTLD_NEXT. False: that is no NCCL, or this library. */
static bool read_functions(struct ferry_nccl *nccl, void *handle)
{
	struct ferry_nccl_functions *functions = &nccl->functions;
	struct code code = {.inside = (uintptr_t)dlsym(handle, "ncclCommInitRank")};
	const struct link_map *object = object_of((void *)code.inside);
	if (!object || is_ferry((void *)code.inside, handle))
		return false;
#define NCCL_VALUE(since, type, name, parameters, arguments) *(void **)&functions->name = dlsym(handle, "nccl" #name);
#include "orchestrator/functions.def"
	if (!functions->GetVersion || functions->GetVersion(&nccl->version))
		return false;
	snprintf(nccl->path, sizeof nccl->path, "%s", *object->l_name ? object->l_name : "the program itself");
	dl_iterate_phdr(find_code, &code);
	nccl->low = code.low;
	nccl->high = code.high;
	return true;
}

/*
 * RTLD_DEEPBIND, so that NCCL calls its own functions directly. Not if the program has an allocator of its own: NCCL
 * would then free with the C library what the other allocator has allocated.
 */
static int binding(void)
{
	const void *allocator = dlsym(RTLD_DEFAULT, "malloc"), *library = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
	return object_of(allocator) == object_of(library) ? RTLD_DEEPBIND : 0;
}

/* Takes the functions of a library that is loaded already, or is loaded now, unless it is this one. */
static bool take_library(const char *path, void *context)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | binding());
	if (handle && read_functions(context, handle))
		return true;
	if (handle)
		dlclose(handle);
	else
		ferry_fail(ferrySystemError, "%s", dlerror());
	return false;
}

static ferryResult_t look_for(struct ferry_nccl *nccl, const void *caller)
{
	const char *chosen = ferry_env("FERRY_NCCL_LIBRARY");
	if (chosen) {
		ferry_forget_message();
		if (take_library(chosen, nccl))
			return ferrySuccess;
		return ferry_fail(ferrySystemError, "FERRY_NCCL_LIBRARY: %s%s",
		                  *ferry_last_message() ? ferry_last_message() : chosen,
		                  *ferry_last_message() ? "" : ": no NCCL");
	}
	if (read_functions(nccl, RTLD_NEXT) || ferry_nccl_search_loaded("libnccl", take_library, nccl) ||
	    ferry_nccl_search_files(caller, take_library, nccl))
		return ferrySuccess;
	return ferry_fail(ferrySystemError, "no libnccl.so.2 is loaded, on the program's search path, in the loader's "
	                                    "cache or among Python's packages: FERRY_NCCL_LIBRARY names one");
}

static bool is_on(void)
{
	const char *value = ferry_env("FERRY_NCCL");
	bool on = !value || !strcmp(value, "on") || !strcmp(value, "tune");
	if (!on && strcmp(value, "off"))
		ferry_log(FERRY_LOG_ERROR, "FERRY_NCCL=%s: on, tune or off; taken as off", value);
	return on;
}

static void set_log_level(void)
{
	enum ferry_log_level level;
	const char *text = ferry_env("FERRY_LOG");
	if (ferry_log_parse(text ? text : "warn", &level))
		ferry_log_set_level(level);
}

/*
 * No lock is held while the loader works: it has one of its own, which may be held by a constructor that calls NCCL.
 * Threads that come at the same time search each for itself, and all but one discard what they have found.
 */
const struct ferry_nccl *ferry_nccl_find(const void *caller)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	const struct ferry_nccl *nobody = NULL;
	if (ferry_nccl_get() || ferry_nccl_inside) /* inside: NCCL's constructors */
		return ferry_nccl_get();
	struct ferry_nccl *nccl = calloc(1, sizeof *nccl);
	own_error = true;
	if (!nccl)
		return NULL;
	set_log_level();
	ferry_nccl_inside++;
	ferryResult_t result = look_for(nccl, caller);
	ferry_nccl_inside--;
	if (result) {
		if (!atomic_flag_test_and_set(&logged))
			ferry_log(FERRY_LOG_ERROR, "NCCL: %s", ferry_last_message());
		free(nccl);
		return NULL;
	}
	own_error = false;
	nccl->on = is_on();
	if (!atomic_compare_exchange_strong_explicit(&ferry_nccl_found, &nobody, nccl, memory_order_acq_rel,
	                                             memory_order_acquire)) {
		free(nccl);
		return ferry_nccl_get();
	}
	ferry_log(FERRY_LOG_INFO, "NCCL %d.%d.%d: %s%s", nccl->version / 10000, nccl->version / 100 % 100,
	          nccl->version % 100, nccl->path, nccl->on ? "" : " (FERRY_NCCL=off: all calls are passed on)");
	return nccl;
}

struct wanted {
	const char *name;
	void *function;
};

static bool take_function(const char *path, void *context)
{
	struct wanted *wanted = context;
	void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	if (handle && (wanted->function = dlsym(handle, wanted->name)))
		return true; /* which stays open */
	if (handle)
		dlclose(handle);
	return false;
}

void *ferry_nccl_find_behind(const char *library, const char *name)
{
	struct wanted wanted = {name, dlsym(RTLD_NEXT, name)};
	if (!wanted.function || is_ferry(wanted.function, RTLD_NEXT)) {
		wanted.function = NULL;
		ferry_nccl_search_loaded(library, take_function, &wanted);
	}
	return wanted.function;
}

ncclResult_t ferry_nccl_too_old(const char *name, int since, atomic_flag *logged)
{
	const struct ferry_nccl *nccl = ferry_nccl_get();
	int version = nccl->version;
	own_error = true;
	ferry_fail(ferryInvalidUsage, "%s needs NCCL %d.%d; %s is %d.%d.%d", name, since / 10000, since / 100 % 100,
	           nccl->path, version / 10000, version / 100 % 100, version % 100);
	if (!atomic_flag_test_and_set(logged))
		ferry_log(FERRY_LOG_WARN, "%s", ferry_last_message());
	return ncclInvalidUsage;
}

const char *ferry_nccl_message(void)
{
	const char *message = own_error ? ferry_last_message() : "";
	own_error = false;
	return message;
}
