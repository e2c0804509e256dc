/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/search.h"

#include <argz.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "libnccl.so.2"
#define WHEEL   "nvidia/nccl/lib/" LIBRARY

/* Paths of the process's objects. They are copied first: trying one opens it, which the loader's lock forbids. */
struct paths {
	char *text; /* one after the other, each with its NUL (argz.h) */
	size_t bytes;
};

static int keep_path(struct dl_phdr_info *object, size_t bytes, void *context)
{
	struct paths *all = context;
	(void)bytes;
	return object->dlpi_name && *object->dlpi_name && argz_add(&all->text, &all->bytes, object->dlpi_name);
}

/* libnccl.so.2, libnccl.so.2.28.9, and libnccl-1a2b3c4d.so.2, as tools name it that put libraries into wheels. */
static bool names(const char *path, const char *library)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t length = strlen(library);
	if (strncmp(name, library, length))
		return false;
	name += length;
	if (*name == '-')
		name += 1 + strspn(name + 1, "0123456789abcdef");
	return !strncmp(name, ".so", 3);
}

bool ferry_nccl_search_loaded(const char *library, ferry_nccl_try attempt, void *context)
{
	struct paths all = {0};
	bool found = false;
	dl_iterate_phdr(keep_path, &all);
	for (char *path = NULL; !found && (path = argz_next(all.text, all.bytes, path));)
		found = names(path, library) && attempt(path, context);
	free(all.text);
	return found;
}

static bool try_file(const char *folder, const char *name, ferry_nccl_try attempt, void *context)
{
	char path[PATH_MAX];
	if ((size_t)snprintf(path, sizeof path, "%s/%s", *folder ? folder : ".", name) >= sizeof path)
		return false;
	return !access(path, R_OK) && attempt(path, context);
}

/* The folders in which the loader looks for what the object at this address needs. */
static Dl_serinfo *folders_of(const void *address)
{
	Dl_info info;
	struct link_map *object = NULL;
	Dl_serinfo size, *folders = NULL;
	if (!dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) || !object)
		return NULL;
	void *handle = dlopen(*object->l_name ? object->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
	if (!handle)
		return NULL;
	if (!dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) && (folders = calloc(1, size.dls_size))) {
		folders->dls_size = size.dls_size;
		folders->dls_cnt = size.dls_cnt;
		if (dlinfo(handle, RTLD_DI_SERINFO, folders)) {
			free(folders);
			folders = NULL;
		}
	}
	dlclose(handle);
	return folders;
}

static bool search_folders(const void *caller, ferry_nccl_try attempt, void *context)
{
	Dl_serinfo *folders = folders_of(caller);
	bool found = false;
	for (unsigned i = 0; folders && i < folders->dls_cnt && !found; i++)
		found = try_file(folders->dls_serpath[i].dls_name, LIBRARY, attempt, context);
	free(folders);
	return found;
}

/* Whatever the cache's layout, the paths in it are strings that end with a NUL. */
static bool search_text(const char *text, size_t bytes, ferry_nccl_try attempt, void *context)
{
	static const char wanted[] = "/" LIBRARY;
	const char *end = text + bytes, *at = text;
	while ((at = memmem(at, (size_t)(end - at), wanted, sizeof wanted))) {
		const char *start = at;
		while (start > text && start[-1])
			start--;
		if (*start == '/' && attempt(start, context))
			return true;
		at += sizeof wanted;
	}
	return false;
}

static bool search_cache(ferry_nccl_try attempt, void *context)
{
	struct stat status;
	bool found = false;
	int file = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	if (!fstat(file, &status) && status.st_size > 0) {
		size_t bytes = (size_t)status.st_size;
		void *text = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
		if (text != MAP_FAILED) {
			found = search_text(text, bytes, attempt, context);
			munmap(text, bytes);
		}
	}
	close(file);
	return found;
}

/* Beside packages that are loaded: /usr/lib/python3/dist-packages/torch/lib/libtorch.so. */
static bool search_loaded_packages(ferry_nccl_try attempt, void *context)
{
	struct paths all = {0};
	bool found = false;
	dl_iterate_phdr(keep_path, &all);
	for (char *path = NULL; !found && (path = argz_next(all.text, all.bytes, path));)
		for (char *at = path; !found && (at = strstr(at, "-packages/")); *at = '/') {
			at += strlen("-packages");
			*at = '\0';
			found = try_file(path, WHEEL, attempt, context);
		}
	free(all.text);
	return found;
}

/* Searches the packages of the Python that is the program: /opt/python/bin/python3.11. */
static bool search_own_packages(ferry_nccl_try attempt, void *context)
{
	char program[PATH_MAX], pattern[PATH_MAX + 64];
	glob_t files;
	bool found = false;
	ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
	if (length <= 0)
		return false;
	program[length] = '\0';
	for (int d2h = 0; d2h < 2; d2h++) {
		char *slash = strrchr(program, '/');
		if (!slash)
			return false;
		*slash = '\0';
	}
	snprintf(pattern, sizeof pattern, "%s/lib/python3*/*-packages/" WHEEL, program);
	if (glob(pattern, 0, NULL, &files))
		return false;
	for (size_t i = 0; i < files.gl_pathc && !found; i++)
		found = attempt(files.gl_pathv[i], context);
	globfree(&files);
	return found;
}

bool ferry_nccl_search_files(const void *caller, ferry_nccl_try attempt, void *context)
{
	return search_folders(caller, attempt, context) || search_cache(attempt, context) ||
	       search_loaded_packages(attempt, context) || search_own_packages(attempt, context);
}
