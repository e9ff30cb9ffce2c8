# What the library asks of the C library, and what it shows: nothing newer than
# glibc 2.17, no name that is not in the table.
set -u
passed=0
failed=0
if [ -z "$san" ]; then
	newest=$(objdump -T "$lib" | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort -uV | tail -n 1)
	if [ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -n 1)" = 2.17 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		objdump -T "$lib" | grep "GLIBC_$newest" >&2
	fi
	needed=$(objdump -p "$lib" | sed -n 's/^ *NEEDED *//p' | tr '\n' ' ')
	case $needed in
	"libc.so.6 " | "libc.so.6 ld-linux-"*) passed=$((passed + 1)) ;;
	*)
		failed=$((failed + 1))
		echo "the library needs $needed" >&2
		;;
	esac
	for name in $(objdump -T "$lib" | awk '$NF != "" && /\.text/ {print $NF}'); do
		case $name in
		dlsym | dlvsym | ioctl | __asan_default_options | ration_show_machine) passed=$((passed + 1)) ;;
		*) if grep -Eq "^(HOOK|HOOK_LAUNCH|TIMED)\(([A-Z_]*, )?[a-z]*, $name," "$here/../hooks.def"; then
			passed=$((passed + 1))
		else
			failed=$((failed + 1))
			echo "$name is exported, and is not in hooks.def" >&2
		fi ;;
		esac
	done
	# docs/protocols.md, "Memory order": on arm64 all rests on loads that no earlier release may be
	# overtaken by. A newer processor has a weaker load, which the compiler takes if told to.
	if readelf -h "$lib" | grep -q AArch64; then
		disassemble=objdump
		[ "$(uname -m)" = aarch64 ] || disassemble=aarch64-linux-gnu-objdump
		"$disassemble" -d "$lib" >"$work/code"
		if grep -qw ldar "$work/code" && ! grep -qw 'ldapu\?r' "$work/code"; then
			passed=$((passed + 1))
		else
			failed=$((failed + 1))
			echo "the library's acquiring loads are not, or not all, ldar" >&2
		fi
	fi
	for bad in malloc calloc realloc free exit signal sigaction umask pthread_create stdout; do
		if objdump -T "$lib" | grep -q "UND.* $bad\$"; then
			failed=$((failed + 1))
			echo "the library uses $bad" >&2
		else
			passed=$((passed + 1))
		fi
	done
fi
echo "symbols_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
