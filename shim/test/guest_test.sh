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

# Programs with a sanitizer in them, which wants to be the first library of all.
if [ -z "$san" ]; then
	for flags in -fsanitize=address -fsanitize=undefined -fsanitize=thread; do
		for cc in gcc clang; do
			$cc $flags -D_GNU_SOURCE -I"$here/../../fakegpu" -I"$here/../../fakegpu/test" -o "$work/sanitized" "$here/job.c" \
				-L"$fakegpu" -l:libcuda.so.1 -l:libnvidia-ml.so.1 -ldl -pthread 2>/dev/null || continue
			"$work/sanitized" exit:0 2>/dev/null || continue # a sanitizer that does not run here at all
			where="a program of $cc $flags"
			fresh guest
			is "$(LD_PRELOAD="$lib" timeout 120 "$work/sanitized" init context alloc:$MIB free info alloc:$((2000 * MIB)) exit:0 2>"$work/err" | tr '\n' ' ')" "${want}alloc 2 "
			is "$(grep -c Sanitizer "$work/err")" 0
		done
	done
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

where="a program that looks for a driver where there is none"
if [ -z "$san" ]; then
	cat >"$work/none.c" <<-'END'
		#define _GNU_SOURCE
		#include <dlfcn.h>
		#include <stdio.h>
		int cuInit(unsigned) __attribute__((weak));
		int look(void)
		{
			printf("%d %d %d", !!dlsym(RTLD_NEXT, "cuInit"), !!dlsym(RTLD_DEFAULT, "cuInit"), !!dlsym(NULL, "nvmlInit_v2"));
			return cuInit ? cuInit(0) : 0;
		}
	END
	# In a library: the linker of a program may decide what a weak reference of its own is.
	${CC:-cc} -fPIC -shared -o "$work/libnone.so" "$work/none.c" -ldl
	echo 'int look(void); int main(void) { return look(); }' >"$work/main.c"
	${CC:-cc} -o "$work/none" "$work/main.c" -L"$work" -lnone -Wl,-rpath,"$work"
	fresh guest
	# A weak reference was bound when the program was loaded: a call by it says that there is no device.
	out=$(LD_PRELOAD="$lib" "$work/none" 2>"$work/err")
	is "$? $out" "100 0 0 0"
	is "$(cat "$work/err")" ""
fi

where="a driver that LD_PRELOAD puts before the library"
if [ -z "$san" ]; then
	for first in libcuda.so.1 "libcuda.so.1 libnvidia-ml.so.1" "libnvidia-ml.so.1 libcuda.so.1" "$work/copy.so"; do
		for now in "" 1; do
			fresh guest
			cp "$fakegpu/libcuda.so.1" "$work/copy.so"
			is "$(CUDA_DEVICE_MEMORY_LIMIT=1g LD_BIND_NOW=$now LD_PRELOAD="$first $lib" timeout 60 "$tests/job" $steps 2>&1 | tr '\n' ' ')" "$want"
			is "$(CUDA_DEVICE_MEMORY_LIMIT=1g RATION_LOG=error LD_BIND_NOW=$now LD_PRELOAD="$first $lib" timeout 60 "$tests/job" init context alloc:$((2000 * MIB)) exit:0 2>/dev/null | tr '\n' ' ')" "init 0 context 0 alloc 2 "
		done
	done
fi

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
