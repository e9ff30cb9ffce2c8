# A guest in another program's process: other preloaded libraries, a poor environment,
# and the stand-in driver's own tests, which must not notice.
set -u
. "$here/common.sh"
steps="init context alloc:$MIB free info exit:0"
want="init 0 context 0 alloc 0 free 0 info 0 $((1024 * MIB)) $((924 * MIB)) "
export CUDA_DEVICE_MEMORY_LIMIT=1g

if [ -z "$san" ]; then
	for other in libjemalloc.so.2 libeatmydata.so libtcmalloc_minimal.so.4; do
		path=$(ls /usr/lib/*/"$other" /usr/lib/*/*/"$other" 2>/dev/null | head -n 1)
		[ -n "$path" ] || continue
		for pair in "$path $lib" "$lib $path"; do
			where="with $pair"
			fresh guest
			is "$(LD_PRELOAD="$pair" timeout 60 "$tests/job" $steps 2>&1 | tr '\n' ' ')" "$want"
		done
	done
	if command -v valgrind >/dev/null; then
		where=valgrind
		fresh guest
		is "$(LD_PRELOAD="$preload" timeout 120 valgrind -q --error-exitcode=9 "$tests/job" $steps 2>"$work/err" | tr '\n' ' ')" "$want"
	fi
fi

where="an empty environment, with the job at the well-known place"
if [ -z "$san" ] && unshare -m true 2>/dev/null; then
	fresh guest
	unset RATION_REGION
	cat >"$work/poor.sh" <<-'END'
		mount -t tmpfs none /run && mkdir -p /run/ration
		env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" FAKEGPU="$FAKEGPU" FAKEGPU_CONTEXT=100m FAKEGPU_STATE="$FAKEGPU_STATE" LD_PRELOAD="$lib" "$tests/job" init total:0 exit:0
		CUDA_DEVICE_MEMORY_LIMIT=512m RATION_REGION=/run/ration/job LD_PRELOAD="$lib" "$tests/job" init exit:0
		env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" FAKEGPU="$FAKEGPU" FAKEGPU_CONTEXT=100m FAKEGPU_STATE="$FAKEGPU_STATE" LD_PRELOAD="$lib" "$tests/job" init total:0 exit:0
	END
	is "$(unshare -m sh "$work/poor.sh" 2>&1 | tr '\n' ' ')" "init 0 total 0 $((8192 * MIB)) init 0 init 0 total 0 $((512 * MIB)) "
fi
unset CUDA_DEVICE_MEMORY_LIMIT

# The one about NVML wants it not to be started yet, which our own use of it is.
if [ -z "$san" ]; then
	for name in memory pool vmm array graph module process start symbols thread fault; do
		[ -x "$fakegpu/test/$name" ] || continue
		where="the stand-in driver's own test $name"
		fresh guest
		unset FAKEGPU FAKEGPU_CONTEXT
		out=$(LD_PRELOAD="$preload" RATION_LOG=error timeout 120 "$fakegpu/test/$name" 2>"$work/err")
		is "$? $(printf '%s' "$out" | sed -n 's/.*, \([0-9]* failed\)$/\1/p' | tail -n 1)" "0 0 failed" || cat "$work/err" >&2
		export FAKEGPU=h200x2:8g FAKEGPU_CONTEXT=100m
	done
fi

echo "guest_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
