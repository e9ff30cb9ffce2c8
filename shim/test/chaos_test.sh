# Processes that are killed anywhere in the library's code, or in the driver's, take
# nothing with them: whoever comes next has the whole ration.
set -u
passed=0
failed=0
export FAKEGPU=h200x2:8g FAKEGPU_CONTEXT=100m CUDA_DEVICE_MEMORY_LIMIT=1g RATION_LOG=error
MIB=1048576
faults=${lib%.so}-faultpoints.so
n=0
fresh() {
	n=$((n + 1))
	export FAKEGPU_STATE="$work/chaos$n" RATION_REGION="$work/chaos$n/region"
	mkdir -p "$FAKEGPU_STATE"
}
is() {
	if [ "$1" = "$2" ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "$where: got '$1', not '$2'" >&2
	fi
}
whole="init context alloc:$((924 * MIB)) exit:0"
good="init 0 context 0 alloc 0 "
steps="init context alloc:$MIB alloc:$((2000 * MIB)) free alloc:$MIB free exit:0"

# At every point of the region's protocols, first and later.
if [ -z "$san" ] && [ -f "$faults" ]; then
	for point in $(sed -n 's/^\t"\([a-z-]*\)".*/\1/p' "$here/../abi.h" | grep -v '^none$'); do
		for k in 1 3; do
			where="killed at $point:$k"
			fresh
			RATION_FAULT=$point:$k LD_PRELOAD="$faults" timeout 20 "$tests/job" $steps >/dev/null 2>&1
			is "$(LD_PRELOAD="$preload" timeout 20 "$tests/job" $whole 2>&1 | tr '\n' ' ')" "$good"
		done
	done
fi

# Inside the driver's calls.
for call in cuMemAlloc:1 cuMemAlloc:1:after cuMemFree:1 cuMemFree:1:after cuDevicePrimaryCtxRetain:1:after; do
	where="killed in $call"
	fresh
	FAKEGPU_DIE=$call LD_PRELOAD="$preload" timeout 20 "$tests/job" $steps >/dev/null 2>&1
	is "$(LD_PRELOAD="$preload" timeout 20 "$tests/job" $whole 2>&1 | tr '\n' ' ')" "$good"
done
where="a call that the driver fails"
fresh
is "$(FAKEGPU_FAIL=cuMemAlloc:1 LD_PRELOAD="$preload" "$tests/job" init context alloc:$MIB alloc:$((924 * MIB)) exit:0 | tr '\n' ' ')" \
	"init 0 context 0 alloc 2 alloc 0 "

# Many at once, most of them killed.
where="a storm"
if [ -z "$san" ]; then
	fresh
	export FAKEGPU_CONTEXT=1m
	pids=
	i=0
	while [ $i -lt 40 ]; do
		i=$((i + 1))
		LD_PRELOAD="$preload" "$tests/job" init context alloc:$((10 * MIB)) alloc:$((5 * MIB)) wait >/dev/null 2>&1 &
		pids="$pids $!"
	done
	tries=0
	while [ $tries -lt 200 ] && [ "$("$tests/look" "$RATION_REGION" 2>/dev/null | sed -n 's/^device 0 used \([0-9]*\) .*/\1/p')" != $((640 * MIB)) ]; do
		tries=$((tries + 1))
		sleep 0.05
	done
	is "$("$tests/look" "$RATION_REGION" | grep -c '^slot')" 40
	is "$("$tests/look" "$RATION_REGION" | sed -n 's/^device 0 used \([0-9]*\) .*/\1/p')" $((640 * MIB))
	kill -KILL $pids
	wait 2>/dev/null
	is "$(LD_PRELOAD="$preload" timeout 20 "$tests/job" init context alloc:$((1023 * MIB)) exit:0 2>&1 | tr '\n' ' ')" "$good"
	is "$("$tests/look" "$RATION_REGION" | grep -c '^slot')" 0
fi

echo "chaos_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
