#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The unit of shared routers: systemd takes it and the rules beside it, it leaves a router little, and a router with a
# job makes no system call that it forbids. Given: the source, and the folder of the commands. 77: a tool is not here.
set -euo pipefail
units=$1/launch/systemd commands=$2
command -v systemd-analyze >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
	echo "$*" >&2
	exit 1
}

# As installed, but for where the command is, and what this machine has not got.
sed -e "s,^ExecStart=ferry-router,ExecStart=$commands/ferry-router," "$units/ferry-router@.service" \
	>"$folder/ferry-router@0.service"
said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$folder/ferry-router@0.service" 2>&1 |
	grep -F ferry-router || true)
[[ -z $said ]] || fail "systemd-analyze verify: $said"
if systemd-analyze security --help 2>&1 | grep -q -- --threshold; then
	systemd-analyze security --offline=true --threshold=30 "$folder/ferry-router@0.service" >"$folder/security" ||
		fail "exposed: $(cat "$folder/security")"
fi
# The spare's is the same but for when it starts and stops.
diff <(sed -n '/^\[Service\]/,$p' "$units/ferry-router@.service") \
	<(sed -n '/^\[Service\]/,$p' "$units/ferry-router-spare@.service") >&2 || fail "the spare's unit is another"
sed -e "s,^ExecStart=ferry-router,ExecStart=$commands/ferry-router," "$units/ferry-router-spare@.service" \
	>"$folder/ferry-router-spare@0.service"
said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$folder/ferry-router-spare@0.service" 2>&1 |
	grep -F ferry-router || true)
[[ -z $said ]] || fail "systemd-analyze verify: $said"
! command -v systemd-sysusers >/dev/null || systemd-sysusers --dry-run "$units/sysusers.conf" >/dev/null 2>&1
"$commands/ferry-router" --help | grep -q -- --config

# What it may call is in the lists that systemd has; what it calls, in strace's.
command -v strace >/dev/null || exit 77
list() {
	systemd-analyze syscall-filter "$1" | sed 's/^ *//' | while read -r word; do
		case $word in
		"$1" | '#'* | '') ;;
		@*) list "$word" ;;
		*) echo "$word" ;;
		esac
	done
}
list @system-service | sort -u >"$folder/allowed"
[[ $(wc -l <"$folder/allowed") -gt 200 ]] || fail "only $(wc -l <"$folder/allowed") calls in @system-service"
export FERRY_SOCKET_DIR=$folder FERRY_DOMAINS=1 FERRY_ROUTER=required
unset NOTIFY_SOCKET
printf '[tenant own]\nusers = %s\n' "$(id -u)" >"$folder/tenants"
mkfifo "$folder/ready"
strace -f -qq -o "$folder/trace" "$commands/ferry-router" --config "$folder/tenants" --idle-exit 1 --ready-fd 3 \
	3>"$folder/ready" &
router=$!
read -r -n 1 -d '' <"$folder/ready" || true
FERRY_RANK=0 FERRY_SIZE=1 "$commands/ferry-perf" allreduce -e 64K -n 1 >/dev/null
"$commands/ferry-stat" --once >/dev/null
wait "$router" || fail "the router under strace ended with $?"
sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' "$folder/trace" | sort -u >"$folder/called"
[[ $(wc -l <"$folder/called") -gt 20 ]] || fail "strace has seen only: $(tr '\n' ' ' <"$folder/called")"
forbidden=$(comm -23 "$folder/called" "$folder/allowed")
[[ -z $forbidden ]] || fail "the unit forbids what a router calls: $forbidden"
