"""The ledger by formula: what a rank must hold at four moments of a step, before anything runs."""

from dataclasses import dataclass, replace

from helpers.training.ledger import Ledger, LedgerError, LedgerLine
from helpers.training.model import ModelConfig
from helpers.training.plan import DTYPES, ShardingPlan

EXACT, CLOSE, COARSE = 0.001, 0.01, 0.15


@dataclass(frozen=True)
class Share:
    """What one rank computes: `sequences` of one micro-batch, `shards` ranks for one copy of the model.

    fused_norms: RMSNorm keeps its input only, as CUDA's kernel does; torch's CPU path is composed of
    several operators, which keep more.
    """

    sequences: int
    shards: int
    fused_norms: bool = False


def predict_ledger(config: ModelConfig, plan: ShardingPlan, share: Share) -> Ledger:
    """The ledger of one rank of a sharded `MiniLLM` in its second step or later.

    Raises `LedgerError` for a plan with tensor parallelism or offloading, whose ledger the tracker
    fills but no formula here predicts.
    """
    if plan.tensor_parallel > 1 or plan.offload:
        raise LedgerError(
            "no formula for tensor parallelism or offload",
            where="predict_ledger",
            mend="use track_ledger, which counts any plan",
        )
    held = _held(config, share.shards)
    activations = [
        LedgerLine(
            "after forward", "activations", activation_bytes(config, plan, share), "saved for backward", CLOSE
        ),
        LedgerLine("after forward", "logits", logits_bytes(config, share), "4 B T V + 8 B T", CLOSE),
    ]
    unsharded = LedgerLine(
        "after forward", "unsharded group", _kept_bytes(config, plan, share.shards), _kept_formula(plan), EXACT
    )
    lines = [
        *(
            LedgerLine("between steps", name, held[name], _FORMULAS[name], EXACT)
            for name in ("parameters", "optimizer")
        ),
        *(
            LedgerLine("after forward", name, held[name], _FORMULAS[name], EXACT)
            for name in ("parameters", "optimizer")
        ),
        unsharded,
        *activations,
        *(LedgerLine("after backward", name, held[name], _FORMULAS[name], EXACT) for name in held),
        LedgerLine("peak", "total", peak_bytes(config, plan, share), "held + activations + groups", COARSE),
    ]
    return Ledger(tuple(lines))


_FORMULAS = {"parameters": "4 N / W", "gradients": "4 N / W", "optimizer": "8 N / W"}


@dataclass(frozen=True)
class Elements:
    """Elements of the root's group and of one block, each row count rounded up to a multiple of the shards."""

    root: int
    block: int
    block_norms: int
    blocks: int

    @property
    def total(self) -> int:
        """Elements of the whole model."""
        return self.root + self.blocks * self.block


def elements_of(config: ModelConfig, shards: int) -> Elements:
    """The padded sizes of a `MiniLLM` on `shards` ranks: rank 0 holds exactly total / shards."""
    width, hidden, kv = config.width, config.ffn_width, config.kv_width

    def padded(rows: int) -> int:
        return -(-rows // shards) * shards

    root = 2 * padded(config.vocab) * width + padded(width) + (0 if config.rotary else padded(config.context) * width)
    linear = 2 * padded(width) * width + 2 * padded(kv) * width
    linear += (2 if config.gated else 1) * padded(hidden) * width + padded(width) * hidden
    norms = 2 * padded(width)
    return Elements(root, linear + norms, norms, config.blocks)


def _held(config: ModelConfig, shards: int) -> dict[str, float]:
    share = 4 * elements_of(config, shards).total / shards
    return {"parameters": share, "gradients": share, "optimizer": 2 * share}


def _kept_bytes(config: ModelConfig, plan: ShardingPlan, shards: int) -> float:
    """Bytes of the groups that stay gathered from forward to backward."""
    size, elements = DTYPES[plan.dtype].itemsize, elements_of(config, shards)
    if plan.wrap == "model" or plan.reshard_after_forward is False:
        return size * elements.total
    # With a group for each linear layer, the norms of the blocks belong to the root's.
    return size * (elements.root + (config.blocks * elements.block_norms if plan.wrap == "linear" else 0))


def _kept_formula(plan: ShardingPlan) -> str:
    everything = plan.wrap == "model" or plan.reshard_after_forward is False
    return "s N" if everything else "s N_root"


def activation_bytes(config: ModelConfig, plan: ShardingPlan, share: Share) -> float:
    """Bytes that forward leaves for backward, without the logits.

    In units of U = B·T·d elements a block keeps its two norms' outputs, q, the attention's result, the
    stream after attention and after the block (6), keys and values (2·kv/heads), and the hidden layer
    before and after SiLU (2·f; 4·f when gated). With recomputation it keeps its input only. On top come
    the embedding's and the last norm's output, fp32 statistics (one a token and norm, one a token and head),
    and the rotary angles' cosines and sines. Weights that stay on a few ranks after forward lie among
    them, for the tracker cannot tell them apart.
    """
    size = DTYPES[plan.dtype].itemsize
    tokens = share.sequences * config.context
    unit = tokens * config.width
    kept = _kept_shards(config, plan, share.shards)
    hidden = (4 if config.gated else 2) * config.ffn_width / config.width
    per_block = 6 + 2 * config.kv_width / config.width + hidden
    extra = 0 if share.fused_norms else _composed_norm(size)
    blocks = config.blocks
    if plan.recompute:
        return kept + size * unit * (blocks + 2) + unit * extra + 4 * tokens
    statistics = 4 * tokens * (2 * blocks + 1 + blocks * config.heads)
    angles = blocks * 2 * config.context * config.head_width * size if config.rotary else 0
    return kept + size * unit * (blocks * per_block + 2) + unit * extra * (2 * blocks + 1) + statistics + angles


def _kept_shards(config: ModelConfig, plan: ShardingPlan, shards: int) -> float:
    if isinstance(plan.reshard_after_forward, bool) or plan.wrap == "model":
        return 0.0
    size = DTYPES[plan.dtype].itemsize
    return size * config.blocks * elements_of(config, shards).block / plan.reshard_after_forward


def _composed_norm(size: int) -> int:
    """Bytes an element that torch's composed RMSNorm keeps more than a fused one.

    In fp32 the normalised input before its weight: 4. In bf16 the input and that, both as fp32, in
    place of the input itself: 8 − 2.
    """
    return 4 if size == 4 else 6


def logits_bytes(config: ModelConfig, share: Share) -> float:
    """Bytes of the log-probabilities, fp32, and of the targets, int64, that cross-entropy keeps."""
    return share.sequences * config.context * (4 * config.vocab + 8)


def peak_bytes(config: ModelConfig, plan: ShardingPlan, share: Share) -> float:
    """The largest total of a step, the largest of three moments of backward.

    At the loss: two gradients of the log-probabilities lie beside them. In the last block: all
    activations are still there, and the block's group is whole (`_whole_group`). In the first block:
    the activations are gone, and all gradients are there.
    """
    held = _held(config, share.shards)
    always = held["parameters"] + held["optimizer"] + _kept_bytes(config, plan, share.shards)
    saved = activation_bytes(config, plan, share)
    inside = _whole_group(config, plan, share.shards) + _inside_block(config, plan, share)
    return always + max(
        saved + 3 * logits_bytes(config, share),
        saved + inside,
        held["gradients"] + inside,
    )


def _whole_group(config: ModelConfig, plan: ShardingPlan, shards: int) -> float:
    """Bytes of one group that is being reduced while the next is gathered.

    Gathered weights of the next, the group's own gradients and their copy on the way to the reduction
    in the compute dtype; the reduction's input. A group that stayed gathered has no weights to bring;
    the one group of the whole model has no next.
    """
    size, reduced = DTYPES[plan.dtype].itemsize, DTYPES[plan.reduce_dtype].itemsize
    sizes = elements_of(config, shards)
    if plan.wrap == "model":
        return size * sizes.total
    if plan.reshard_after_forward is False:
        return size * sizes.block
    elements = config.width * config.ffn_width if plan.wrap == "linear" else sizes.block
    return (3 * size + reduced) * elements


def _inside_block(config: ModelConfig, plan: ShardingPlan, share: Share) -> float:
    """Gradients of a block's hidden layer and stream, and what recomputation brings back."""
    size, tokens = DTYPES[plan.dtype].itemsize, share.sequences * config.context
    gradients = size * tokens * (config.ffn_width * (2 if config.gated else 1) + 2 * config.width)
    if not plan.recompute:
        return gradients
    one, plain = replace(config, blocks=1), replace(plan, recompute=False)
    return gradients + activation_bytes(one, plain, share) - activation_bytes(one, plan, share)
