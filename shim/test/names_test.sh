# How a process finds itself in the driver's list of processes where it does not know
# its PID on the host: the first one of a namespace finds out for all, and those after
# it need not start NVML with their context.
set -u
. "$here/common.sh"
export CUDA_DEVICE_MEMORY_LIMIT=1g RATION_LOG=error
# namespace OPTION... COMMAND runs the command, with $job for the program, in a PID
# namespace of its own.
namespace() {
	LD_PRELOAD="$preload" job="$tests/job" timeout 60 unshare -pf "$@" 2>&1 | tr '\n' ' '
}

if [ -z "$san" ] && unshare -pf --mount-proc true 2>/dev/null; then
	where="on the host"
	fresh names
	is "$(LD_PRELOAD="$preload" "$tests/job" init context nvml exit:0 | tr '\n' ' ')" "init 0 context 0 nvml 1 "
	is "$(LD_PRELOAD="$preload" "$tests/job" init context nvml exit:0 | tr '\n' ' ')" "init 0 context 0 nvml 0 "

	where="the driver has the host's PIDs"
	is "$(namespace sh -c '$job init context nvml exit:0; $job init context info nvml later alloc:1 nvml exit:0; true')" \
		"init 0 context 0 nvml 1 init 0 context 0 info 0 $((1024 * MIB)) $((924 * MIB)) nvml 0 alloc 0 nvml 0 "

	where="the driver has the namespace's PIDs"
	fresh names
	# The second has memory that only the driver's list shows: it knows itself there.
	is "$(namespace --mount-proc sh -c '$job init context nvml exit:0; FAKEGPU_HIDDEN=50m $job init context nvml later alloc:1048576 nvml info exit:0; true')" \
		"init 0 context 0 nvml 1 init 0 context 0 nvml 0 alloc 0 nvml 1 info 0 $((1024 * MIB)) $((873 * MIB)) "

	where="the host's PID is probed for all the same"
	is "$(RATION_HOSTPID=probe namespace sh -c '$job init context nvml exit:0; true')" "init 0 context 0 nvml 1 "
fi

echo "names_test.sh: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
