/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner_offer.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "orchestrator/config.h"
#include "orchestrator/nccl_tuner.h"
#include "orchestrator/real.h"

#include <dlfcn.h>
#include <limits.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define VARIABLE "NCCL_TUNER_PLUGIN"
#define MOST     255 /* bytes of a name that NCCL reads */

/* This library's own path; false where it is not a library's, as in tests. */
static bool find_own_path(char path[PATH_MAX])
{
	Dl_info info;
	return dladdr(&ncclTunerPlugin_v5, &info) && info.dli_fname && strstr(info.dli_fname, ".so") &&
	       realpath(info.dli_fname, path) && strlen(path) < MOST;
}

/* Sets the variable, if the user has not and FERRY_NCCL is not off. Called when the library is loaded. */
__attribute__((constructor)) static void offer(void)
{
	char path[PATH_MAX];
	const char *on = ferry_env("FERRY_NCCL");
	if ((!on || !strcmp(on, "on") || !strcmp(on, "tune")) && !getenv(VARIABLE) && find_own_path(path))
		setenv(VARIABLE, path, 1);
}

/* Whether NCCL's file sets a variable that the environment lacks. */
static bool file_sets(const char *path, const char *name)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t bytes = 0, length = strlen(name);
	bool sets = false;
	while (file && !sets && getline(&line, &bytes, file) >= 0)
		sets = !strncmp(line, name, length) && line[length] == '=';
	free(line);
	if (file)
		fclose(file);
	return sets;
}

/* Any of the files that NCCL's versions read. The user's folder is HOME since 2.30, before the one in the accounts. */
static bool files_set(const char *name)
{
	const char *named = getenv("NCCL_CONF_FILE");
	char path[PATH_MAX], text[1024];
	struct passwd account, *user = NULL;
	bool set = file_sets("/etc/nccl.conf", name) || (named && file_sets(named, name));
	if (getpwuid_r(getuid(), &account, text, sizeof text, &user))
		user = NULL;
	const char *homes[] = {getenv("HOME"), user ? user->pw_dir : NULL};
	for (int i = 0; i < 2 && !set; i++) {
		snprintf(path, sizeof path, "%s/.nccl.conf", homes[i] ? homes[i] : "");
		set = homes[i] && file_sets(path, name);
	}
	return set;
}

/* It stays open, as NCCL opens it next. */
static bool is_tuner(const char *library)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	char name[32];
	bool found = false;
	for (int version = 2; handle && version <= 9 && !found; version++) {
		snprintf(name, sizeof name, "ncclTunerPlugin_v%d", version);
		found = dlsym(handle, name) != NULL;
	}
	return found;
}

/* Whether NCCL finds a tuner without the variable: in libnccl-tuner.so, or in its network plugins. */
static bool has_own(void)
{
	const char *nets = getenv("NCCL_NET_PLUGIN");
	char net[MOST], library[MOST + 32];
	if (is_tuner("libnccl-tuner.so"))
		return true;
	if (!nets || !*nets)
		return is_tuner("libnccl-net.so");
	for (const char *at = nets; *at; at += *at == ',') {
		size_t length = strcspn(at, ",");
		snprintf(net, sizeof net, "%.*s", (int)length, at);
		snprintf(library, sizeof library, "libnccl-net-%s.so", net);
		if (*net && (is_tuner(net) || is_tuner(library)))
			return true;
		at += length;
	}
	return false;
}

/* Whether a CTA policy is set: a tuner plugin would switch the policy of efficiency off. */
static bool has_policy(const ncclConfig_t *config)
{
	const char *policy = getenv("NCCL_CTA_POLICY");
	return (policy && *policy && strcmp(policy, "0") && strcasecmp(policy, "DEFAULT")) ||
	       files_set("NCCL_CTA_POLICY") || ferry_nccl_config_has_policy(config);
}

static void settle(const ncclConfig_t *config)
{
	const char *set = getenv(VARIABLE);
	char path[PATH_MAX];
	if (!set || !find_own_path(path) || strcmp(set, path))
		return;
	const char *why = files_set(VARIABLE) ? "a file of NCCL's names one"
	                  : has_own()         ? "NCCL finds one of its own"
	                  : has_policy(config) ? "a CTA policy is set, which it would switch off"
	                                       : NULL;
	if (!why)
		return;
	unsetenv(VARIABLE);
	ferry_log(FERRY_LOG_INFO, "NCCL is not offered Ferry's tuner: %s", why);
}

void ferry_nccl_tuner_settle(const ncclConfig_t *config)
{
	static atomic_bool settled;
	if (atomic_load_explicit(&settled, memory_order_relaxed))
		return;
	/* Threads that come at the same time look each for itself, as no lock may be held while the loader works. */
	ferry_nccl_inside++; /* constructors of plugins */
	settle(config);
	ferry_nccl_inside--;
	atomic_store_explicit(&settled, true, memory_order_relaxed);
}
