/* rope: from what a config says about rope to the angle of each pair of dimensions at position 1.
 * Threads: any. Memory: the caller's.
 * All in double by kern/math_double: a table is the same on every machine. With D the head size, pair i turns by
 * 1 / f radians a position, f = base^(2i/D) times the file's own divisor of the pair, and then
 *     linear    f * factor
 *     llama3    wavelengths 2 pi f above original / low: f * factor; below original / high: f; between them
 *               f / ((1 - s) / factor + s), s = (original / wavelength - low) / (high - low)
 *     yarn      1 / (m / f + (1 - m) / (f * factor)), m = 1 up to pair `first`, 0 from pair `last` on, a line
 *               between; cosines and sines times 1 + 0.1 ln(factor), if the config does not say otherwise
 *     longrope  f * factor, of a GGUF file, times the long divisor of the pair, from position 0 on: which of a file's two lists applies
 *               must not depend on how long a text is going to be, or a token's logits would. */
#include "model/inside.h"

#include <math.h>

static const double two_pi = 6.283185307179586476925;

/* The pair that turns n times within the original context, as a real number. */
static double pair_of_turns(const ig_rope_settings *s, int head_dim, double n) {
    return (double)head_dim * ig_math_log(s->original / (n * two_pi)) / (2.0 * ig_math_log(s->base));
}

static double llama3(const ig_rope_settings *s, double f) {
    const double wave = two_pi * f, ratio = s->original / wave;
    if (ratio < s->low) return f * s->factor;
    if (ratio > s->high) return f;
    const double part = (ratio - s->low) / (s->high - s->low);
    return f / ((1.0 - part) / s->factor + part);
}

double ig_rope_yarn_scale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * ig_math_log(factor) + 1.0;
}

ig_status ig_rope_inv_freq(double *inv_freq, const ig_rope_settings *s, int head_dim, const float *divisor,
                           ig_err *err) {
    const int half = head_dim / 2;
    double first = 0, last = 0;
    if (s->type == IG_ROPE_YARN) {
        first = floor(pair_of_turns(s, head_dim, s->beta_fast));
        last = ceil(pair_of_turns(s, head_dim, s->beta_slow));
        if (first < 0) first = 0;
        if (last > head_dim - 1) last = head_dim - 1;
        if (last <= first) last = first + 0.001;
    }
    for (int i = 0; i < half; i++) {
        double f = ig_math_exp((double)i * ig_math_log(s->base) / (double)half);
        if (divisor) {
            if (!(divisor[i] > 0.0f))
                return ig_fail(err, IG_EFORMAT, "rope divisor %d is %g, and must be above 0", i,
                               (double)divisor[i]);
            f *= (double)divisor[i];
        }
        if (s->type == IG_ROPE_LINEAR || s->type == IG_ROPE_LONGROPE) f *= s->factor;
        if (s->type == IG_ROPE_LLAMA3) f = llama3(s, f);
        if (s->type == IG_ROPE_LONGROPE && s->n_divisors) f *= s->divisor[i];
        inv_freq[i] = 1.0 / f;
        if (s->type != IG_ROPE_YARN) continue;
        double m = ((double)i - first) / (last - first);
        m = 1.0 - (m < 0 ? 0.0 : m > 1 ? 1.0 : m);
        inv_freq[i] = (m + (1.0 - m) / s->factor) / f;
    }
    return IG_OK;
}

/* ---- tier l1: the same tables as mlx-lm makes them, in f32 --------------------------------------------- */

/* base^i as one power in f32, which is the power in double rounded once. */
static float power(float base, float i) {
    return (float)ig_math_exp((double)i * ig_math_log((double)base));
}

static float llama3_f32(const ig_rope_settings *s, float f) {
    const float wave = (float)two_pi * f, factor = (float)s->factor, low = (float)s->low;
    const bool is_long = wave > (float)(s->original / s->low);
    if (is_long || !(wave > (float)(s->original / s->high) && wave < (float)(s->original / s->low)))
        return is_long ? f * factor : f;
    const float part = ((float)s->original / wave - low) / (float)(s->high - s->low);
    return f / ((1.0f - part) / factor + part);
}

ig_status ig_rope_mlx(float *freq, float *step, float *before, const ig_rope_settings *s, int head_dim, ig_err *err) {
    const int half = head_dim / 2;
    const float base = (float)s->base, factor = (float)s->factor;
    *step = s->type == IG_ROPE_LINEAR ? (float)(1.0 / s->factor) : 1.0f;
    *before = s->type == IG_ROPE_YARN || s->type == IG_ROPE_LONGROPE ? (float)s->scale : 1.0f;
    if (s->type == IG_ROPE_PLAIN || s->type == IG_ROPE_LINEAR) {
        const float step_log = ig_mlx_log(base) / (float)half;
        for (int i = 0; i < half; i++) freq[i] = ig_mlx_exp((float)-i * step_log);
        return IG_OK;
    }
    if (s->type == IG_ROPE_LONGROPE && !s->n_divisors)
        return ig_fail(err, IG_EINVAL, "--l1: longrope whose factors are not in config.json is not mlx-lm's");
    double first = 0, last = 0;
    if (s->type == IG_ROPE_YARN) {
        first = floor(pair_of_turns(s, head_dim, s->beta_fast)), last = ceil(pair_of_turns(s, head_dim, s->beta_slow));
        if (first < 0) first = 0;
        if (last > head_dim - 1) last = head_dim - 1;
        if (last == first) last += 0.001;
    }
    for (int i = 0; i < half; i++) {
        const float f = power(base, (float)(2 * i) / (float)head_dim);
        float y = s->type == IG_ROPE_LLAMA3 ? llama3_f32(s, f) : (float)s->divisor[i] * f;
        if (s->type == IG_ROPE_YARN) {
            float m = ((float)i - (float)first) / (float)(last - first);
            m = 1.0f - (m < 0.0f ? 0.0f : m > 1.0f ? 1.0f : m);
            const float wide = factor * f;
            y = (wide * f) / (wide * m + f * (1.0f - m));
        }
        freq[i] = 1.0f / y;
    }
    return IG_OK;
}

ig_status ig_rope_check(const ig_rope_settings *s, int head_dim, const char *what, ig_err *err) {
    if (!(s->base > 1.0 && s->base < 1e13))
        return ig_fail(err, IG_EFORMAT, "%s: the rope base %g is not in (1, 1e13)", what, s->base);
    if (!(s->factor >= 1.0 && s->factor < 1e7))
        return ig_fail(err, IG_EFORMAT, "%s: the rope factor %g is not in [1, 1e7)", what, s->factor);
    if (!(s->scale > 0.0 && s->scale < 100.0))
        return ig_fail(err, IG_EFORMAT, "%s: the rope's scale %g is not in (0, 100)", what, s->scale);
    if ((s->type == IG_ROPE_LLAMA3 || s->type == IG_ROPE_YARN) && !(s->original >= 1.0))
        return ig_fail(err, IG_EFORMAT, "%s: the rope's original context of %g positions is below 1", what,
                       s->original);
    if (s->type == IG_ROPE_LLAMA3 && !(s->low > 0.0 && s->high > s->low))
        return ig_fail(err, IG_EFORMAT, "%s: llama3 rope between the factors %g and %g, which must ascend",
                       what, s->low, s->high);
    if (s->type == IG_ROPE_YARN && !(s->beta_slow > 0.0 && s->beta_fast > s->beta_slow))
        return ig_fail(err, IG_EFORMAT, "%s: yarn between %g and %g turns, which must descend", what,
                       s->beta_fast, s->beta_slow);
    if (s->n_divisors && s->n_divisors != head_dim / 2)
        return ig_fail(err, IG_EFORMAT, "%s: %d longrope factors for heads of %d, expected %d", what,
                       s->n_divisors, head_dim, head_dim / 2);
    return IG_OK;
}

const char *ig_rope_type_name(ig_rope_type t) {
    static const char *const names[] = {"default", "linear", "llama3", "yarn", "longrope"};
    return names[t];
}
