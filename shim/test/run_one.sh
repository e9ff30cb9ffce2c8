#!/bin/sh
# Runs one test of the library for run.sh: a program in a machine and a job of its own, or a script. What it says goes to
# files in $results.
# usage: run_one.sh program|script NAME
set -u
name=$2
said=$results/$(printf %s "$name" | tr / .)
folder=$(mktemp -d "$work/$(basename "$name").XXXX")

program() {
	export FAKEGPU=h200x2:8g FAKEGPU_STATE="$folder" RATION_REGION="$folder/region"
	[ -f "$here/$name.env" ] && . "$here/$name.env"
	# A thread that is cancelled inside a sanitizer leaves its locks held, or its stack marked.
	[ -n "$san" ] && export RATION_TEST_WALK="$(printf %s "${RATION_TEST_WALK:-}" | sed 's/cancel,//')"
	timeout "$seconds" env LD_PRELOAD="$preload" "$tests/$name"
}

script() { work=$folder timeout 600 sh "$here/$name"; }

("$1") > "$said.out" 2> "$said.err"
echo $? > "$said.status"
cat "$said.out"
cat "$said.err" >&2
