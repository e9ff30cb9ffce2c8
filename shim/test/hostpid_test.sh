# Finding the host's PID by the driver's list: many processes at a slow driver, and
# processes that die, stop or fail in their turn. Each process is in a PID namespace of its
# own, with the host's /proc, as the stand-in driver wants it.
set -u
. "$here/common.sh"
export RATION_LOG=info FAKEGPU=h200x2:80g
faults=${lib%.so}-faultpoints.so

# launch NAME [VARIABLE=VALUE...] -- STEP... starts the program job in a namespace of its
# own, which waits at its end.
launch() {
	name=$1
	shift
	vars=
	while [ "$1" != -- ]; do
		vars="$vars $1"
		shift
	done
	shift
	: >"$work/$name.log" # which the process opens a moment later
	# Not as the first process of its namespace, which its own signals neither stop nor kill.
	env LD_PRELOAD="$faults" $vars unshare -pf --kill-child sh -c '"$0" "$@"; :' "$tests/job" "$@" wait >"$work/$name.log" 2>&1 &
	started="$started $!"
	echo $! >"$work/$name.parent"
}
child() { grep -o '[0-9]*' /proc/${1:-none}/task/${1:-none}/children; }
# until_true COMMAND waits for a state that comes for certain, unless something is wrong.
until_true() {
	tries=0
	until eval "$1" 2>/dev/null; do
		tries=$((tries + 1))
		if [ $tries -gt 600 ]; then
			failed=$((failed + 1))
			echo "$where: never came: $1" >&2
			return
		fi
		sleep 0.1
	done
}
# pid NAME prints the PID on the host of a process that was launched: its parent's grandchild.
pid() {
	until_true "child \$(child $(cat "$work/$1.parent")) >$work/pid"
	cat "$work/pid"
}
log() { cat "$work/$1.log"; }
says() { until_true "grep -q '$2' $work/$1.log"; }
stopped() { until_true "grep -q '^State:.T' /proc/$(pid $1)/status"; }
# host NAME prints the host PID that the region has for the process whose log is NAME's.
host() {
	slot=$(sed -n 's/.*: slot \([0-9]*\), host PID.*/\1/p' "$work/$1.log")
	"$tests/look" "$RATION_REGION" | sed -n "s/^slot $slot .* host \([0-9]*\) .*/\1/p"
}
# turn_of SLOT says whether it is the turn of the process in this slot: the region's word for it.
turn_of() {
	word=$(od -An -td8 -j320 -N8 "$RATION_REGION" 2>/dev/null)
	[ $((${word:-0} & 2047)) -eq $(($1 + 1)) ]
}
lines() { log $1 | grep -c "$2"; }
started=
finish() {
	kill -KILL $started 2>/dev/null # which unshare hands on
	wait $started 2>/dev/null
	started=
}

if [ -z "$san" ] && [ -f "$faults" ] && unshare -pf true 2>/dev/null; then
	where="18 processes at once, 500 ms for each call of the driver"
	fresh hostpid
	names=
	for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do
		launch many$i FAKEGPU_LATENCY_US=500000 RATION_HOSTPID=probe -- init context
		names="$names many$i"
	done
	for name in $names; do says $name '^context 0'; done
	found=0
	for name in $names; do [ "$(host $name)" = "$(pid $name)" ] && found=$((found + 1)); done
	is $found 18
	finish

	where="32 processes at once"
	fresh hostpid
	names=
	i=0
	while [ $i -lt 32 ]; do
		i=$((i + 1))
		launch many$i FAKEGPU_LATENCY_US=20000 RATION_HOSTPID=probe -- init context
		names="$names many$i"
	done
	for name in $names; do says $name '^context 0'; done
	found=0
	for name in $names; do [ "$(host $name)" = "$(pid $name)" ] && found=$((found + 1)); done
	is $found 32
	finish

	where="a process that is stopped in its turn is passed over, and only the first one waits"
	fresh hostpid
	launch stuck RATION_HOSTPID=probe RATION_FAULT=hostpid-listed:1:stop -- init context
	stopped stuck
	launch first RATION_HOSTPID=probe -- init context
	says first '^context 0'
	# Looks are a millisecond apart, or more where the machine is busy.
	is "$(lines first 'passing over the process in slot 0 .* gives no sign of life, after 200 looks')" 1
	is "$(host first)" "$(pid first)"
	launch second RATION_HOSTPID=probe -- init context
	says second '^context 0'
	is "$(lines second 'passing over')" 0
	is "$(lines second 'waited')" 0
	is "$(host second)" "$(pid second)"
	where="and what it finds afterwards does not count"
	kill -CONT $(pid stuck)
	says stuck '^context 0'
	is "$(lines stuck 'passed over in its turn')" 1
	is "$(host stuck)" 0
	where="nor does it end another's turn"
	launch third RATION_HOSTPID=probe -- init context
	says third '^context 0'
	is "$(host third)" "$(pid third)"
	finish

	where="one that is passed over while another has its turn leaves that to it"
	fresh hostpid
	launch stuck RATION_FAULT=hostpid-read:1:stop -- init context
	stopped stuck
	launch holder RATION_FAULT=hostpid-read:1:stop -- init context
	stopped holder
	is "$(lines holder 'passing over')" 1
	kill -CONT $(pid stuck)
	says stuck '^context 0'
	is "$(lines stuck 'passed over in its turn')" 1
	kill -CONT $(pid holder)
	says holder '^context 0'
	is "$(lines holder 'passed over in its turn')" 0
	finish

	where="one that can be seen to be stopped is not waited for"
	fresh hostpid
	LD_PRELOAD="$faults" job="$tests/job" RATION_HOSTPID=probe timeout 60 unshare -pf --mount-proc --kill-child sh -c '
		RATION_FAULT=hostpid-taken:1:stop $job init context &
		until grep -q "^State:.T" /proc/$!/status; do sleep 0.1; done
		$job init context exit:0; true' >"$work/seen.log" 2>&1
	is "$(lines seen 'passing over .* is stopped, after 0 looks')" 1
	is "$(lines seen '^context 0')" 1

	where="a context that is measured does not wait for a stopped process either"
	fresh hostpid
	launch stuck RATION_FAULT=hostpid-listed:1:stop -- init context
	stopped stuck
	launch first -- init context
	says first '^context 0'
	is "$(lines first 'passing over the process in slot 0 .* gives no sign of life, after 200 looks')" 1
	finish

	where="a process that is stopped inside the driver is passed over, and one that is slow there is not"
	fresh hostpid
	launch slow RATION_HOSTPID=probe FAKEGPU_SLOW=cuDevicePrimaryCtxRetain:3000000:before -- init context
	says slow 'slot 0'
	until_true 'turn_of 0'
	launch first RATION_HOSTPID=probe -- init context
	says first '^context 0'
	is "$(lines first 'passing over')" 0
	is "$(host slow)" "$(pid slow)"
	finish
	fresh hostpid
	launch slow RATION_HOSTPID=probe FAKEGPU_SLOW=cuDevicePrimaryCtxRetain:600000000:before -- init context
	until_true 'turn_of 0'
	kill -STOP $(pid slow)
	stopped slow
	launch first RATION_HOSTPID=probe -- init context
	says first '^context 0'
	is "$(lines first 'passing over the process in slot 0 .* gives no sign of life')" 1
	is "$(host first)" "$(pid first)"
	finish

	for point in taken listed read checked found left; do
		where="a process that is killed at hostpid-$point"
		fresh hostpid
		LD_PRELOAD="$faults" RATION_HOSTPID=probe RATION_FAULT=hostpid-$point:1 \
			unshare -pf --kill-child sh -c '"$0" init context; echo $?' "$tests/job" >"$work/killed.log" 2>&1
		is "$(tail -n 1 "$work/killed.log")" 137
		launch next RATION_HOSTPID=probe -- init context
		says next '^context 0'
		is "$(lines next 'passing over')" 0
		is "$(host next)" "$(pid next)"
		finish
	done

	where="a context that the driver refused: what the list gained is another process's"
	fresh hostpid
	launch failing RATION_HOSTPID=probe RATION_FAULT=hostpid-listed:1:stop FAKEGPU_FAIL=cuDevicePrimaryCtxRetain:1 -- init context
	stopped failing
	launch stranger RATION_REGION="$FAKEGPU_STATE/other" -- init context
	says stranger '^context 0'
	kill -CONT $(pid failing)
	says failing '^context 2'
	is "$(host failing)" 0
	finish

	where="a second context: the process was in the list before it"
	fresh hostpid
	launch two RATION_HOSTPID=probe RATION_FAULT=hostpid-listed:1:stop FAKEGPU_SLOW=cuCtxCreate:1000000:before -- init context create
	stopped two
	launch stranger RATION_REGION="$FAKEGPU_STATE/other" -- init context
	says stranger '^context 0'
	kill -CONT $(pid two)
	says two '^context 0'
	is "$(lines two 'not found in the driver.s list (2 new')" 1
	launch stranger2 RATION_REGION="$FAKEGPU_STATE/other" -- init context
	says two '^create 0'
	is "$(host two)" 0
	finish
fi

echo "hostpid_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
