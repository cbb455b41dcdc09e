"""The tiny random checkpoints that are made from a hash of each tensor's name, without mlx: configs, shapes, weights.

Shared by tiny_families.py, which stores what mlx-lm makes of them in f32, and by l1/snapshots.py, whose goldens are
of the program as it is. golden_test.c has the formula of the weights in C.
"""
import numpy as np

VOCAB, WIDTH, HEADS, KV = 97, 64, 4, 2


def values(name, n, spread, middle):
    """f32: sums of four uniform numbers."""
    seed = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for c in name.encode():
            seed = (seed ^ np.uint32(c)) * np.uint32(16777619)

        def draw(i):
            x = (i + seed) * np.uint32(2654435769)
            x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
            x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
            return x ^ x >> np.uint32(16)

        i = np.arange(n, dtype=np.uint32) * np.uint32(2)
        a, b = draw(i), draw(i + np.uint32(1))
    total = sum((x >> np.uint32(s) & np.uint32(0xFFFF)).astype(np.int64) for x in (a, b) for s in (0, 16))
    return ((total - 131070) / 65536.0 * 1.7320508 * spread + middle).astype(np.float32)


def to_bf16(x):
    """The upper halves of f32 numbers, rounded half to even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (u + np.uint32(0x7FFF) + (u >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rope(**scaling):
    """Both spellings."""
    theta = scaling.pop("theta", 10000.0)
    kind = dict(rope_type=scaling.get("rope_type", "default"), rope_theta=theta) | scaling
    return dict(rope_theta=theta, rope_scaling=(scaling | dict(type=scaling["rope_type"])) if scaling else None,
                rope_parameters=kind)


def base(**more):
    return dict(hidden_size=WIDTH, intermediate_size=96, num_attention_heads=HEADS, num_key_value_heads=KV,
                vocab_size=VOCAB, max_position_embeddings=512, torch_dtype="bfloat16", num_hidden_layers=3,
                bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-5, hidden_act="silu",
                tie_word_embeddings=False) | more


def llama(**more):
    return base(model_type="llama", head_dim=16, attention_bias=False, mlp_bias=False) | rope() | more


SLIDING, FULL = "sliding_attention", "full_attention"
LONG = [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0]
VARIANTS = {
    "llama_d32": llama(head_dim=32),
    "llama_llama3": llama(**rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64)),
    "llama_yarn": llama(**rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama_longrope": llama(**rope(rope_type="longrope", long_factor=LONG, short_factor=[1.0] * 8,
                                   original_max_position_embeddings=64)),
    "llama_linear": llama(**rope(rope_type="linear", factor=4.0)),
    "llama_bias": llama(attention_bias=True, mlp_bias=True),
    "llama_sliding": llama(sliding_window=8, layer_types=[SLIDING, FULL, SLIDING]),
    "qwen2": base(model_type="qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=0)
    | rope(theta=1e6),
    "qwen3": base(model_type="qwen3", head_dim=32, tie_word_embeddings=True, attention_bias=False,
                  rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "qwen3_emb": base(model_type="qwen3", head_dim=32, tie_word_embeddings=True, attention_bias=False,
                      rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "gemma2": base(model_type="gemma2", head_dim=32, hidden_activation="gelu_pytorch_tanh", sliding_window=512,
                   query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=3.0,
                   hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True) | rope(),
}


def shapes(c):
    """name: (rows, cols); rows 0: a vector."""
    width, f = c["hidden_size"], c["intermediate_size"]
    d = c.get("head_dim") or width // c["num_attention_heads"]
    q, kv, kind = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, c["model_type"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], width), "model.norm.weight": (0, width)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, (rows, cols) in dict(q=(q, width), k=(kv, width), v=(kv, width), o=(width, q)).items():
            out[f"{at}self_attn.{name}_proj.weight"] = (rows, cols)
            if c.get("attention_bias") or (kind == "qwen2" and name != "o"):
                out[f"{at}self_attn.{name}_proj.bias"] = (0, rows)
        for name, (rows, cols) in dict(gate=(f, width), up=(f, width), down=(width, f)).items():
            out[f"{at}mlp.{name}_proj.weight"] = (rows, cols)
            if c.get("mlp_bias"):
                out[f"{at}mlp.{name}_proj.bias"] = (0, rows)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind.startswith("gemma"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if kind in ("qwen3", "gemma3_text"):
            out[f"{at}self_attn.q_norm.weight"] = out[f"{at}self_attn.k_norm.weight"] = (0, d)
        for name in norms:
            out[f"{at}{name}.weight"] = (0, width)
    return out


def spread_of(name, c, sigma):
    """(spread, middle) of a tensor's values."""
    if not name.endswith((".bias", "norm.weight")):
        return sigma, 0.0
    if name.endswith(".bias"):
        return 0.3, 0.0
    return 0.2, 0.0 if c["model_type"].startswith("gemma") else 1.0
