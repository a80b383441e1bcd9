"""Models whose FLOPs are known by hand."""

from detector.analysis.mfu import Attention, Experts, Mamba, Mlp, Model

LATENT = Experts(experts=64, top_k=6, ffn=2048, gated=False, shared_ffn=4096, latent=1024)
HYBRID = Model(
    hidden=4096,
    vocab=131072,
    blocks=(
        (24, Mamba(heads=128, head_dim=64, state=128, groups=8)),
        (4, Attention(heads=32, kv_heads=2, head_dim=128, v_dim=128)),
        (24, LATENT),
    ),
    layers=52,
)


def dense(*, layers: int, hidden: int, vocab: int, ffn: int, gated: bool = False) -> Model:
    heads = hidden // 128
    attention = Attention(heads=heads, kv_heads=heads, head_dim=128, v_dim=128)
    blocks = ((layers, attention), (layers, Mlp(ffn=ffn, gated=gated)))
    return Model(hidden=hidden, vocab=vocab, blocks=blocks, layers=layers)
