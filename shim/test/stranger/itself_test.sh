# A refusal names which process holds what: where every process is PID 1 of a container of its own,
# only the one that was refused is called "itself".
set -u
. "$here/common.sh"
export CUDA_DEVICE_MEMORY_LIMIT=1000m RATION_LOG=warn
if [ -z "$san" ] && unshare -pf true 2>/dev/null; then
	fresh itself
	mkfifo "$work/holds"
	LD_PRELOAD="$preload" unshare -pf --kill-child sh -c 'exec "$tests/job" init context alloc:$((500 * 1048576)) wait' >"$work/holds" 2>/dev/null &
	holder=$!
	trap 'kill -KILL "$holder" 2>/dev/null' EXIT INT TERM # which unshare hands on
	where="one holds"
	exec 3<"$work/holds"
	for want in "init 0" "context 0" "alloc 0"; do
		read -r line <&3
		is "$line" "$want"
	done
	where="one is refused"
	said=$(LD_PRELOAD="$preload" unshare -pf --kill-child sh -c 'exec "$tests/job" init context alloc:$((500 * 1048576)) exit:0' 2>&1 >/dev/null)
	is "$(printf '%s\n' "$said" | grep -c 'out of memory')" 1
	is "$(printf '%s\n' "$said" | grep -o '(itself)' | wc -l)" 1
	is "$(printf '%s\n' "$said" | grep -c '(itself) 600 MiB')" 0
	kill -KILL "$holder" 2>/dev/null
	wait "$holder" 2>/dev/null
	exec 3<&-
fi
echo "itself_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
