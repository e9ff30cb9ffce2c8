#!/bin/sh
# Runs the tests of the library against the stand-in driver and adds up what they say.
# usage: run.sh LIBRARY FAKEGPU_FOLDER TEST_FOLDER [SANITIZER]
set -u
here=$(cd "$(dirname "$0")" && pwd)
lib=$(realpath "$1")
fakegpu=$(realpath "$2")
tests=$(realpath "$3")
san=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset CUDA_VISIBLE_DEVICES CUDA_DEVICE_MEMORY_SHARED_CACHE RATION_LOG RATION_LOG_FILE RATION_FAIL RATION_REGION LIBCUDA_LOG_LEVEL LOG_LEVEL RATION_JOB RATION_PRIORITY RATION_WAIT_ALLOC RATION_SLEEP_FAST CUDA_TASK_PRIORITY
for name in $(env | sed -n 's/^\(FAKEGPU[A-Z_]*\|CUDA_DEVICE_[A-Z_0-9]*_LIMIT[_0-9]*\|RATION_COMPUTE[A-Z_0-9]*\|GPU_CORE_UTILIZATION_POLICY\)=.*/\1/p'); do unset "$name"; done
export FAKEGPU_QUIET=1 LD_LIBRARY_PATH="$fakegpu" lib fakegpu tests work here san

# A sanitizer's runtime must come before everything else that is preloaded.
preload=$lib
case $san in
thread) preload="$(gcc -print-file-name=libtsan.so) $lib" ;;
address) preload="$(gcc -print-file-name=libasan.so) $lib" ;;
undefined) preload="$(gcc -print-file-name=libubsan.so) $lib" ;;
esac
export preload ASAN_OPTIONS="detect_leaks=0" TSAN_OPTIONS="die_after_fork=0 halt_on_error=1"

# How many seconds a program may take.
seconds=120
[ -z "${RATION_TEST_EMULATED:-}" ] || seconds=900
[ -z "$san" ] || seconds=400

results=$work/results
mkdir "$results"
export seconds results

# program NAME and script NAME say what is to be run.
program() { [ ! -x "$tests/$1" ] || echo "program $1" >> "$work/list"; }
script() { echo "script $1" >> "$work/list"; }

# What an emulator of the processor (make arm64) is not asked for. Some scripts preload the
# library into programs of this machine, which are for another processor than the library.
# cancelled fails in its part `late` now and then: docs/architecture.md. And where the emulator
# makes up /proc/self/stat, a process tells the region another start than others find; when it then
# loses its lock, as in random, no_descriptors and forks (a test that opens the region beside the
# library closes a descriptor of it), others take it for dead.
emulated=${RATION_TEST_EMULATED:-}
without=
if [ -n "$emulated" ]; then
	without=" guest_test.sh names_test.sh hostpid_test.sh itself_test.sh cancelled "
	"$tests/proc_stat" || without="$without random no_descriptors forks "
	echo "not in an emulator:$without"
fi
# Nor a sanitizer for cancelled threads, nor for what depends on how fast threads see the clock.
[ -n "$san" ] && without=" cancelled compute_turns "
# left_out NAME says whether a test is not to be run; ONLY is a pattern of those that are.
left_out() {
	case $without in
	*" $1 "*) return 0 ;;
	esac
	! printf '%s\n' "$1" | grep -Eq "${ONLY:-.}"
}

# finish runs the tests, one on each processor, adds up the lines "NAME: n passed, m failed", says again what those
# that failed have said, and ends.
finish() {
	passed=0
	failed=0
	: >> "$work/list"
	xargs -r -P "${CORES:-$(nproc)}" -n 2 sh "$here/run_one.sh" < "$work/list"
	while read -r kind name; do
		said=$results/$(printf %s "$name" | tr / .)
		status=$(cat "$said.status" 2> /dev/null)
		p=$(sed -n 's/.*: \([0-9]*\) passed, .*/\1/p' "$said.out" | tail -n 1)
		f=$(sed -n 's/.* passed, \([0-9]*\) failed$/\1/p' "$said.out" | tail -n 1)
		[ "$status" = 0 ] || [ "${f:-0}" != 0 ] || f=1
		passed=$((passed + ${p:-0}))
		failed=$((failed + ${f:-1}))
		[ "${f:-1}" -eq 0 ] || { echo "$kind $name ended with status $status:"; cat "$said.out"; tail -n 20 "$said.err"; }
	done < "$work/list"
	echo "shim: $passed passed, $failed failed"
	[ "$failed" -eq 0 ]
	exit
}

# What takes locks, with the build that aborts where a thread breaks their order.
if [ -n "${LOCKDEBUG:-}" ]; then
	for name in linear pools pieces ungranted vmm arrays contexts costs meminfo random crowd waiting lane \
		stranger/pool_lock stranger/pool_race stranger/pool_crowd stranger/launch_lock stranger/graph_devices stranger/ipc_maker; do
		left_out "${name##*/}" || program "$name"
	done
	finish
fi

for name in limit_parse_table place note caps initialise settings image log_times descriptors linear blocks pools pieces ungranted vmm arrays contexts costs interpose refuse meminfo random crowd forks leaving locks output waiting compute_slices compute_caps compute_mixed compute_contexts compute_copies compute_short compute_job compute_ends compute_priority compute_turns compute_claims hugepages gate lane; do
	left_out "$name" || program "$name"
done

for path in "$here"/*_test.sh; do
	left_out "$(basename "$path")" || script "$(basename "$path")"
done

# Programs that were written to break the library.
for path in "$here"/stranger/*.c "$here"/stranger/*_test.sh; do
	name=$(basename "$path")
	! left_out "${name%.c}" || continue
	case $name in
	*.c) program "stranger/${name%.c}" ;;
	*) script "stranger/$name" ;;
	esac
done

finish
