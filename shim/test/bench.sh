#!/bin/sh
# usage: bench.sh LIBRARY FAKEGPU_FOLDER TEST_FOLDER
set -eu
lib=$(realpath "$1")
export LD_LIBRARY_PATH="$(realpath "$2")" FAKEGPU_QUIET=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
FAKEGPU=h200 FAKEGPU_STATE="$work" RATION_REGION="$work/region" CUDA_DEVICE_MEMORY_LIMIT=100g LD_PRELOAD="$lib" "$3/bench" allocations
FAKEGPU=h200 FAKEGPU_STATE="$work" RATION_REGION="$work/region" CUDA_DEVICE_MEMORY_LIMIT=100g LD_PRELOAD="$lib" "$3/bench" pools
"$3/bench" start "$lib"
FAKEGPU=h200 CUDA_DEVICE_MEMORY_LIMIT=100g "$3/bench_launches" "$work" "$lib"
