# Requests that wait for memory, and processes that die or stop at the points of the protocol.
set -u
faults=${lib%.so}-faultpoints.so
if [ -n "$san" ] || [ ! -f "$faults" ]; then
	echo "waiting_test: 0 passed, 0 failed" # a build without the points
	exit
fi
folder=$(mktemp -d "$work/waiting.XXXX")
export FAKEGPU=h200x2:8g FAKEGPU_STATE="$folder" RATION_REGION="$folder/region"
. "$here/waiting.env"
exec timeout 120 env LD_PRELOAD="$faults" "$tests/waiting" faults
