/* registry: the list of all kernels, written by the build (gen/kern_list.h), and the choice from it.
 * No timing at start: the same machine chooses the same kernel tomorrow. */
#include "kern/kern.h"

#include <string.h>

#define KERN_FILE(file, isa) extern const ig_kern_set ig_kerns_##file##__##isa;
#include "gen/kern_list.h"
#undef KERN_FILE

static const ig_kern_set *const sets[] = {
#define KERN_FILE(file, isa) &ig_kerns_##file##__##isa,
#include "gen/kern_list.h"
#undef KERN_FILE
};
enum { N_SETS = sizeof sets / sizeof sets[0] };

const ig_kern *ig_kern_at(int i) {
    for (int s = 0; s < N_SETS; s++) {
        if (i < sets[s]->n) return &sets[s]->v[i];
        i -= sets[s]->n;
    }
    return NULL;
}

const ig_kern *ig_kern_pick(ig_kern_op op, const ig_fmt *fmt, ig_tier tier_max, uint32_t cpu) {
    const ig_kern *best = NULL, *k;
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++) {
        if (k->op != op || k->fmt != fmt || k->tier > tier_max || (k->cpu_needs & ~cpu) != 0) continue;
        if (!best || k->speed > best->speed) best = k;
    }
    return best;
}

const ig_kern *ig_kern_reference(ig_kern_op op, const ig_fmt *fmt) {
    return ig_kern_pick(op, fmt, IG_TIER_L3, 0); /* only the scalar build needs no CPU bit */
}

const ig_fmt *ig_fmt_at(int n) {
    const ig_kern *k;
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++)
        if (k->op == IG_KERN_DEQUANT && k->cpu_needs == 0 && !k->fmt->rounds && n-- == 0) return k->fmt;
    return NULL;
}

const ig_fmt *ig_fmt_of_gguf(uint32_t type) {
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++)
        if (f->gguf_type >= 0 && (uint32_t)f->gguf_type == type) return f;
    return NULL;
}

const ig_fmt *ig_fmt_of_mlx(ig_mlx_mode mode, int bits, int group, bool f32_scales) {
    const ig_fmt *f;
    for (int i = 0; (f = ig_fmt_at(i)) != NULL; i++)
        if (f->mlx == mode && mode && f->mlx_group == group && f->bits == bits && f->f32_scales == f32_scales)
            return f;
    return NULL;
}

const char *ig_kern_op_name(ig_kern_op op) {
    static const char *const names[IG_KERN_N_OPS] = {
        [IG_KERN_LINEAR] = "linear", [IG_KERN_DEQUANT] = "dequant",     [IG_KERN_UNPACK] = "unpack",
        [IG_KERN_QUANT] = "quant",   [IG_KERN_QUANT16] = "quant16",     [IG_KERN_NORM] = "norm",
        [IG_KERN_ROPE] = "rope",     [IG_KERN_SWIGLU] = "swiglu",     [IG_KERN_GEGLU] = "geglu",
               [IG_KERN_ADD] = "add",
        [IG_KERN_TO_F16] = "to_f16", [IG_KERN_TO_KV8] = "to_kv8", [IG_KERN_ATTENTION] = "attention", [IG_KERN_EXP] = "exp",
        [IG_KERN_ATTENTION_JOIN] = "attention_join",
        [IG_KERN_ARGMAX] = "argmax",
        [IG_KERN_ROUND] = "round",
        [IG_KERN_MATMUL] = "matmul",
        [IG_KERN_NORM_BACK] = "norm_back",
        [IG_KERN_SWIGLU_BACK] = "swiglu_back",
        [IG_KERN_GEGLU_BACK] = "geglu_back",
        [IG_KERN_ROPE_BACK] = "rope_back",
        [IG_KERN_SOFTMAX_BACK] = "softmax_back",
        [IG_KERN_DOT] = "dot",
        [IG_KERN_SCALE] = "scale",
        [IG_KERN_SOFTCAP] = "softcap",
        [IG_KERN_SOFTMAX_STEP] = "softmax_step",
    };
    return op >= 0 && op < IG_KERN_N_OPS ? names[op] : "?";
}
