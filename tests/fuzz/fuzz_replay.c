/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main program of a fuzz target without libFuzzer: feeds it every file of the directories given, as it is, cut
 * short, and with bytes changed by a generator of fixed seed. So `make check` runs the targets on every machine, the
 * same each time.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void feed(const uint8_t *data, size_t size, unsigned mutants)
{
	uint64_t state = 0x9e3779b97f4a7c15u ^ size;
	uint8_t *mutant = malloc(size ? size : 1);
	LLVMFuzzerTestOneInput(data, size);
	for (unsigned cut = 0; cut < 16; cut++)
		LLVMFuzzerTestOneInput(data, size * cut / 16);
	for (unsigned i = 0; mutant && size && i < mutants; i++) {
		memcpy(mutant, data, size);
		for (uint64_t changes = 1 + next_random(&state) % 3; changes; changes--) {
			size_t at = next_random(&state) % size;
			/* a bit, a neighbour's byte or any byte: text and binary both come near to valid again */
			switch (next_random(&state) % 3) {
			case 0:
				mutant[at] ^= (uint8_t)(1u << next_random(&state) % 8);
				break;
			case 1:
				mutant[at] = data[next_random(&state) % size];
				break;
			default:
				mutant[at] = (uint8_t)next_random(&state);
			}
		}
		LLVMFuzzerTestOneInput(mutant, size);
	}
	free(mutant);
}

static int feed_file(const char *path, unsigned mutants)
{
	static uint8_t data[MOST_BYTES];
	FILE *file = fopen(path, "rb");
	if (!file)
		return 0;
	size_t size = fread(data, 1, sizeof data, file);
	fclose(file);
	feed(data, size, mutants);
	return 1;
}

static unsigned feed_directory(const char *path, unsigned mutants)
{
	DIR *directory = opendir(path);
	unsigned fed = 0;
	if (!directory) {
		perror(path);
		return 0;
	}
	for (struct dirent *entry; (entry = readdir(directory));) {
		char file[4096];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
		fed += feed_file(file, mutants);
	}
	closedir(directory);
	return fed;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s MUTANTS-PER-FILE DIRECTORY...\n", argv[0]);
		return 64;
	}
	unsigned mutants = (unsigned)strtoul(argv[1], NULL, 10);
	for (int i = 2; i < argc; i++) {
		unsigned fed = feed_directory(argv[i], mutants);
		printf("%s: %u files, %u mutants of each\n", argv[i], fed, mutants);
		if (!fed)
			return 1;
	}
	return 0;
}
