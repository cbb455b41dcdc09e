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
