#!/bin/sh
# Counts what a call costs where time varies too much: instructions, memory and system calls, with
# the stand-in driver alone and in a job. Cache lines have 64 bytes.
# usage: count.sh LIBRARY FAKEGPU_FOLDER TEST_FOLDER SYSCALLS
set -eu
lib=$(realpath "$1")
tests=$(realpath "$3")
syscalls=$(realpath "$4")
export LD_LIBRARY_PATH="$(realpath "$2")" FAKEGPU_QUIET=1 FAKEGPU=h200
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
rounds=101 many=10000

# with_driver HOW COMMAND... runs a command on a machine of its own: native, or in a job.
with_driver() {
	how=$1
	shift
	folder=$(mktemp -d "$work/XXXXXX")
	[ "$how" = native ] || set -- RATION_REGION="$folder/region" CUDA_DEVICE_MEMORY_LIMIT=100g LD_PRELOAD="$lib" "$@"
	env FAKEGPU_STATE="$folder" "$@"
}

# Valgrind's lackey writes a line for each instruction and each access, with address and size.
# Prints the medians over all rounds, and the most instructions of one. A job's process looks once a
# second, beside an allocation, at what the driver has taken by itself: that is the most.
trace() {
	{ with_driver "$1" valgrind --tool=lackey --trace-mem=yes --log-fd=9 "$tests/steady" "$2" "$rounds" 9>&1 >"$work/said"; } | awk -v rounds="$rounds" '
		function number(hex,    i, n) {
			for (i = 1; i <= length(hex); i++)
				n = n * 16 + index("0123456789abcdef", substr(hex, i, 1)) - 1
			return n
		}
		function touch(lines, address, size,    line, last) {
			last = int((address + size - 1) / 64)
			for (line = int(address / 64); line <= last; line++)
				lines[line] = 1
		}
		function number_of(lines,    n, line) {
			for (line in lines)
				n++
			return n + 0
		}
		# Sorts v, too.
		function median(v, n,    i, j, x) {
			for (i = 2; i <= n; i++) {
				x = v[i]
				for (j = i - 1; j > 0 && v[j] > x; j--)
					v[j + 1] = v[j]
				v[j + 1] = x
			}
			return v[int((n + 1) / 2)]
		}
		/^ S 524100000000,8$/ {
			inside = !inside
			if (inside) {
				ran = accessed = 0
				split("", code)
				split("", data)
			} else {
				n++
				instructions[n] = ran
				accesses[n] = accessed
				data_lines[n] = number_of(data)
				code_lines[n] = number_of(code)
			}
			next
		}
		inside && /^I  / { split($2, at, ","); ran++; touch(code, number(at[1]), at[2]) }
		inside && /^ [LSM] / { split($2, at, ","); accessed++; touch(data, number(at[1]), at[2]) }
		END {
			if (n != rounds) {
				print "count.sh: " n + 0 " of " rounds " rounds were seen" >"/dev/stderr"
				exit 1
			}
			i = median(instructions, n)
			print i, instructions[n], median(accesses, n), median(data_lines, n), median(code_lines, n)
		}'
}

# The system calls of many rounds, and which.
syscalls() {
	with_driver "$1" "$syscalls" -o "$work/calls" "$tests/steady" "$2" "$many"
	awk '{ n += $2; names = names " " $1 } END { printf "%d%s\n", n, names }' "$work/calls"
}

printf 'one call in the long run: medians of %s; system calls of %s\n' "$rounds" "$many"
printf '%-31s %-7s %12s %8s %9s %11s %11s  %s\n' call '' instructions most accesses 'data lines' 'code lines' 'system calls'
for call in $("$tests/steady"); do
	for how in native job; do
		trace "$how" "$call" >"$work/$how"
		read -r i most a d c <"$work/$how"
		printf '%-31s %-7s %12d %8d %9d %11d %11d  %s\n' "$call" "$how" "$i" "$most" "$a" "$d" "$c" "$(syscalls "$how" "$call")"
	done
	cat "$work/native" "$work/job" | awk 'NR == 1 { split($0, native) } NR == 2 {
		printf "%-31s %-7s %12d %8d %9d %11d %11d\n", "", "more", $1 - native[1], $2 - native[2], $3 - native[3], $4 - native[4], $5 - native[5] }'
done
