#!/bin/bash
# Convert on many nodes, then train on many. They share only a folder. On a login node:
#
#     made=$(sbatch --parsable --array=1-64 --cpus-per-task=16 examples/slurm.sh \
#         convert photos/ /shared/train --size 256 --shard-size 1GB)
#     listed=$(sbatch --parsable --dependency=afterok:$made examples/slurm.sh index /shared/train)
#     sbatch --dependency=afterok:$listed --nodes=4 --gpus-per-node=8 examples/slurm.sh train /shared/train --epochs 90
#
# Failed task: `PARTS=64 sbatch --array=17 ...`, the rest as before, converts the missing part and nothing else.
# Interrupted training: submit it again, with any number of nodes, and it continues with the next row.
#SBATCH --job-name=packer
set -euo pipefail

what=${1:?pass convert, index or train}
shift
case $what in
convert) # IMAGES PACK [options of packer convert]: every task lists the images, and writes its share of the shards
    packer convert "$@" --only-shards "$SLURM_ARRAY_TASK_ID/${PARTS:-$SLURM_ARRAY_TASK_COUNT}"
    ;;
index) # PACK: gives the pack its name, once all shards are there
    packer merge --index "$1"
    ;;
train) # PACK [options of torchrun_ddp.py]: one torchrun a node, one process a GPU
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    srun --ntasks-per-node=1 torchrun \
        --nnodes "$SLURM_NNODES" --nproc-per-node gpu \
        --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \
        "$SLURM_SUBMIT_DIR/examples/torchrun_ddp.py" "$@"
    ;;
*)
    echo "examples/slurm.sh: $what is not a step; convert, index and train are." >&2
    exit 2
    ;;
esac
