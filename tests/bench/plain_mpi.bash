#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Whether ferry-perf --vs mpi measures MPI as a plain program of MPI measures itself, within 15%: medians of turns of
# both. It needs a CPU for each of two ranks, and nobody else on them.
#     tests/bench/plain_mpi.bash FOLDER_OF_COMMANDS PLAIN_MPI MPIEXEC [TURNS]
set -euo pipefail
commands=$1 plain=$2 mpiexec=$3 turns=${4:-9} failed=0

median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

for bytes in 1024 65536 1048576; do
	by_plain=() by_ferry_perf=()
	for ((turn = 0; turn < turns; turn++)); do
		by_plain+=("$("$mpiexec" -n 2 "$plain" "$bytes")")
		by_ferry_perf+=("$("$commands/ferryrun" -n 2 -- "$commands/ferry-perf" allreduce --vs mpi -c 0 \
			-b "$bytes" -e "$bytes" 2>/dev/null | awk '$2 == "out" { print $8 }')")
	done
	one=$(printf '%s\n' "${by_plain[@]}" | median)
	other=$(printf '%s\n' "${by_ferry_perf[@]}" | median)
	awk -v bytes="$bytes" -v one="$one" -v other="$other" 'BEGIN {
		off = other / one - 1
		good = off < 0.15 && off > -0.15
		printf "%8d bytes: plain %9.2f us, ferry-perf %9.2f us, %+.0f%%%s\n", bytes, one, other, 100 * off,
			good ? "" : ": over 15%"
		exit !good
	}' || failed=1
done
exit $failed
