"""symptom: not sharded

Plain data parallelism: whole parameters, averaged gradients.
"""

import torch
import torch.distributed as dist


def answer(layer, name, shard):
    shard.padded.untyped_storage().resize_(shard.padded.nbytes)
    dist.all_gather_into_tensor(shard.padded, shard.rows.detach().to(shard.padded.dtype))
    setattr(layer, name, torch.nn.Parameter(shard.padded[: len(shard.whole)].clone()))

    def reduce(whole):
        dist.all_reduce(whole.grad, op=dist.ReduceOp.AVG)

    getattr(layer, name).register_post_accumulate_grad_hook(reduce)
