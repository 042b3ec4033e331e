#!/usr/bin/env bash
# Compare training steps on a GPU with their floor, at the papers' sizes, in under 10 minutes.
#
#     bash benchmarks/gpu.sh [ROUNDS] > gpu.txt
#
# Runs each algorithm with WRN-28-2 at batch size 64 in fp32 and bf16, then WRN-28-8, and ResNet-50
# at 84 and 224 px. For each it prints the ratio of a step to its floor (wall time until the device
# has finished), the number of kernels and the host time of a step, the share of host time of each
# part, and the achieved TFLOP/s next to those of a matrix product on the same card.
set -u
cd "$(dirname "$0")/.." || exit 1
rounds=${1:-20}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
failed=0

measure() {
    echo "--- $*"
    timeout 120 python benchmarks/step.py --device cuda --rounds "$rounds" --shares 5 "$@" || failed=1
}

for precision in fp32 bf16; do
    for algorithm in simple mixmatch mixmatch_enhanced fixmatch supervised; do
        measure --algo "$algorithm" --batch 64 --precision "$precision"
    done
done
measure --algo simple --backbone wrn_28_8 --batch 64 --precision bf16
measure --algo simple --backbone resnet50 --image-size 84 --batch 16 --precision bf16
measure --algo simple --backbone resnet50 --image-size 224 --batch 16 --precision bf16
exit "$failed"
