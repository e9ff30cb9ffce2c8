# Runs the programs against fakegpu: alone, and with libration.so preloaded and a limit. The
# accounts are not checked here: the tester does that. $1 is the build folder.
set -eu
built=$(cd "$1" && pwd)
bin=$built/gpu-test/bin
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

piece=16777216 few=536870912 many=2147483648
strict=2 # a leak is a mistake

# play runs a program through all its steps, with its output in $dir/said. $how is alone or
# limited.
play() {
	if [ "$how" = limited ]; then
		set -- LD_PRELOAD="$built/libration.so" RATION_REGION="$dir/region" CUDA_DEVICE_MEMORY_LIMIT=300m RATION_LOG=error "$@"
	fi
	set -- env LD_LIBRARY_PATH="$built/fakegpu" FAKEGPU=small:1g FAKEGPU_CONTEXT=1m FAKEGPU_STATE="$dir/gpu" \
		FAKEGPU_STRICT="$strict" FAKEGPU_QUIET=1 "$@"
	timeout 60 "$@" <"${input:-$dir/newlines}" >"$dir/said"
}

# expect compares words, and prints which program was wrong.
expect() {
	[ "$2" = "$3" ] && return
	printf '%s, %s:\n  got  %s\n  want %s\n' "$1" "$how" "$2" "$3" >&2
	cat "$dir/said" >&2
	exit 1
}

names() { sed -n 's/^step \([a-z]*\) .*/\1/p' "$dir/said" | tr '\n' ' '; }
value() { sed -n "s/^step $1 .*\b$2=\([0-9]*\).*/\1/p" "$dir/said" | tail -n 1; }

# path runs one allocation path; $2 are its steps, $3 is the value of refused at full.
path() {
	play "$bin/allocpaths" "$1" "$piece" "${most:-$few}"
	expect "$1, steps" "$(names)" "$2 "
	expect "$1, full" "$(value full refused)" "$3"
	expect "$1, freed" "$(value freed data)" 0
}

paths() {
	for p in linear odd pitch managed array; do
		# Managed memory never fills a device.
		if [ "$p" != managed ] || [ "${most:-$few}" = "$few" ]; then
			path $p 'empty held full freed again' "$1"
		fi
	done
	path pool 'empty held freed trimmed full freed again' "$1"
	path vmm 'empty created mapped held released unmapped full freed again' "$1"
	path graph 'empty launched trimmed held full freed again' "$1"
}

others() {
	strict=1 # the program does not free what its contexts hold
	path contexts 'empty held one two three freed again' ''
	strict=2
	path module 'empty held freed again' ''
	expect module "$(value held module)" 67108864

	play "$bin/ipc" "$piece"
	expect ipc "$(names)" 'exported imported closed freed '
	expect ipc "$(value imported data)" "$piece"
	strict=1 # the maker ends with its memory
	play "$bin/handles" "$piece"
	expect handles "$(names)" 'made exported imported released closed gone kept orphan left alone ended '
	strict=2
	play "$bin/forker" "$piece"
	expect forker "$(names)" 'forked more two one freed '
	expect forker "$(value two data)" $((3 * piece))
	play "$bin/forker" "$piece" outlived
	expect forker "$(names)" 'holding '
}

# Numbers that differ from run to run are replaced by N. Only those of the command memory can
# be 0: the memory of a library that is not loaded.
timing() {
	printf '%s\n' 'pin 0' init nvml 'live 10 65536' 'alloc 200 4096' 'async 200 65536' 'launch 250' 'info 100' \
		'live 3 65536' 'live 2 131072' 'alloc 1 1099511627776' 'alloc 1 0' memory quit >"$dir/lines"
	input=$dir/lines play "$bin/timing"
	printf '%s\n' ok 'ok N N N' ok ok 'ok N N N N' 'ok N N N N' 'ok N N' 'ok N' ok ok 'error 2 cuMemAlloc_v2' \
		'error 1 cuMemAlloc_v2' "ok N N N $1" ok >"$dir/want"
	sed -E '/^ok/s/ ([1-9][0-9]*(\.[0-9])?|0\.[0-9])/ N/g' "$dir/said" >"$dir/got"
	diff -u "$dir/want" "$dir/got"
}

# Nothing takes time on this device, so that work is done at once; graphs need a driver that has them.
busy() {
	printf '%s\n' init 'calibrate 200' 'size 1000 200000' 'work 1 0 1' 'latency 1 0' quit >"$dir/lines"
	strict=1 # the code that the watcher runs in is the driver's
	input=$dir/lines play "$bin/busy"
	strict=2
	printf '%s\n' ok 'ok N N' ok 'ok 0 0' 'error 500 latency' ok >"$dir/want"
	sed -E '/^ok/s/ [1-9][0-9]*/ N/g' "$dir/said" >"$dir/got"
	diff -u "$dir/want" "$dir/got"
}

# A program whose input ends early ends with status 3, and so does the process it has started.
no_input() {
	strict=1 # it frees nothing then
	for program in "allocpaths linear $piece $few" "ipc $piece" "forker $piece"; do
		status=0
		# shellcheck disable=SC2086
		input=/dev/null play "$bin"/$program || status=$?
		expect "$program, no input" "$status" 3
	done
	echo >"$dir/once"
	status=0
	# shellcheck disable=SC2016
	input=$dir/once play sh -c '{ "$0" "$1"; echo "$?" >&3; } 2>&1 3>&1 | cat' "$bin/ipc" "$piece" || status=$?
	expect 'ipc, input of one line' "$status $(tail -n 1 "$dir/said")" '0 3'
	strict=2
}

# libtrace.so counts lookups and calls, and changes nothing.
traced() {
	TRACE_FILE=$dir/trace play env LD_PRELOAD="$bin/libtrace.so" "$built/probe/probe"
	expect 'trace, output of the program' "$(grep -c '^\(dlsym\|cuGetProcAddress\|cuGetProcAddress_v2\) 1073741824$' "$dir/said")" 3
	expect trace "$(cat "$dir"/trace.* | grep cuDeviceTotalMem | tr '\n' ' ')" \
		'dlsym cuDeviceTotalMem_v2 0 0 2 proc cuDeviceTotalMem 11030 0 1 proc2 cuDeviceTotalMem 13000 0 1 '
}

# syscalls counts those of threads and children, from one mark to the next, and ends as the program does.
counted() {
	status=0
	"$bin/syscalls" -o "$dir/calls" python3 -c '
import os, threading

def mark(counted):
    try:
        os.getpriority(0x5241, counted)
    except OSError:
        pass

def call(times):
    for _ in range(times):
        os.getppid()

call(1000)
mark(1)
call(1)
thread = threading.Thread(target=call, args=(10,))
thread.start()
thread.join()
if os.fork() == 0:
    call(100)
    os._exit(0)
os.wait()
mark(0)
call(1000)
os._exit(7)' || status=$?
	expect 'syscalls, status' "$status" 7
	expect 'syscalls, getppid' "$(grep '^getppid ' "$dir/calls")" 'getppid 111'
	expect 'syscalls, marks' "$(grep '^getpriority ' "$dir/calls" || :)" ''
}

yes '' 2>"$dir/noise" | head -n 20 >"$dir/newlines"

how=alone
paths 0
most=$many paths 2
others
timing '0 0 N'
busy
no_input
traced
counted

how=limited
paths 2
others
timing 'N N N'
busy
no_input
