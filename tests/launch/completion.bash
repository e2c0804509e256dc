#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A ctest script: what launch/completion.bash offers for what was typed.
#   completion.bash FILE, with the commands on PATH
set -uo pipefail
# shellcheck source=/dev/null
source "$1"
failed=0

# offers WORD...: completes the last WORD; the offers, sorted, in one line, in $offered.
offers() {
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	COMPREPLY=()
	_ferry
	offered=" $(printf '%s\n' "${COMPREPLY[@]}" | sort -u | tr '\n' ' ')"
}
# expect "WORDS" WORD...: these are among what is offered for WORD..., all of it if WORDS ends with a full stop.
expect() {
	local wanted=${1%.} word
	local whole=$1
	shift
	offers "$@"
	for word in $wanted; do
		[[ $offered == *" $word "* ]] && continue
		echo "completing \"$*\": no \"$word\" in \"$offered\"" >&2
		failed=1
	done
	if [[ $whole == *. && $(wc -w <<<"$offered") -ne $(wc -w <<<"$wanted") ]]; then
		echo "completing \"$*\": \"$offered\", not \"$wanted\"" >&2
		failed=1
	fi
}

expect "--domains --fork --join --nccl -n" ferryrun -
expect "--domains." ferryrun --dom
expect "error warn info debug." ferryrun --log = ""
expect "info." ferryrun --log = i
expect "--layout --env" ferry-stat --
expect "--idle-exit." ferry-router --id
expect "host cuda." ferry-perf --device = ""
expect "none hylink." ferry-perf --nccl-sweep =
expect "allreduce allgather sendrecv reduce limits tune" ferry-perf ""
expect "allreduce allgather alltoall alltoallv." ferry-perf al
expect "bf16." ferry-perf allreduce -d b
expect "sum." ferry-perf allreduce -o s
expect "check show draw synth rates" ferryprog ""
expect "show." ferryprog sh
expect "broadcast." ferryprog synth b
expect "host peer" ferryprog synth allgather --fabric ""
expect "alltoall alltoallv." ferryprog synth allt
expect "sendrecv." ferryprog synth send
expect "--collective --domains --fabric --links --ranks --place --root --help --usage --version." ferryprog synth --
expect "--collective --domains --ranks --place --root --output --help --usage --version." ferryprog draw --
expect "--count --slice --window" ferryprog show --
expect "--count --output" ferryprog --
expect "--devices --json --quick --help --usage --version." ferry-perf limits --
expect "--once --quick --help --usage --version." ferry-perf tune --
expect "ferry-perf" ferryrun -n 2 -- ferry-pe
! command -v python3 >/dev/null || expect "--output" ferry-plot --
# A file's name is bash's own to complete: nothing is offered in its place.
expect "." ferry-plot rows.js
expect "." ferryprog check fig
exit $failed
