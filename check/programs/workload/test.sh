# Runs the workload against fakegpu: alone, and with libration.so preloaded and a limit. $1 is
# the build folder.
set -eu
built=$(cd "$1" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

play() {
	printf '%s\n' init info 'alloc 1048576' 'async 33554432' info 'alloc 400000000' freeall info \
		'churn 1 1048576 65536 0' freeall 'duel 300000000' 'churn 2 1048576 65536 100' 'time 10 1048576' quit |
		env LD_LIBRARY_PATH="$built/fakegpu" FAKEGPU=small:512m FAKEGPU_CONTEXT=1m FAKEGPU_STATE="$dir/gpu" \
			FAKEGPU_STRICT=2 "$@" "$built/workload/workload" >"$dir/answers"
	# Times differ from run to run, and so do counts other than 0: they are replaced by N.
	sed -E 's/ [0-9]+$//; s/^ok ([0-9]{2,4}) (0|[0-9]{2,4})$/ok N \2/; s/^ok N [1-9].*/ok N N/; s/^ok [0-9]+ [0-9]+ [0-9]+$/ok T/' "$dir/answers" >"$dir/got"
}

expect() {
	printf '%s\n' "$@" >"$dir/want"
	diff -u "$dir/want" "$dir/got"
}

play
expect ok 'ok 535822336 536870912' ok ok 'ok 501219328 536870912' ok ok 'ok 535822336 536870912' \
	'ok N 0' ok 'ok N 0' 'ok 0 0' 'ok T' ok

play LD_PRELOAD="$built/libration.so" RATION_REGION="$dir/region" CUDA_DEVICE_MEMORY_LIMIT=256m RATION_LOG=error
expect ok 'ok 267386880 268435456' ok ok 'ok 232783872 268435456' oom ok 'ok 267386880 268435456' \
	'ok N 0' ok 'ok N N' 'ok 0 0' 'ok T' ok

if echo nonsense | LD_LIBRARY_PATH="$built/fakegpu" "$built/workload/workload" 2>/dev/null; then
	echo "workload: accepted an unknown command" >&2
	exit 1
fi
