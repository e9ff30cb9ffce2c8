# What the scripts that look at a job from outside share: a machine and a job of
# their own, and a count.
MIB=1048576
n=0
passed=0
failed=0
where=start
export FAKEGPU=h200x2:8g FAKEGPU_CONTEXT=100m
# fresh NAME makes a new machine and a new job.
fresh() {
	n=$((n + 1))
	export FAKEGPU_STATE="$work/$1$n" RATION_REGION="$work/$1$n/region"
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
