# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Completion in bash for Ferry's commands. What there is to complete is read from each command's --help, so that a new
# option needs nothing here; only lists that no help text has whole are written down. Installed under each command's
# name, for bash-completion to load; sourced by hand it serves all of them.

# Which of several commands in one was typed, if any: "synth", "limits", "tune".
_ferry_subcommand() {
	local typed
	case ${1##*/} in
	ferry-perf) [[ ${COMP_WORDS[1]} =~ ^(limits|tune)$ ]] && ((COMP_CWORD > 1)) && echo "${COMP_WORDS[1]}" ;;
	ferryprog)
		for typed in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
			[[ $typed =~ ^(check|show|draw|synth|rates)$ ]] && echo "$typed" && return
		done
		;;
	esac
}

# The column of options of a command's help, a line an option: "-d, --domain=D", "--device=host|cuda". Those of
# ferryprog stand below lines that say what they are of: "Of draw:"; where none does, they are of all.
_ferry_options() {
	local subcommand
	subcommand=$(_ferry_subcommand "$1")
	if [[ ${1##*/} == ferryprog ]]; then
		"$1" --help 2>/dev/null | awk -v word="$subcommand" '
			/^$/ { of = "" }
			/^ [^ -]/ { of = of $0 " " }
			/^ +-/ && (word == "" || of == "" || of ~ "[ ,]" word "[ ,:]")'
	else
		# shellcheck disable=SC2086 # none is no word
		"$1" $subcommand --help 2>/dev/null
	fi | sed -n 's/^ \{1,6\}\(-.*\)/\1/p' | sed 's/   *.*//; s/\[.*//'
}

# What an option's value may be, where that is a list; nothing where it is a number or a file.
_ferry_values() {
	local command=$1 option=$2
	case ${command##*/}:$option in
	*:--log) echo error warn info debug ;;
	*:--mpiexec) compgen -A command -- "${word:-mpi}" ;;
	ferry-perf:-d | ferryprog:-t | ferryprog:--type)
		echo i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2
		;;
	ferry-perf:-o | ferryprog:--op) echo sum prod min max avg premulsum ;;
	ferryprog:-c | ferryprog:--collective) _ferry_collectives ferryprog ;;
	*) _ferry_options "$command" | sed -n "s/.*$option=\([a-z0-9]*|[a-z0-9|]*\).*/\1/p" | tr '|' ' ' ;;
	esac
}

_ferry_collectives() {
	if [[ ${1##*/} == ferryprog ]]; then
		echo allreduce allgather reducescatter broadcast reduce gather scatter alltoall alltoallv sendrecv
		return
	fi
	"$1" --help 2>/dev/null | tr '\n' ' ' | sed 's/.*COLLECTIVE: \([^.]*\)\..*/\1/; s/,/ /g'
	echo " limits tune"
}

# What goes first, before any option's value: a collective, or what ferryprog is to do.
_ferry_subjects() {
	case ${1##*/} in
	ferry-perf) _ferry_collectives "$1" ;;
	ferryprog)
		if [[ $(_ferry_subcommand "$1") == synth ]]; then
			_ferry_collectives "$1"
		elif ((COMP_CWORD == 1)); then
			"$1" --help 2>/dev/null | sed -n 's/^.*: *ferryprog \[OPTION\.\.\.\] \([a-z]*\).*/\1/p' |
				sort -u
		fi
		;;
	esac
}

# Behind ferryrun's "--" another command line begins: its first word is a command, the others are that command's.
_ferry_behind() {
	local i
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == -- ]] || continue
		if declare -F _command_offset >/dev/null; then
			_command_offset $((i + 1))
		elif ((COMP_CWORD == i + 1)); then
			mapfile -t COMPREPLY < <(compgen -A command -- "$word")
		fi
		return 0
	done
	return 1
}

_ferry() {
	local command=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} words=""
	COMPREPLY=()
	[[ ${command##*/} != ferryrun ]] || ! _ferry_behind || return 0
	# bash takes "--log=info" for three words.
	if [[ $word == "=" ]]; then
		word=""
	elif [[ $option == "=" ]]; then
		option=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	if [[ $option == -* && $option != -- ]]; then
		words=$(_ferry_values "$command" "$option")
	fi
	if [[ -z $words && $word == -* ]]; then
		words=$(_ferry_options "$command" | grep -oE -- '(^|[ ,])--?[A-Za-z?][-a-z]*')
	elif [[ -z $words && $option != -?* ]]; then
		words=$(_ferry_subjects "$command")
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -o default -F _ferry ferryrun ferry-router ferry-stat ferryprog ferry-perf ferry-plot
