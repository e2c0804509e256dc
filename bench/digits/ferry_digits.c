/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-digits: a 64-32-10 network learns handwritten digits, data-parallel, its gradients summed by Ferry. At the end
 * rank 0 trains alone on the same data and compares the weights bit by bit (bench/digits/README.md says why they are
 * equal).
 */
#include "ferry.h"

#include <argp.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define PIXELS 64
#define HIDDEN 32
#define DIGITS 10
#define SAMPLES 1797
#define TRAINED 1500 /* the rest is for testing */
#define BATCH 150
#define FIRST_BIAS (PIXELS * HIDDEN)
#define SECOND (FIRST_BIAS + HIDDEN)
#define SECOND_BIAS (SECOND + HIDDEN * DIGITS)
#define WEIGHTS (SECOND_BIAS + DIGITS)
#define LOSS WEIGHTS /* the sum of losses travels behind the gradients */
#define LEAST_ACCURACY 80 /* percent; 30 epochs reach 92 */
#define FIXED 4294967296.0 /* 2^32: a sum of 1,500 gradients below 2^20 each fits 64 bits */

struct sample {
	float pixels[PIXELS];
	int digit;
};

struct options {
	const char *data;
	int epochs;
	double rate;
};

struct trainer {
	const struct sample *samples;
	double weights[WEIGHTS];
	int64_t gradient[WEIGHTS + 1];
	ferryComm_t comm; /* NULL: alone */
	int rank, nranks;
	double ferry_s, compute_s;
};

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static bool load(const char *path, struct sample *samples)
{
	char line[1024];
	int count = 0;
	gzFile file = gzopen(path, "rb");
	while (file && count < SAMPLES && gzgets(file, line, sizeof line)) {
		char *next = line;
		for (int i = 0; i < PIXELS; i++, next += *next == ',')
			samples[count].pixels[i] = strtof(next, &next) / 16;
		samples[count].digit = (int)strtof(next, &next);
		if (samples[count].digit < 0 || samples[count].digit >= DIGITS)
			break;
		count++;
	}
	if (file)
		gzclose(file);
	if (count != SAMPLES)
		fprintf(stderr, "ferry-digits: %s: %d digits read of %d\n", path, count, SAMPLES);
	return count == SAMPLES;
}

/* The same start everywhere: a 64-bit linear congruential generator. */
static void init_weights(double *weights)
{
	uint64_t state = 20260101;
	for (int i = 0; i < WEIGHTS; i++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		double uniform = (double)(state >> 11) / 9007199254740992.0 - 0.5;
		bool bias = (i >= FIRST_BIAS && i < SECOND) || i >= SECOND_BIAS;
		weights[i] = bias ? 0 : uniform * (i < FIRST_BIAS ? 0.4 : 0.6);
	}
}

static int forward(const double *weights, const struct sample *sample, double *hidden, double *probability)
{
	double most = -1e300, sum = 0;
	int guess = 0;
	for (int j = 0; j < HIDDEN; j++) {
		double value = weights[FIRST_BIAS + j];
		for (int i = 0; i < PIXELS; i++)
			value += weights[i * HIDDEN + j] * (double)sample->pixels[i];
		hidden[j] = tanh(value);
	}
	for (int k = 0; k < DIGITS; k++) {
		probability[k] = weights[SECOND_BIAS + k];
		for (int j = 0; j < HIDDEN; j++)
			probability[k] += weights[SECOND + j * DIGITS + k] * hidden[j];
		if (probability[k] > most) {
			most = probability[k];
			guess = k;
		}
	}
	for (int k = 0; k < DIGITS; k++)
		sum += probability[k] = exp(probability[k] - most);
	for (int k = 0; k < DIGITS; k++)
		probability[k] /= sum;
	return guess;
}

static void add(int64_t *total, double value)
{
	*total += (int64_t)llrint(value * FIXED);
}

static void add_gradient(struct trainer *trainer, const struct sample *sample)
{
	double hidden[HIDDEN], error[DIGITS];
	forward(trainer->weights, sample, hidden, error);
	add(&trainer->gradient[LOSS], -log(error[sample->digit]));
	error[sample->digit] -= 1;
	for (int k = 0; k < DIGITS; k++)
		add(&trainer->gradient[SECOND_BIAS + k], error[k]);
	for (int j = 0; j < HIDDEN; j++) {
		double back = 0;
		for (int k = 0; k < DIGITS; k++) {
			add(&trainer->gradient[SECOND + j * DIGITS + k], error[k] * hidden[j]);
			back += error[k] * trainer->weights[SECOND + j * DIGITS + k];
		}
		back *= 1 - hidden[j] * hidden[j];
		add(&trainer->gradient[FIRST_BIAS + j], back);
		for (int i = 0; i < PIXELS; i++)
			add(&trainer->gradient[i * HIDDEN + j], back * (double)sample->pixels[i]);
	}
}

static bool sum_over_ranks(struct trainer *trainer)
{
	double start = now();
	if (!trainer->comm)
		return true;
	ferryResult_t result = ferryAllReduce(trainer->gradient, trainer->gradient, WEIGHTS + 1, ferryInt64, ferrySum,
	                                      trainer->comm, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	trainer->ferry_s += now() - start;
	if (result)
		fprintf(stderr, "ferry-digits: rank %d: %s\n", trainer->rank, ferryGetLastError(NULL));
	return result == ferrySuccess;
}

static bool train_epoch(struct trainer *trainer, const struct options *options, double *loss)
{
	*loss = 0;
	for (int first = 0; first < TRAINED; first += BATCH) {
		double start = now();
		memset(trainer->gradient, 0, sizeof trainer->gradient);
		for (int i = first + trainer->rank; i < first + BATCH; i += trainer->nranks)
			add_gradient(trainer, &trainer->samples[i]);
		trainer->compute_s += now() - start;
		if (!sum_over_ranks(trainer))
			return false;
		for (int i = 0; i < WEIGHTS; i++)
			trainer->weights[i] -= options->rate * ((double)trainer->gradient[i] / FIXED / BATCH);
		*loss += (double)trainer->gradient[LOSS] / FIXED / TRAINED;
	}
	return true;
}

static double accuracy(const struct trainer *trainer)
{
	double hidden[HIDDEN], probability[DIGITS];
	int right = 0;
	for (int i = TRAINED; i < SAMPLES; i++)
		right += forward(trainer->weights, &trainer->samples[i], hidden, probability) ==
		         trainer->samples[i].digit;
	return 100.0 * right / (SAMPLES - TRAINED);
}

static bool train(struct trainer *trainer, const struct options *options, bool show)
{
	init_weights(trainer->weights);
	for (int epoch = 1; epoch <= options->epochs; epoch++) {
		double loss;
		if (!train_epoch(trainer, options, &loss))
			return false;
		if (show && (epoch <= 5 || epoch % 5 == 0))
			printf("epoch %3d  loss %.4f  test accuracy %5.2f%%  compute %7.1f ms  Ferry %6.1f ms\n", epoch,
			       loss, accuracy(trainer), trainer->compute_s * 1e3, trainer->ferry_s * 1e3);
		fflush(stdout);
	}
	return true;
}

/* A few test digits as the network sees them. */
static void show_digits(const struct trainer *trainer)
{
	static const char shades[] = " .:-=+*#%@";
	double hidden[HIDDEN], probability[DIGITS];
	const int shown = 7;
	for (int row = 0; row < 8; row++) {
		for (int i = 0; i < shown; i++) {
			const float *pixels = trainer->samples[TRAINED + i].pixels + 8 * row;
			for (int column = 0; column < 8; column++)
				putchar(shades[(int)(pixels[column] * 9)]);
			printf("  ");
		}
		putchar('\n');
	}
	for (int i = 0; i < shown; i++) {
		const struct sample *sample = &trainer->samples[TRAINED + i];
		printf("%d -> %d    ", sample->digit, forward(trainer->weights, sample, hidden, probability));
	}
	putchar('\n');
}

static bool compare_with_one_rank(const struct trainer *trainer, const struct options *options)
{
	struct trainer *alone = calloc(1, sizeof *alone);
	int different = 0;
	if (!alone)
		return false;
	alone->samples = trainer->samples;
	alone->nranks = 1;
	train(alone, options, false);
	for (int i = 0; i < WEIGHTS; i++)
		different += memcmp(&alone->weights[i], &trainer->weights[i], sizeof(double)) != 0;
	printf("%s: %d of %d weights of %d ranks equal those of 1 rank to the last bit\n", different ? "FAIL" : "PASS",
	       WEIGHTS - different, WEIGHTS, trainer->nranks);
	free(alone);
	return !different;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct options *options = state->input;
	char *end;
	long epochs;
	switch (key) {
	case 'e':
		epochs = strtol(value, &end, 10);
		if (*end || epochs < 1 || epochs > 10000)
			argp_error(state, "--epochs: \"%s\" is not a number from 1 to 10000", value);
		options->epochs = (int)epochs;
		return 0;
	case 'd':
		options->data = value;
		return 0;
	case 'r':
		options->rate = strtod(value, &end);
		if (*end || !(options->rate > 0 && options->rate <= 1000))
			argp_error(state, "--rate: \"%s\" is not a number over 0 and up to 1000", value);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Explains why so small a step spends more time in its AllReduce than in computing. */
static void show_times(const struct trainer *trainer, const struct options *options)
{
	int steps = options->epochs * (TRAINED / BATCH), cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	printf("%d rank%s: %d steps, each %.2f ms of computing and %.2f ms of an AllReduce of %zu bytes, in which\n",
	       trainer->nranks, trainer->nranks == 1 ? "" : "s", steps, trainer->compute_s * 1e3 / steps,
	       trainer->ferry_s * 1e3 / steps, sizeof trainer->gradient);
	if (trainer->nranks > cpus)
		printf("rank 0 waits for the others: %d ranks and the routers take turns on %d CPU%s.\n",
		       trainer->nranks, cpus, cpus == 1 ? "" : "s");
	else
		printf("rank 0 waits for the others, too.\n");
	printf("A network this small is for the proof below.\n");
}

static int run(const struct options *options, struct trainer *trainer)
{
	bool fine = train(trainer, options, trainer->rank == 0);
	if (fine && trainer->rank == 0) {
		show_digits(trainer);
		show_times(trainer, options);
		fine = compare_with_one_rank(trainer, options);
		if (accuracy(trainer) < LEAST_ACCURACY) {
			printf("FAIL: %.2f%% of the test digits recognized, fewer than %d%%\n", accuracy(trainer),
			       LEAST_ACCURACY);
			fine = false;
		}
	}
	return fine ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct argp_option list[] = {
		{"epochs", 'e', "N", 0, "Passes over the training digits (default 30)", 0},
		{"rate", 'r', "RATE", 0, "Learning rate (default 1.0)", 0},
		{"data", 'd', "FILE", 0, "The digits (default: those of the source tree)", 0},
		{0}};
	static const struct argp argp = {
	        .options = list,
	        .parser = parse,
	        .doc = "Trains a small network on 1,500 handwritten digits, data-parallel, and tests it on 297.\v"
	               "ferryrun -n 4 --domains 2 -- ferry-digits\n"
	               "Exit code 1 if the weights differ from one rank's or fewer than 80% of the test digits are "
	               "recognized."};
	static struct sample samples[SAMPLES];
	static struct trainer trainer = {.samples = samples, .nranks = 1};
	struct options options = {FERRY_DIGITS_DATA, 30, 1.0};
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	argp_program_version = "ferry-digits 0.1.0";
	if (argp_parse(&argp, argc, argv, 0, NULL, &options))
		return 64;
	if (!load(options.data, samples))
		return 1;
	config.device = "host"; /* weights and gradients are in ordinary memory */
	if (ferryCommInitEnv(&trainer.comm, &config)) {
		fprintf(stderr, "ferry-digits: %s\n", ferryGetLastError(NULL));
		return 1;
	}
	ferryCommCount(trainer.comm, &trainer.nranks);
	ferryCommUserRank(trainer.comm, &trainer.rank);
	int code = run(&options, &trainer);
	return ferryCommDestroy(trainer.comm) ? 1 : code;
}
