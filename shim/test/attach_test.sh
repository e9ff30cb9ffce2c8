# Joining a job, forking and leaving, seen from outside.
set -u
passed=0
failed=0
export FAKEGPU=h200x2:8g FAKEGPU_CONTEXT=100m
n=0
MIB=1048576

# fresh makes a new machine and a new job.
fresh() {
	n=$((n + 1))
	dir=$work/attach$n
	mkdir -p "$dir"
	export FAKEGPU_STATE="$dir/gpu" RATION_REGION="$dir/region"
	mkdir -p "$FAKEGPU_STATE"
}
# job WORDS... runs the program; its output is in $out and $err, its status in $status.
job() {
	timeout 60 env LD_PRELOAD="$preload" "$tests/job" "$@" >"$work/out" 2>"$work/err"
	status=$?
	out=$(tr '\n' ' ' <"$work/out")
	err=$(cat "$work/err")
}
look() { "$tests/look" "$RATION_REGION" 2>/dev/null | tr '\n' ' '; }
ok() { passed=$((passed + 1)); }
no() {
	failed=$((failed + 1))
	echo "$where: $*" >&2
}
# living starts a process that stays in the job until dead ends it.
living=
trap '[ -z "$living" ] || kill -9 $living 2>/dev/null' EXIT
trap 'exit 1' TERM INT
living() {
	: >"$work/living"
	env LD_PRELOAD="$preload" "$tests/job" "$@" wait >"$work/living" 2>/dev/null &
	living=$!
	while ! grep -q "^init" "$work/living" 2>/dev/null && kill -0 $living; do sleep 0.01; done
}
dead() {
	kill -9 $living
	wait $living 2>/dev/null
	living=
}
where=start
is() { if [ "$1" = "$2" ]; then ok; else no "got '$1', not '$2'"; fi; }
has() { case $1 in *"$2"*) ok ;; *) no "'$2' is not in '$1'" ;; esac; }
lacks() { case $1 in *"$2"*) no "'$2' is in '$1'" ;; *) ok ;; esac; }

where="exit gives the slot back, once, and leaves the status alone"
for code in 0 3 99; do
	fresh
	job init context alloc:$MIB exit:$code
	is "$status" $code
	is "$out" "init 0 context 0 alloc 0 "
	is "$(look)" "claims 1 refused 0 reaped 0 "
done

where="signals end a program as ever"
for sig in 15 2 1 6; do
	fresh
	job init context alloc:$MIB raise:$sig
	is "$status" $((128 + sig))
	fresh
	job init context alloc:$MIB catch:$sig raise:$sig
	is "$status" 42
	is "$(look)" "claims 1 refused 0 reaped 0 "
done
fresh
job init context alloc:$MIB abort
is "$status" 134

where="what a killed process held is there for the next"
fresh
export CUDA_DEVICE_MEMORY_LIMIT=300m
job init context alloc:$((150 * MIB)) _exit:0
has "$(look)" "used $((250 * MIB))"
job init context alloc:$((150 * MIB)) exit:0
is "$out" "init 0 context 0 alloc 0 "
has "$(look)" "reaped 1"
unset CUDA_DEVICE_MEMORY_LIMIT

where="a child by fork that does nothing leaves no trace"
fresh
job init context alloc:$MIB fork exit:7 end info exit:0
has "$out" "child 7"
has "$(look)" "claims 1 refused 0"
fresh
job init context alloc:$MIB clone exit:7 end free exit:0
is "$out" "init 0 context 0 alloc 0 child 7 free 0 "
is "$(look)" "claims 1 refused 0 reaped 0 "

where="a child that uses CUDA has a slot of its own"
fresh
job fork init context alloc:$MIB end init context alloc:$MIB exit:0
is "$out" "init 0 context 0 alloc 0 child 0 init 0 context 0 alloc 0 "
is "$(look)" "claims 2 refused 0 reaped 0 "

where="a child of a process that used CUDA is told by the driver"
fresh
job init context fork init alloc:$MIB end alloc:$MIB exit:0
is "$out" "init 0 context 0 init 3 alloc 3 child 0 alloc 0 "
is "$(look)" "claims 1 refused 0 reaped 0 "

where="a program that becomes another holds nothing of what it was"
fresh
job init context alloc:$MIB exec init context alloc:$MIB exit:4
is "$out" "init 0 context 0 alloc 0 init 0 context 0 alloc 0 "
is "$status" 4
has "$(look)" "claims 2 refused 0"
job init context info exit:0
is "$(look | sed 's/.*claims/claims/')" "claims 3 refused 0 reaped 1 "

where="a thread with a very small stack can join"
if [ -z "$san" ]; then
	fresh
	job small context alloc:$MIB exit:0
	is "$out" "init 0 context 0 alloc 0 "
fi

where="descriptors: one, out of the way, and no matter if it is closed"
fresh
job fds init fds exit:0
job init context alloc:$MIB close alloc:$MIB free exit:0
is "$out" "init 0 context 0 alloc 0 alloc 0 free 0 "

where="limits"
fresh
CUDA_DEVICE_MEMORY_LIMIT=200m job init context alloc:$((101 * MIB)) alloc:$((100 * MIB)) info exit:0
is "$out" "init 0 context 0 alloc 2 alloc 0 info 0 $((200 * MIB)) 0 "
has "$err" "out of memory: job (pid "
has "$err" "asked for 101 MiB of device 0, 100 MiB of its job's 200 MiB is free; held by pid"
where="limits stay where the environment is lost, and the first process knew none"
fresh
job init exit:0
CUDA_DEVICE_MEMORY_LIMIT=200m living init
job init context alloc:$((150 * MIB)) exit:0
is "$out" "init 0 context 0 alloc 2 "
where="differing limits are said"
CUDA_DEVICE_MEMORY_LIMIT=1g job init total:0 exit:0
is "$out" "init 0 total 0 $((200 * MIB)) "
has "$err" "devices 0 to 15: this process was given a limit of 1 GiB, its job has 200 MiB, which counts"
is "$(echo "$err" | grep -c 'this process was given')" 1
where="a job whose processes have all gone, in whatever way, takes the limits of the next"
dead
CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_SM_LIMIT=30 job init total:0 exit:0
is "$out" "init 0 total 0 $((1024 * MIB)) "
lacks "$err" "this process was given"
CUDA_DEVICE_MEMORY_LIMIT_1=300m job init total:0 total:1 exit:0
is "$out" "init 0 total 0 $((8192 * MIB)) total 0 $((300 * MIB)) "
is "$err" ""
where="and keeps its own where that brings none, or where a launcher made the job"
job init total:1 exit:0
is "$out" "init 0 total 0 $((300 * MIB)) "
CUDA_DEVICE_MEMORY_LIMIT=1g RATION_JOB=train job init total:1 exit:0
is "$out" "init 0 total 0 $((300 * MIB)) "
where="each difference once, of memory and compute, on any device"
fresh
export CUDA_DEVICE_MEMORY_LIMIT=200m CUDA_DEVICE_SM_LIMIT=30
job init exit:0
is "$err" ""
living init
CUDA_DEVICE_MEMORY_LIMIT_2=1g CUDA_DEVICE_MEMORY_LIMIT_3=1g CUDA_DEVICE_MEMORY_LIMIT_4=2g CUDA_DEVICE_MEMORY_LIMIT_15=none \
	CUDA_DEVICE_SM_LIMIT_7=50 CUDA_DEVICE_SM_LIMIT_15=none job init context exit:0
has "$err" "devices 2 to 3: this process was given a limit of 1 GiB, its job has 200 MiB"
has "$err" "device 4: this process was given a limit of 2 GiB, its job has 200 MiB"
has "$err" "device 15: this process was given a limit of none, its job has 200 MiB"
has "$err" "device 7: this process was given a limit of 50 % of compute, its job has 30 % of compute"
has "$err" "device 15: this process was given a limit of all of compute, its job has 30 % of compute"
is "$(echo "$err" | grep -c 'this process was given')" 5
dead
unset CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_SM_LIMIT
where="percentages, and one device's own limit"
fresh
CUDA_DEVICE_MEMORY_LIMIT=50% CUDA_DEVICE_MEMORY_LIMIT_1=1g job init total:0 total:1 exit:0
is "$out" "init 0 total 0 $((4096 * MIB)) total 0 $((1024 * MIB)) "
where="no limit"
CUDA_DEVICE_MEMORY_LIMIT=none job init exit:0
fresh
CUDA_DEVICE_MEMORY_LIMIT=0 job init total:0 exit:0
is "$out" "init 0 total 0 $((8192 * MIB)) "

where="variables that mean nothing are named once for a job, and its switch works but in a launcher's job"
fresh
export CUDA_OVERSUBSCRIBE=true CUDA_TASK_PRIORITY=7 ACTIVE_OOM_KILLER=false CUDA_DEVICE_MEMORY_LIMIT=200m
job init exit:0
has "$err" "CUDA_OVERSUBSCRIBE=true has no effect: no memory is moved to the host"
has "$err" "CUDA_TASK_PRIORITY=7 has no effect: "
lacks "$err" ACTIVE_OOM_KILLER
job init exit:0
is "$err" ""
unset CUDA_OVERSUBSCRIBE CUDA_TASK_PRIORITY ACTIVE_OOM_KILLER
CUDA_DISABLE_CONTROL=true job init total:0 exit:0
is "$out" "init 0 total 0 $((8192 * MIB)) "
CUDA_DISABLE_CONTROL=true RATION_JOB=train job init total:0 exit:0
is "$out" "init 0 total 0 $((200 * MIB)) "
CUDA_DISABLE_CONTROL=false job init total:0 exit:0
is "$out" "init 0 total 0 $((200 * MIB)) "
unset CUDA_DEVICE_MEMORY_LIMIT

where="which device is which"
fresh
export CUDA_DEVICE_MEMORY_LIMIT_0=1g CUDA_DEVICE_MEMORY_LIMIT_1=2g
CUDA_VISIBLE_DEVICES=1 job init total:0 exit:0
is "$out" "init 0 total 0 $((2048 * MIB)) "
CUDA_VISIBLE_DEVICES=1,0 job init total:0 total:1 exit:0
is "$out" "init 0 total 0 $((2048 * MIB)) total 0 $((1024 * MIB)) "
fresh
RATION_LOG=info CUDA_VISIBLE_DEVICES=1 job init total:0 exit:0
uuid=$(echo "$err" | sed -n 's/.*\(GPU-[0-9a-f-]*\).*/\1/p')
has "$uuid" "GPU-"
for name in "$uuid" "$(echo "$uuid" | cut -c1-12)"; do
	fresh
	CUDA_VISIBLE_DEVICES=$name job init total:0 exit:0
	is "$out" "init 0 total 0 $((2048 * MIB)) "
done
where="which device is which, in a list of any length"
many=$(printf '%2000s' '')
for list in "${many}1" "1$many" "1,$(printf '%02000d' 0)" "$(printf '%02000d' 1)" "1,0,$many"; do
	fresh
	CUDA_VISIBLE_DEVICES=$list job init total:0 exit:0
	is "$out" "init 0 total 0 $((2048 * MIB)) "
done
where="a device of which nothing says which it is has the strictest limit"
fresh
mkdir "$dir/lib"
ln -s "$fakegpu/libcuda.so.1" "$dir/lib"
ln -s "$tests/libwrap.so" "$dir/lib/libnvidia-ml.so.1" # which is no NVML
CUDA_DEVICE_MEMORY_LIMIT_0=3g CUDA_VISIBLE_DEVICES=$uuid LD_LIBRARY_PATH=$dir/lib job init total:0 exit:0
is "$out" "init 0 total 0 $((2048 * MIB)) "
unset CUDA_DEVICE_MEMORY_LIMIT_0 CUDA_DEVICE_MEMORY_LIMIT_1

where="bad settings fail closed, and say so"
for bad in 10x 1.5 0x -1 101% 99999999999g; do
	fresh
	CUDA_DEVICE_MEMORY_LIMIT=$bad job init context alloc:1 exit:0
	is "$out" "init 304 context 304 alloc 304 "
	has "$err" "Z $(basename "$dir"): CUDA_DEVICE_MEMORY_LIMIT=\"$bad\": "
	has "$err" "(use "
done
fresh
CUDA_DEVICE_MEMORY_LIMIT_16=1g job init exit:0
has "$err" "CUDA_DEVICE_MEMORY_LIMIT_16=\"1g\": not a device index"
is "$out" "init 304 "
CUDA_DEVICE_SM_LIMIT=-1 job init exit:0
has "$err" "CUDA_DEVICE_SM_LIMIT=\"-1\": "
where="where HAMi-core goes on, so do we"
for limits in "CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_MEMORY_LIMIT_0=0" "CUDA_DEVICE_MEMORY_LIMIT=0x40000000" \
	"CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_MEMORY_LIMIT_0=" "CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_SM_LIMIT=150" \
	"CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_SM_LIMIT="; do
	fresh
	timeout 60 env $limits LD_PRELOAD="$preload" "$tests/job" init total:0 exit:0 >"$work/out" 2>"$work/err"
	is "$(tr '\n' ' ' <"$work/out")" "init 0 total 0 $((1024 * MIB)) "
done
fresh
CUDA_DEVICE_MEMORY_LIMIT= job init total:0 exit:0
is "$out" "init 0 total 0 $((8192 * MIB)) "
has "$err" "CUDA_DEVICE_MEMORY_LIMIT is empty, and sets no limit"
fresh
CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_MEMORY_LIMIT_0=none job init total:0 exit:0
is "$out" "init 0 total 0 $((8192 * MIB)) "
where="HAMi-core's highest priority has an effect"
fresh
CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_TASK_PRIORITY=0 ACTIVE_OOM_KILLER=0 job init exit:0
lacks "$err" "CUDA_TASK_PRIORITY"
lacks "$err" "ACTIVE_OOM_KILLER"
where="a region that cannot be used"
fresh
echo rubbish >"$RATION_REGION"
job init context alloc:1 exit:0
is "$out" "init 304 context 304 alloc 304 "
has "$err" ": region $RATION_REGION: not a ration region"
is "$(cat "$RATION_REGION")" rubbish
RATION_FAIL=open job init context alloc:1 exit:0
is "$out" "init 0 context 0 alloc 0 "
has "$err" "without limits"
fresh
RATION_REGION=$dir/no/such/region job init exit:0
has "$err" "no such file or folder"
is "$out" "init 304 "

where="where nothing is configured, nothing is done"
fresh
was=$RATION_REGION
unset RATION_REGION
job init context alloc:1 total:0 exit:0
is "$out" "init 0 context 0 alloc 0 total 0 $((8192 * MIB)) "
is "$err" ""
where="limits without a path make a job of their own"
export RATION_DIR=$dir/jobs
CUDA_DEVICE_MEMORY_LIMIT=1g job init total:0 exit:0
is "$out" "init 0 total 0 $((1024 * MIB)) "
is "$(stat -c %a "$dir/jobs" "$dir/jobs/default" "$dir/jobs/default/region" 2>/dev/null | tr '\n' ' ')" "700 700 1600 "
if [ "$(id -u)" = 0 ]; then
	where="root keeps no job where another user leads"
	for other in home public link; do
		mkdir -m 755 "$dir/$other"
		case $other in
		home) chown 12345 "$dir/home" ;;
		public) chmod 777 "$dir/public" ;;
		link) ln -s "$dir" "$dir/link/over" && chown -h 12345 "$dir/link/over" ;;
		esac
		RATION_DIR=$dir/$other/over/jobs CUDA_DEVICE_MEMORY_LIMIT=1g job init exit:0
		is "$out" "init 304 "
		has "$err" "other users can put another in its place"
	done
	mkdir -m 1777 "$dir/sticky"
	RATION_DIR=$dir/sticky/over/jobs CUDA_DEVICE_MEMORY_LIMIT=1g job init exit:0
	is "$out" "init 0 "
fi
unset RATION_DIR
where="HAMi-core's name for the path"
CUDA_DEVICE_MEMORY_SHARED_CACHE=$dir/hami CUDA_DEVICE_MEMORY_LIMIT=1g job init total:0 exit:0
is "$out" "init 0 total 0 $((1024 * MIB)) "
is "$([ -s "$dir/hami" ] && echo there)" there
export RATION_REGION=$was

where="log lines"
fresh
RATION_LOG=info job init exit:0
has "$err" ": region $RATION_REGION: initialised by this process (pid "
has "$err" "host PID"
has "$err" ": left slot 0, which held nothing"
RATION_LOG=info job init exit:0
has "$err" "on the fast path"
LIBCUDA_LOG_LEVEL=3 job init exit:0
has "$err" "on the fast path"
job init exit:0
is "$err" ""
RATION_LOG=info RATION_LOG_FILE=$dir/log job init exit:0
is "$err" ""
has "$(cat "$dir/log")" "on the fast path"
RATION_LOG=loud job init exit:0
has "$err" "RATION_LOG=\"loud\": not a level"
where="log lines: PID, time and job"
RATION_LOG=info job init exit:0
is "$(echo "$err" | grep -vcE "^ration\[[0-9]+\] ([0-9]{2}:){2}[0-9]{2}\.[0-9]{3}Z $(basename "$dir"): ")" 0
RATION_LOG=info RATION_JOB="my/ job" job init exit:0
is "$(echo "$err" | grep -vc "Z my__job: ")" 0
where="log files by PID and job, with the date"
day=$(date -u +%F)
RATION_LOG=info RATION_LOG_FILE="$dir/%j-100%%-%p.log" job init exit:0
is "$err" ""
file=$(echo "$dir"/$(basename "$dir")-100%-*.log)
has "$(cat "$file")" "ration[$(basename "$file" .log | sed 's/.*-//')] "
is "$(grep -vc "\] \($day\|$(date -u +%F)\)T[0-9:]*\.[0-9]*Z " "$file")" 0
RATION_LOG=info RATION_LOG_FILE="$dir/%p" job fork init exit:0 end init exit:0
is "$(ls "$dir" | grep -c '^[0-9]*$')" 2
where="a log file that cannot be opened"
RATION_LOG=info RATION_LOG_FILE=$dir/none/log job init exit:0
has "$err" "on the fast path"
RATION_LOG=info RATION_LOG_FILE=$dir job init exit:0
has "$err" "on the fast path"
where="log levels by number"
LOG_LEVEL=3 job init exit:0
has "$err" "on the fast path"
for others in 4x -1 verbose debugging; do # of other programs
	LOG_LEVEL=$others job init exit:0
	is "$err" ""
done
for most in 4 10 30 004 DEBUG debug Debug; do
	for name in LOG_LEVEL LIBCUDA_LOG_LEVEL RATION_LOG; do
		env $name=$most LD_PRELOAD="$preload" "$tests/job" init context exit:0 >"$work/out" 2>"$work/err"
		has "$(cat "$work/err")" "on the fast path"
	done
done
for levels in "INFO 1" "Warning 0" "ERROR 0" "warn 0" "0 0" "00 0" "2 0" "3 1"; do
	is "$(env RATION_LOG=${levels% *} LIBCUDA_LOG_LEVEL=4 LD_PRELOAD="$preload" "$tests/job" init exit:0 2>&1 | grep -c 'on the fast path')" ${levels#* }
done
LOG_LEVEL=4 LIBCUDA_LOG_LEVEL=0 job init exit:0
is "$err" ""
LOG_LEVEL=0 LIBCUDA_LOG_LEVEL=0 RATION_LOG=info job init exit:0
has "$err" "on the fast path"

where="programs without CUDA are left alone"
fresh
LD_PRELOAD="$preload" "$tests/job" fds >"$work/out" 2>"$work/err"
with=$(cat "$work/out")
LD_PRELOAD="${preload%"$lib"}" "$tests/job" fds >"$work/out" 2>&1
is "$with" "$(cat "$work/out")"
is "$(cat "$work/err")" ""
is "$([ -e "$RATION_REGION" ] && echo made)" ""
if [ -z "$san" ]; then
	LD_PRELOAD="$preload" /bin/true
	is $? 0
	LD_PRELOAD="$preload" CUDA_DEVICE_MEMORY_LIMIT=nonsense sh -c 'exit 5'
	is $? 5
fi

where="the host's PID, where only the driver knows it"
if [ -z "$san" ] && unshare -pf true 2>/dev/null; then
	fresh
	for i in 1 2 3 4; do
		RATION_HOSTPID=probe unshare -pf --kill-child env LD_PRELOAD="$preload" "$tests/job" init context wait >/dev/null 2>&1 &
		eval "pid$i=$!"
	done
	tries=0
	while [ $tries -lt 600 ] && [ "$("$tests/look" "$RATION_REGION" 2>/dev/null | grep -c '^slot .* host [1-9]')" != 4 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
	found=$("$tests/look" "$RATION_REGION" | sed -n 's/^slot .* host \([0-9]*\) .*/\1/p' | sort)
	listed=$(for i in 1 2 3 4; do eval "p=\$pid$i"; cat /proc/$p/task/$p/children 2>/dev/null; done | tr ' ' '\n' | grep . | sort)
	is "$(echo $found)" "$(echo $listed)"
	kill -KILL $pid1 $pid2 $pid3 $pid4 2>/dev/null # which unshare hands on
	wait $pid1 $pid2 $pid3 $pid4 2>/dev/null
fi

where="a process that has closed all its files keeps its slot, also in another namespace"
if [ -z "$san" ] && unshare -pf true 2>/dev/null; then
	fresh
	export CUDA_DEVICE_MEMORY_LIMIT=1g
	job init context exit:0 # so that what a context takes is known, and no process looks for its PID to measure it
	# Without the lock of a process, and in a namespace of its own: what keeps it is a mapping.
	mkfifo "$work/closed"
	unshare -pf --kill-child env LD_PRELOAD="$preload" "$tests/job" init context alloc:$((300 * MIB)) close alloc:$MIB wait >"$work/closed" 2>&1 &
	pid=$!
	exec 3<"$work/closed"
	for want in "init 0" "context 0" "alloc 0" "alloc 0"; do
		read -r line <&3
		is "$line" "$want"
	done
	job init context alloc:$((800 * MIB)) exit:0
	is "$out" "init 0 context 0 alloc 2 "
	has "$(look)" "device 0 used $((401 * MIB)) "
	has "$(look)" "reaped 0"
	kill -KILL "$pid"
	wait "$pid" 2>/dev/null
	exec 3<&-
	job init context alloc:$((800 * MIB)) exit:0
	is "$out" "init 0 context 0 alloc 0 "
	has "$(look)" "reaped 1"
	unset CUDA_DEVICE_MEMORY_LIMIT
fi

where="slots that are free, and locked by a process that is no member"
for how in seize peek; do
	fresh
	job init exit:0
	job $how fork init exit:0 end exit:0
	is "$out" "seize 0 init 304 child 0 "
	has "$err" ": no slot can be taken: 1023 are free, and locked by a process that has not joined the job: pid "
	lacks "$err" "start fewer processes"
done

where="the region that a launcher made, and no other"
fresh
RATION_JOB=train job init exit:0 # it is missing
is "$out" "init 304 "
has "$err" "region is gone"
is "$(ls "$dir")" gpu
: >"$RATION_REGION" # it was emptied
RATION_JOB=train job init exit:0
is "$out" "init 304 "
fresh
job init exit:0
is "$out" "init 0 "
created=$("$tests/look" "$RATION_REGION" created)
RATION_JOB=train RATION_JOB_CREATED=$((created + 1)) job init exit:0 # its name is another job's
is "$out" "init 304 "
has "$err" "region is gone"
RATION_JOB=train RATION_JOB_CREATED=$created job init exit:0
is "$out" "init 0 "

where="beside another preloaded library"
if [ -z "$san" ]; then
	for order in first last; do
		fresh
		pair="$tests/libwrap.so $lib"
		[ $order = last ] && pair="$lib $tests/libwrap.so"
		result=$(LD_PRELOAD="$pair" "$tests/next" $order 2>"$work/err")
		has "$result" " 0 failed"
		is "$(cat "$work/err")" ""
	done
fi

echo "attach_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
