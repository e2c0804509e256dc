/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the program in frees.c, and with it all that it links, for itself alone: as Python opens its modules. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*program)(int rounds);
	*(void **)&program = library ? dlsym(library, "frees_main") : NULL;
	if (!program) {
		printf("not ok: %s\n", dlerror());
		return 1;
	}
	return program(3);
}
