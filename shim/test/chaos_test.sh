# Processes that are killed anywhere in the library's code, or in the driver's, take
# nothing with them: the next process has the whole ration.
set -u
. "$here/common.sh"
export CUDA_DEVICE_MEMORY_LIMIT=1g RATION_LOG=error
faults=${lib%.so}-faultpoints.so
whole="init context alloc:$((924 * MIB)) exit:0"
good="init 0 context 0 alloc 0 "
steps="init context alloc:$MIB alloc:$((2000 * MIB)) free alloc:$MIB free exit:0"

# At every point of the region's protocols, first and later.
if [ -z "$san" ] && [ -f "$faults" ]; then
	points=$(sed -n 's/^\t"\([a-z-]*\)".*/\1/p' "$here/../region/abi.h" | grep -v '^none$')
	where="the fault points' names"
	is "$(echo "$points" | grep -c "^change-applied$")" 1
	for point in $points; do
		for k in 1 3; do
			where="killed at $point:$k"
			fresh chaos
			RATION_FAULT=$point:$k timeout 20 env LD_PRELOAD="$faults" "$tests/job" $steps >/dev/null 2>&1
			is "$(timeout 20 env LD_PRELOAD="$preload" "$tests/job" $whole 2>&1 | tr '\n' ' ')" "$good"
		done
	done
fi

# And at those of a device's time: the next process of the job has its cap, no more and no less.
if [ -z "$san" ] && [ -f "$faults" ]; then
	for point in work-shown cap-measured cap-counted cap-charged cap-waiting; do
		for k in 1 20; do
			where="killed at $point:$k with a cap"
			fresh caps
			(
				. "$here/compute_caps.env"
				export RATION_COMPUTE_MAX=50
				RATION_FAULT=$point:$k timeout 20 env LD_PRELOAD="$faults" "$tests/compute_caps" small >/dev/null 2>&1
				[ $? -eq 137 ] || exit 1
				timeout 20 env LD_PRELOAD="$preload" "$tests/compute_caps" survivor || exit 2
			)
			is $? 0
		done
	done
fi

# And at those of an export: no program has the descriptor, so nothing is kept. And of an import, which
# ends with its process. And a reaper that dies leaves lent memory to the next.
if [ -z "$san" ] && [ -f "$faults" ]; then
	for point in export-shown export-locked export-given import-shown import-charged reap-judged reap-applied reap-settled reap-freed; do
		where="killed at $point of an export"
		fresh exports
		(
			. "$here/stranger/exporter_ended.env"
			case $point in
			export-*)
				RATION_FAULT=$point:1 timeout 20 env LD_PRELOAD="$faults" "$tests/stranger/exporter_ended" die >/dev/null 2>&1
				[ $? -eq 137 ] || exit 1
				;;
			import-*)
				RATION_FAULT=$point:1 timeout 20 env LD_PRELOAD="$faults" "$tests/stranger/exporter_ended" import_and_die >/dev/null 2>&1
				[ $? -eq 137 ] || exit 1
				;;
			*)
				RATION_FAULT=export-given:1 timeout 20 env LD_PRELOAD="$faults" "$tests/stranger/exporter_ended" die >/dev/null 2>&1
				[ $? -eq 137 ] || exit 2
				RATION_FAULT=$point:1 timeout 20 env LD_PRELOAD="$faults" "$tests/stranger/exporter_ended" survive >/dev/null 2>&1
				[ $? -eq 137 ] || exit 3
				;;
			esac
			timeout 20 env LD_PRELOAD="$preload" "$tests/stranger/exporter_ended" survive || exit 4
		)
		is $? 0
	done
fi

# A process that dies with work, and one that dies when it has taken the charge of it over; and one
# that dies when it has cleared the words of another boot.
if [ -z "$san" ] && [ -f "$faults" ]; then
	for point in cap-taken cap-cleared; do
		where="killed at $point"
		fresh caps
		(
			. "$here/compute_caps.env"
			export RATION_COMPUTE_MAX=50 RATION_TEST_NOW=1000000000000
			[ $point = cap-cleared ] || timeout 20 env LD_PRELOAD="$preload" "$tests/compute_ends" end_by_kill >/dev/null 2>&1
			RATION_FAULT=$point:1 timeout 20 env LD_PRELOAD="$faults" "$tests/compute_caps" small >/dev/null 2>&1
			[ $? -eq 137 ] || exit 1
			timeout 20 env LD_PRELOAD="$preload" "$tests/compute_caps" survivor || exit 2
		)
		is $? 0
	done
fi

# Inside the driver's calls.
for call in cuMemAlloc:1 cuMemAlloc:1:after cuMemFree:1 cuMemFree:1:after cuDevicePrimaryCtxRetain:1:after; do
	where="killed in $call"
	fresh chaos
	FAKEGPU_DIE=$call timeout 20 env LD_PRELOAD="$preload" "$tests/job" $steps >/dev/null 2>&1
	is "$(timeout 20 env LD_PRELOAD="$preload" "$tests/job" $whole 2>&1 | tr '\n' ' ')" "$good"
done
where="what the next one says of it"
fresh chaos
FAKEGPU_DIE=cuMemAlloc:1:after LD_PRELOAD="$preload" timeout 20 "$tests/job" $steps >/dev/null 2>&1
is "$(RATION_LOG=debug LD_PRELOAD="$preload" timeout 20 "$tests/job" $whole 2>&1 | grep -c 'process [0-9]* (job, slot [0-9]*) is dead: it held .* (no process has its PID)$')" 1
is "$(RATION_LOG=debug LD_PRELOAD="$preload" timeout 20 "$tests/job" $whole 2>&1 | grep -c 'is dead')" 0
where="a run whose processes were all killed: the next one is told once, and does not warn"
fresh chaos
for i in 1 2 3 4 5 6 7 8; do
	LD_PRELOAD="$preload" "$tests/job" init context alloc:$MIB wait >"$work/killed$i" 2>&1 &
	echo $! >"$work/killed$i.pid"
done
for i in 1 2 3 4 5 6 7 8; do
	tries=0
	until grep -q '^alloc 0' "$work/killed$i" || [ $tries -gt 600 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
done
# All of them are in the job before the first is killed: one that joins later would account for the dead itself.
for i in 1 2 3 4 5 6 7 8; do
	kill -TERM $(cat "$work/killed$i.pid")
done
wait
cp "$RATION_REGION" "$work/killed.region"
is "$(RATION_LOG=warn LD_PRELOAD="$preload" timeout 20 "$tests/job" init exit:0 2>&1 | grep -c 'ration\[')" 0
cp "$work/killed.region" "$RATION_REGION"
is "$(RATION_LOG=info LD_PRELOAD="$preload" timeout 20 "$tests/job" init exit:0 2>&1 | grep -c 'gave back .* of 8 processes that ended without leaving')" 1
cp "$work/killed.region" "$RATION_REGION"
is "$(RATION_LOG=Debug LD_PRELOAD="$preload" timeout 20 "$tests/job" init exit:0 2>&1 | grep -c 'is dead: it held')" 8
where="what it says of one whose name moves cursors"
fresh chaos
name=$(printf 'a\033[2J\302\2332J\342\200\256\177\377\nb')
cp "$tests/job" "$work/$name"
FAKEGPU_DIE=cuMemAlloc:1:after LD_PRELOAD="$preload" timeout 20 "$work/$name" $steps >/dev/null 2>&1
is "$(RATION_LOG=debug LD_PRELOAD="$preload" timeout 20 "$tests/job" $whole 2>&1 | LC_ALL=C grep -ac "(a?\[2J??2J????$(printf '\377')?b, slot [0-9]*) is dead")" 1
where="a call that the driver fails"
fresh chaos
is "$(FAKEGPU_FAIL=cuMemAlloc:1 LD_PRELOAD="$preload" "$tests/job" init context alloc:$MIB alloc:$((924 * MIB)) exit:0 | tr '\n' ' ')" \
	"init 0 context 0 alloc 2 alloc 0 "

# Many at once, most of them killed.
where="a storm"
if [ -z "$san" ]; then
	fresh chaos
	export FAKEGPU_CONTEXT=1m
	pids=
	i=0
	while [ $i -lt 40 ]; do
		i=$((i + 1))
		LD_PRELOAD="$preload" "$tests/job" init context alloc:$((10 * MIB)) alloc:$((5 * MIB)) wait >/dev/null 2>&1 &
		pids="$pids $!"
	done
	tries=0
	while [ $tries -lt 1200 ] && [ "$("$tests/look" "$RATION_REGION" 2>/dev/null | sed -n 's/^device 0 used \([0-9]*\) .*/\1/p')" != $((640 * MIB)) ]; do
		tries=$((tries + 1))
		sleep 0.05
	done
	is "$("$tests/look" "$RATION_REGION" | grep -c '^slot')" 40
	is "$("$tests/look" "$RATION_REGION" | sed -n 's/^device 0 used \([0-9]*\) .*/\1/p')" $((640 * MIB))
	kill -KILL $pids
	wait 2>/dev/null
	is "$(timeout 20 env LD_PRELOAD="$preload" "$tests/job" init context alloc:$((1023 * MIB)) exit:0 2>&1 | tr '\n' ' ')" "$good"
	is "$("$tests/look" "$RATION_REGION" | grep -c '^slot')" 0
fi

echo "chaos_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
