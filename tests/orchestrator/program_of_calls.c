/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orchestrator/program_of_calls.h"

#include <string.h>

void program_start(struct program *program, const struct fabrics *fabrics, uint32_t usable, double bytes)
{
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	memset(program, 0, sizeof *program);
	program->fabrics = *fabrics;
	program->fabrics.seed = 7;
	rules.usable = usable;
	ferry_balancer_init(&program->balancer, &rules);
	program->call = (struct ferry_balancer_call){FERRY_ALLREDUCE, ferryFloat32, (uint64_t)bytes, false};
}

void program_know(struct program *program, double host_wrong, double nccl_wrong)
{
	for (int c = 0; c < FERRY_NUM_FABRICS; c++) {
		struct ferry_pace pace = program->fabrics.paces[c];
		pace.rate *= c == NCCL ? nccl_wrong : host_wrong;
		if (pace.rate > 0)
			program->balancer.rules.paces[c] = pace;
	}
}

double program_call(struct program *program, uint64_t late)
{
	double us[FERRY_NUM_FABRICS];
	uint64_t n = program->n++;
	uint32_t word = ferry_balancer_propose(&program->balancer, &program->call, n, program->trying);
	bool measured = ferry_balancer_measures(&program->balancer, &program->call, n);
	struct ferry_shares shares = ferry_shares_unpack(word);
	double took = fabrics_call(&program->fabrics, (double)program->call.bytes, &shares, us);
	program->busy_us += took;
	if (program->log)
		fprintf(program->log,
		        "{\"call\":%llu,\"collective\":\"%s\",\"type\":\"\",\"bytes\":%llu,\"host\":%.4f,\"peer\":%.4f,"
		        "\"nccl\":%.4f,\"us\":%.1f,\"host_us\":%.1f,\"peer_us\":%.1f,\"nccl_us\":%.1f}\n",
		        (unsigned long long)n, program->name, (unsigned long long)program->call.bytes,
		        shares.part[HOST] / 1024.0, shares.part[PEER] / 1024.0, shares.part[NCCL] / 1024.0, took,
		        us[HOST], us[PEER], us[NCCL]);
	if (!late) {
		if (measured)
			ferry_balancer_feed(&program->balancer, &program->call, word, us);
		return took;
	}
	double *slot = program->fed[n % late];
	program->trying = 0;
	const struct ferry_balancer_line *line = ferry_balancer_line(&program->balancer, &program->call);
	for (uint64_t i = n >= late ? n - late + 1 : 0; i < n; i++)
		program->trying += program->words[i % late] != line->word;
	program->trying += word != line->word;
	if (n >= late && slot[0] >= 0)
		ferry_balancer_feed(&program->balancer, &program->call, program->words[n % late], slot);
	memcpy(slot, us, sizeof us);
	program->words[n % late] = word;
	if (!measured)
		slot[0] = -1;
	return took;
}

double program_excess(const struct program *program, struct ferry_shares *shares)
{
	struct ferry_shares best;
	double us[FERRY_NUM_FABRICS];
	const struct ferry_balancer *balancer = &program->balancer;
	double bytes = (double)program->call.bytes;
	*shares = ferry_shares_unpack(
	        ferry_balancer_line((struct ferry_balancer *)balancer, &program->call)->word);
	return fabrics_us(&program->fabrics, bytes, shares, us) /
	       fabrics_best(&program->fabrics, bytes, balancer->rules.usable, balancer->rules.floor_bytes, &best);
}
