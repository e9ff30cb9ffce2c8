#!/bin/sh
# Runs every test program in its own machine and adds up what they say.
# usage: run.sh BUILD_FOLDER
set -u
build=$1
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
trap 'exit 1' INT TERM
export LD_LIBRARY_PATH="$build"
unset FAKEGPU FAKEGPU_STRICT FAKEGPU_FAIL FAKEGPU_DIE FAKEGPU_HIDDEN FAKEGPU_CONTEXT FAKEGPU_BLOCK \
    FAKEGPU_LATENCY_US FAKEGPU_SLOW FAKEGPU_QUEUE FAKEGPU_CLOCK FAKEGPU_KERNEL FAKEGPU_SWITCH FAKEGPU_RESUME FAKEGPU_SLICE FAKEGPU_COPY FAKEGPU_HOST_FUNCTION FAKEGPU_CHECKPOINT CUDA_VISIBLE_DEVICES
export FAKEGPU_QUIET=1
passed=0
failed=0
for program in "$build"/test/*; do
    name=$(basename "$program")
    case $name in *.d | bench) continue ;; esac
    mkdir -p "$state/$name"
    out=$(FAKEGPU_STATE="$state/$name" timeout 120 "$program")
    status=$?
    printf '%s\n' "$out"
    p=$(printf '%s\n' "$out" | sed -n 's/.*: \([0-9]*\) passed, .*/\1/p' | tail -n 1)
    f=$(printf '%s\n' "$out" | sed -n 's/.* passed, \([0-9]*\) failed$/\1/p' | tail -n 1)
    passed=$((passed + ${p:-0}))
    failed=$((failed + ${f:-1}))
    if [ "$status" -ne 0 ] && [ "${f:-0}" -eq 0 ]; then
        echo "$name: ended with status $status"
        failed=$((failed + 1))
    fi
done
echo "total: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
